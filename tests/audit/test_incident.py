"""The incident of September 2026, as two startup logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvfence.audit.expect import compare, read_expectation
from tests.conftest import EXAMPLES, audit_of, failed, statuses

INCIDENT = EXAMPLES / "incident"


def summary(pool: int, context: int = 1048576) -> str:
    return (
        f"[2026-08-27 06:10:58 TP0] max_total_num_tokens={pool}, chunked_prefill_size=16384, "
        f"max_prefill_tokens=16384, max_running_requests=64, context_len={context}, available_gpu_mem=51.53 GB\n"
    )


def test_bundled_example_is_as_expected() -> None:
    assert compare(read_expectation(INCIDENT / "expected.json"), audit_of(INCIDENT)) == []


def test_a_difference_is_told() -> None:
    expected = read_expectation(INCIDENT / "expected.json")
    differences = compare(expected, audit_of(INCIDENT / "decode.log"))
    assert any(line.startswith("verdict ") for line in differences)
    assert "gap [681274, 1048570) refused by prefill was not found" in differences
    assert "KVF201 did not fail" in differences


def test_two_bare_startup_lines_give_the_gap(write: Callable[..., Path]) -> None:
    folder = write(p_log=summary(681280), d_log=summary(1200000))
    result = audit_of(prefill=folder / "p.log", decode=folder / "d.log")
    (pair,) = result.pairs
    assert pair.gap is not None
    assert (pair.gap.lo, pair.gap.hi, pair.gap.refuses) == (681274, 1048570, "prefill")
    assert {"KVF101", "KVF102"} <= failed(result)
    assert statuses(result, "KVF201") == {"unknown"}
    assert result.verdict.value == "at-risk"


def test_the_release_completes_the_chain(write: Callable[..., Path]) -> None:
    folder = write(p_log=summary(681280), d_log=summary(1200000))
    for release, verdict in (("0.5.19", "exposed"), ("0.5.20", "at-risk"), ("0.5.23", "at-risk")):
        result = audit_of(prefill=folder / "p.log", decode=folder / "d.log", assume=(f"version={release}",))
        assert result.verdict.value == verdict, release


def test_equal_pools_that_cover_the_context_are_no_window(write: Callable[..., Path]) -> None:
    folder = write(p_log=summary(1200000), d_log=summary(1200000))
    result = audit_of(prefill=folder / "p.log", decode=folder / "d.log", assume=("version=0.5.19",))
    assert result.pairs[0].gap is None
    assert statuses(result, "KVF102") == {"pass"}
    assert result.verdict.value != "exposed"
