"""The audit is right on what real, unmodified SGLang servers wrote and answered.

Prefill's pool held 1,024 tokens, decode's 8,192, the context was 4,096; what each release did with a
prompt between the limits was seen at the time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfence.facts import keys
from kvfence.knowledge.advisories import advisories
from tests.conftest import DATA, audit_of, failed, finding, statuses

REAL = DATA / "real"
PAIRS = ["0.5.19", "0.5.21", "0.5.22", "0.5.23", "0.5.23-auto-truncate"]


def logs(version: str) -> list[Path]:
    return [REAL / version / "prefill.log", REAL / version / "decode.log"]


@pytest.mark.parametrize("version", PAIRS)
def test_gap_is_that_of_the_real_limits(version: str) -> None:
    for inputs in ([REAL / version], logs(version)):
        (pair,) = audit_of(*inputs).pairs
        gap = pair.gap
        assert gap is not None
        assert (gap.lo, gap.hi, gap.refuses) == (1018, 4090, "prefill")


@pytest.mark.parametrize("version", PAIRS)
def test_release_is_told_from_the_log_alone(version: str) -> None:
    for path in logs(version):
        (worker,) = audit_of(path).deployment.workers
        release = worker.value(keys.VERSION)
        assert release is not None
        assert release.exact
        assert str(release) == version.removesuffix("-auto-truncate")


def test_0_5_19_is_the_incident_in_small() -> None:
    for inputs in ([REAL / "0.5.19"], logs("0.5.19")):
        result = audit_of(*inputs)
        assert result.verdict.value == "exposed"
        assert {"KVF101", "KVF102", "KVF201", "KVF801"} <= failed(result)
        requests = finding(result, "KVF801").requests
        assert requests is not None
        assert requests.count == 10
        assert requests.ids[0] == "789433fbbc664e43945fc60059c14513"
        assert requests.first == "2026-11-30 15:19:14"
        assert not requests.unclear


def test_0_5_19_prefill_alone_names_the_requests() -> None:
    result = audit_of(REAL / "0.5.19" / "prefill.log")
    requests = finding(result, "KVF801").requests
    assert requests is not None
    assert requests.count == 10
    assert result.verdict.value == "exposed"
    assert statuses(result, "KVF102") == {"unknown"}


@pytest.mark.parametrize(("version", "waits"), [("0.5.21", 8), ("0.5.22", 6), ("0.5.23", 3)])
def test_fixed_releases_are_not_exposed_and_leave_decode_waiting(version: str, waits: int) -> None:
    for inputs in ([REAL / version], logs(version)):
        result = audit_of(*inputs)
        assert result.verdict.value == "at-risk"
        assert statuses(result, "KVF201") == {"pass"}
        assert statuses(result, "KVF801") == {"pass"}
        requests = finding(result, "KVF810").requests
        assert requests is not None
        assert requests.count == waits


def test_0_5_23_with_auto_truncate_is_exposed() -> None:
    result = audit_of(REAL / "0.5.23-auto-truncate")
    assert result.verdict.value == "exposed"
    found = finding(result, "KVF104")
    assert "8 prompts were cut" in found.message
    assert statuses(result, "KVF201") == {"pass"}


def test_saved_answer_of_another_start_is_no_proof() -> None:
    """0.5.23's saved /server_info is of a start that truncated; its logs are of one that did not."""
    result = audit_of(REAL / "0.5.23")
    assert "KVF505" in failed(result)
    assert statuses(result, "KVF104") == {"unknown"}
    assert audit_of(*logs("0.5.23")).verdict.value == "at-risk"


@pytest.mark.parametrize("name", ["dp2-0.5.21", "single-0.5.21", "single-0.5.22-smollm2"])
def test_single_servers_are_not_at_risk(name: str) -> None:
    result = audit_of(REAL / name)
    assert not result.pairs
    assert statuses(result, "KVF101") == {"pass"}
    assert statuses(result, "KVF102") == {"not-applicable"}
    assert result.verdict.value == "unknown"
    (worker,) = result.deployment.workers
    assert worker.role == "unified"


def test_data_parallel_pools_are_counted_by_rank() -> None:
    (worker,) = audit_of(REAL / "dp2-0.5.21").deployment.workers
    assert worker.value(keys.POOL_TOKENS) == 4096


def test_all_releases_at_once_are_pairs_of_each_other() -> None:
    result = audit_of(*(folder for folder in sorted(REAL.iterdir()) if not folder.name.startswith("vllm")))
    names = {worker.name for worker in result.deployment.workers}
    assert {"0.5.19/prefill", "0.5.23/decode"} <= names
    assert len(result.pairs) == 25
    assert "KVF205" in failed(result)


def test_every_evidence_line_is_where_it_says() -> None:
    for version in PAIRS:
        for found in audit_of(*logs(version)).findings:
            for line in found.evidence:
                if line.line is None:
                    continue
                text = Path(line.source).read_text(errors="replace").splitlines()[line.line - 1]
                word = line.text.split("=")[0].split(" ")[0].strip("'\",").removeprefix("--")
                assert word.replace("server_args", "server_args=") in text or word.replace("-", "_") in text, line


def test_every_advisory_that_is_named_has_its_source() -> None:
    found = [one for one in audit_of(REAL / "0.5.19").findings if one.rule == "KVF204" and one.status.value == "fail"]
    named = [advisory for advisory in advisories() if any(advisory.id in one.message for one in found)]
    assert named
    assert {advisory.source for advisory in named} <= {ref for one in found for ref in one.refs}
