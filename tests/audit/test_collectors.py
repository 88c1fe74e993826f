"""The verdict on a real pair does not change with how its logs were collected."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zstandard

from kvfence.findings import Audit
from tests.conftest import DATA, audit_of, failed, finding

REAL = DATA / "real" / "0.5.19"
RELEASES = ["0.5.19", "0.5.23"]
PIECE = 16 << 10


def lines(role: str, version: str = "0.5.19") -> list[str]:
    return (DATA / "real" / version / f"{role}.log").read_text().splitlines()


def stamped(number: int) -> str:
    moment = datetime(2026, 11, 30, 15, 0, tzinfo=UTC) + timedelta(milliseconds=number)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def kubectl(role: str, number: int, line: str) -> list[str]:
    return [f"[pod/{role}-0/sglang] {stamped(number)} {line}"]


def compose(role: str, _number: int, line: str) -> list[str]:
    return [f"\x1b[36m{role}-1  | \x1b[0m{line}"]


def journald(role: str, _number: int, line: str) -> list[str]:
    return [f"Nov 30 15:14:53 node-7 sglang-{role}[4711]: {line}"]


def journald_iso(role: str, _number: int, line: str) -> list[str]:
    return [f"2026-11-30T15:14:53+0000 node-7 sglang-{role}[4711]: {line}"]


def fluentbit(role: str, number: int, line: str) -> list[str]:
    return [json.dumps({"time": stamped(number), "log": line + "\n", "kubernetes": {"pod_name": f"{role}-0"}})]


def grep(role: str, number: int, line: str) -> list[str]:
    return [f"{role}.log:{number}:{line}"]


def ray(role: str, _number: int, line: str) -> list[str]:
    return [f"({role.title()}Server pid=4711, ip=10.0.0.4) {line}"]


def own(role: str, _number: int, line: str) -> list[str]:
    return [f"{role}-0> {line}"]


def stern(role: str, _number: int, line: str) -> list[str]:
    return [f"sglang-{role}-0 server {line}"]


COLLECTORS = [kubectl, compose, journald, journald_iso, fluentbit, grep, ray, own, stern]


def assert_is_the_incident(result: Audit) -> None:
    assert result.verdict.value == "exposed"
    (pair,) = result.pairs
    assert pair.gap is not None
    assert (pair.gap.lo, pair.gap.hi, pair.gap.refuses) == (1018, 4090, "prefill")
    assert {"KVF101", "KVF102", "KVF201"} <= failed(result)
    requests = finding(result, "KVF801").requests
    assert requests is not None
    assert requests.count == 10


@pytest.mark.parametrize("collect", COLLECTORS)
def test_both_roles_mixed_into_one_file(collect: Callable[[str, int, str], list[str]], tmp_path: Path) -> None:
    prefill, decode = lines("prefill"), lines("decode")
    mixed: list[str] = []
    for number in range(max(len(prefill), len(decode))):
        for role, log in (("prefill", prefill), ("decode", decode)):
            if number < len(log):
                mixed += collect(role, number, log[number])
    (tmp_path / "all.log").write_text("\n".join(mixed) + "\n")
    assert_is_the_incident(audit_of(tmp_path / "all.log"))


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda raw: raw, id="plain"),
        pytest.param(lambda raw: raw.replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(gzip.compress, id="gzip"),
        pytest.param(zstandard.ZstdCompressor().compress, id="zstd"),
        pytest.param(lambda raw: raw.decode().encode("utf-16"), id="utf-16"),
        pytest.param(lambda raw: raw.decode().encode("utf-16-le"), id="utf-16 without mark"),
        pytest.param(lambda raw: b"\xef\xbb\xbf" + raw, id="utf-8 mark"),
        pytest.param(lambda raw: bytes(4096) + raw, id="truncated while written"),
        pytest.param(lambda raw: gzip.compress(raw) + gzip.compress(b"one more line\n"), id="two gzip members"),
    ],
)
def test_however_it_is_packed(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    for role in ("prefill", "decode"):
        (tmp_path / f"{role}.log").write_bytes(pack((REAL / f"{role}.log").read_bytes()))
    assert_is_the_incident(audit_of(tmp_path))


@pytest.mark.parametrize("version", RELEASES)
def test_entries_that_docker_split_are_joined(version: str, tmp_path: Path) -> None:
    """Docker cuts entries at 16 KiB; the server_args= line is longer."""
    for role in ("prefill", "decode"):
        entries = []
        for line in lines(role, version):
            text = line + "\n"
            pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
            entries += [json.dumps({"log": piece, "stream": "stderr", "time": stamped(1)}) for piece in pieces]
        (tmp_path / f"{role}.log").write_text("\n".join(entries) + "\n")
    split, whole = (
        audit_of(tmp_path),
        audit_of(*[DATA / "real" / version / f"{role}.log" for role in ("prefill", "decode")]),
    )
    assert failed(split) == failed(whole)
    assert split.verdict == whole.verdict
    assert not any("cut off" in note for note in split.deployment.notes)


@pytest.mark.parametrize("version", RELEASES)
def test_entries_that_the_container_runtime_split_are_joined(version: str, tmp_path: Path) -> None:
    for role in ("prefill", "decode"):
        entries = []
        for line in lines(role, version):
            pieces = [line[start : start + PIECE] for start in range(0, len(line), PIECE)] or [""]
            entries += [f"{stamped(1)} stderr P {piece}" for piece in pieces[:-1]]
            entries.append(f"{stamped(1)} stderr F {pieces[-1]}")
        (tmp_path / f"{role}.log").write_text("\n".join(entries) + "\n")
    result = audit_of(tmp_path)
    assert (result.verdict.value == "exposed") == (version == "0.5.19")
    assert not any("cut off" in note for note in result.deployment.notes)


@pytest.mark.parametrize("start", [0, 20, 60, 75])
def test_log_cut_at_its_head_never_makes_things_look_well(start: int, tmp_path: Path) -> None:
    for role in ("prefill", "decode"):
        (tmp_path / f"{role}.log").write_text("\n".join(lines(role)[start:]))
    result = audit_of(tmp_path)
    assert result.verdict.value in ("exposed", "at-risk", "unknown")
    if start >= 60:
        assert "KVF101" not in failed(result)
        assert finding(result, "KVF801", "unknown").requests is not None


def test_log_cut_in_the_middle_of_a_line(tmp_path: Path) -> None:
    raw = (REAL / "prefill.log").read_bytes()
    for end in range(1000, len(raw), 3777):
        (tmp_path / "prefill.log").write_bytes(raw[:end])
        assert audit_of(tmp_path / "prefill.log").verdict.value != "clear"


def test_logs_one_after_the_other_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "all.log").write_text("\n".join(lines("prefill") + lines("decode")))
    assert_is_the_incident(audit_of(tmp_path / "all.log"))


def test_rotated_logs_are_one_worker(tmp_path: Path) -> None:
    log = lines("prefill")
    cut = next(number for number in range(100, len(log)) if log[number - 1].endswith('" 200 OK'))
    (tmp_path / "prefill.log.1").write_text("\n".join(log[:cut]))
    (tmp_path / "prefill.log").write_text("\n".join(log[cut:]))
    (tmp_path / "decode.log").write_text("\n".join(lines("decode")))
    result = audit_of(tmp_path)
    assert len(result.deployment.workers) == 2
    assert_is_the_incident(result)


def test_the_last_of_several_starts_is_judged(tmp_path: Path) -> None:
    old = [line.replace("1024", "2048") for line in lines("prefill")]
    (tmp_path / "prefill.log").write_text("\n".join(old + lines("prefill")))
    (tmp_path / "decode.log").write_text("\n".join(lines("decode")))
    result = audit_of(tmp_path)
    (pair,) = result.pairs
    assert pair.prefill.tokens == 1018  # type: ignore[union-attr]
    assert any("2 starts of prefill; the last one is judged" in note for note in result.deployment.notes)
