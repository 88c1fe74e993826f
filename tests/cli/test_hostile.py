"""Hostile inputs end in a clear error or a sober report, in bounded time and memory, never in a traceback."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.cli.conftest import Ran
from tests.conftest import EXAMPLES

Run = Callable[..., Ran]
INCIDENT = EXAMPLES / "incident"
MEMORY = 700 << 20
SECONDS = 60


@pytest.fixture
def bounded() -> Run:
    """Run the command with a bound on its memory and time."""

    def run(*words: str | Path) -> Ran:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY * 4, MEMORY * 4))  # address space: libraries map much

        done = subprocess.run(
            [sys.executable, "-m", "kvfence", *map(str, words)],
            capture_output=True,
            timeout=SECONDS,
            check=False,
            preexec_fn=limit,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.log", b"", "is empty"),
        ("binary.log", bytes(range(256)) * 400, "is binary"),
        ("elf", b"\x7fELF\x02\x01\x01" + bytes(4000), "is binary"),
        ("cut.json", (b'{"disaggregation_mode": "prefill", "max_total_num_tokens": 10'), "is no JSON document"),
        ("other.json", b'{"hello": 1}', "is JSON, but not what"),
        ("deep.json", b'{"a":' * 100_000, "JSON"),
        ("broken.yaml", b"a: [1, 2\nb: 3\n", "broken.yaml:2: is no YAML"),
        ("list.yaml", b"- a\n- b\n", "is not a mapping"),
        ("pod.yaml", b"apiVersion: v1\nkind: Pod\n", "Kubernetes manifest"),
        ("bad.gz", b"\x1f\x8b" + b"x" * 100, "damaged"),
        ("bad.zst", b"\x28\xb5\x2f\xfd" + b"x" * 100, "damaged"),
    ],
)
def test_unusable_file_is_named_with_its_fault(
    bounded: Run, tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    ran = bounded("audit", path)
    assert ran.code == 2, ran.err
    assert str(path) in ran.err
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_yaml_bomb_is_refused(bounded: Run, tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    ran = bounded("audit", tmp_path / "bomb.yaml")
    assert ran.code == 2
    assert "references" in ran.err


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
def test_bomb_is_refused(bounded: Run, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    block = pack(bytes(64 << 20))
    (tmp_path / "bomb").write_bytes(block * 40)
    ran = bounded("audit", tmp_path / "bomb")
    assert ran.code == 2
    assert "grows more than" in ran.err


def test_megabyte_lines_and_broken_utf8_lose_nothing(bounded: Run, tmp_path: Path) -> None:
    log = (INCIDENT / "prefill.log").read_bytes().splitlines(keepends=True)
    hostile = b"x" * (3 << 20) + b"\n" + b"\xff\xfe\xc3(\n" + b"y" * (1 << 20) + b"\xe2\x82"
    (tmp_path / "prefill.log").write_bytes(hostile + b"\n" + b"".join(log) + hostile)
    ran = bounded("audit", tmp_path / "prefill.log", "--format", "json")
    document = json.loads(ran.out)
    assert document["workers"][0]["pool_tokens"] == 681280
    rejected = next(f for f in document["findings"] if f["rule"] == "KVF801")
    assert rejected["requests"]["count"] == 2
    assert rejected["evidence"][0]["line"] == 42 + 4 - 1 + 0
    assert any("longer than 256 KiB" in note for note in document["notes"])


def test_ten_thousand_workers_in_one_file_become_classes(bounded: Run, tmp_path: Path) -> None:
    line = (
        "[pod/{role}-{n}/sglang] [2026-09-01 08:02:40] max_total_num_tokens={pool}, chunked_prefill_size=2048, "
        "max_prefill_tokens=16384, max_running_requests=64, context_len=1048576, available_gpu_mem=9.12 GB\n"
    )
    with (tmp_path / "all.log").open("w") as log:
        for n in range(5000):
            log.write(line.format(role="prefill", n=n, pool=681280 if n == 4321 else 1200000))
            log.write(line.format(role="decode", n=n, pool=1200000))
    ran = bounded("audit", tmp_path / "all.log", "--format", "json")
    document = json.loads(ran.out)
    assert sorted(len(worker["members"]) for worker in document["workers"]) == [1, 4999, 5000]
    gaps = [pair["gap"] for pair in document["pairs"] if pair["gap"]]
    assert gaps == [{"lo": 681274, "hi": 1048570, "refuses": "prefill"}]


def test_too_many_differing_pairs_are_refused(bounded: Run, tmp_path: Path) -> None:
    line = (
        "[pod/{role}-{n}/sglang] [2026-09-01 08:02:40] max_total_num_tokens={pool}, chunked_prefill_size=2048, "
        "max_prefill_tokens=16384, max_running_requests=64, context_len=1048576, available_gpu_mem=9.12 GB\n"
    )
    with (tmp_path / "all.log").open("w") as log:
        for n in range(300):
            log.write(line.format(role="prefill", n=n, pool=600000 + n))
            log.write(line.format(role="decode", n=n, pool=700000 + n))
    ran = bounded("audit", tmp_path / "all.log")
    assert ran.code == 2
    assert "make more than 10,000 pairs" in ran.err


def test_directory_without_anything_to_read_is_told(bounded: Run, tmp_path: Path) -> None:
    (tmp_path / "README").write_text("nothing here\n")
    ran = bounded("audit", tmp_path)
    assert ran.code == 2
    assert "holds no file that says something of a server" in ran.err


def test_unreadable_files_in_a_directory_are_noted_not_lost(bounded: Run, tmp_path: Path) -> None:
    (tmp_path / "prefill.log").write_bytes((INCIDENT / "prefill.log").read_bytes())
    (tmp_path / "core").write_bytes(bytes(range(256)) * 400)
    ran = bounded("audit", tmp_path, "--format", "json")
    assert any("core: is binary" in note for note in json.loads(ran.out)["notes"])


def test_fifo_and_device_are_no_inputs(bounded: Run) -> None:
    ran = bounded("audit", "/dev/zero")
    assert ran.code == 2
    assert "is not a regular file" in ran.err


def test_terminal_controls_in_a_log_do_not_reach_the_terminal(bounded: Run, tmp_path: Path) -> None:
    refusal = "Input length (9 tokens) exceeds the maximum allowed length (5 tokens). x"
    evil = f"[2026-08-27 07:03:05 TP0] {refusal}, self.rid='\x1b]0;owned\x07\x9b31m'\n"
    (tmp_path / "prefill.log").write_text(evil)
    for form in ("terminal", "json"):
        ran = bounded("audit", tmp_path / "prefill.log", "--format", form)
        assert "\x1b" not in ran.out
        assert "\x9b" not in ran.out
