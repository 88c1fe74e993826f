"""A guard that is known to be active closes what the release leaves open, and one that is not closes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvfence.findings import Audit, Level, Status, Verdict
from tests.conftest import DATA, audit_of, failed, finding, statuses

REAL = DATA / "real"
GUARDS = ["door", "coverage", "notices", "batches"]


def told(**changes: Any) -> dict[str, Any]:
    plain = {
        "schema": "kvfence.sglang-plugin/1",
        "guards": GUARDS,
        "silent_peer": "deny",
        "batch_bytes": 67108864,
        "accepted_untried": [],
    }
    return plain | changes


def guarded(tmp_path: Path, version: str, *, prefill: Any, decode: Any, flags: dict[str, Any] | None = None) -> Audit:
    """Audit what a real pair answered, as if its states had told of guards."""
    source = REAL / version
    for role, part in (("prefill", prefill), ("decode", decode)):
        name = f"{role}-server_info.json"
        document = json.loads((source / name).read_text()) | (flags or {})
        for state in document["internal_states"]:
            state.update({} if part is None else {"kvfence": part})
        (tmp_path / name).write_text(json.dumps(document))
    return audit_of(tmp_path)


def test_incident_is_closed_by_the_guards(tmp_path: Path) -> None:
    open_result = guarded(tmp_path, "0.5.19", prefill=None, decode=None)
    assert open_result.verdict is Verdict.EXPOSED
    assert "KVF201" in failed(open_result)

    result = guarded(tmp_path, "0.5.19", prefill=told(), decode=told())
    assert result.verdict is Verdict.AT_RISK
    assert statuses(result, "KVF201") == {"pass"}
    assert statuses(result, "KVF303") == {"pass"}
    window = finding(result, "KVF102")
    assert window.level is Level.HIGH
    assert "its guards refuse them at the door" in window.message
    assert statuses(result, "KVF415") == {"pass"}
    assert statuses(result, "KVF416") == {"pass"}


def test_door_alone_counts_for_the_door_alone(tmp_path: Path) -> None:
    result = guarded(tmp_path, "0.5.19", prefill=told(guards=["door"]), decode=told())
    assert statuses(result, "KVF201") == {"pass"}
    assert statuses(result, "KVF303") == {"fail"}
    absent = finding(result, "KVF415")
    assert "lacks batches, coverage, notices" in absent.message


def test_half_a_fleet_is_found(tmp_path: Path) -> None:
    result = guarded(tmp_path, "0.5.23", prefill=told(), decode=None)
    absent = finding(result, "KVF415")
    assert absent.workers == ("decode",)


@pytest.mark.parametrize(
    ("prefill", "decode", "exposed"),
    [
        (None, None, True),
        (told(), told(), False),
        (told(), told(silent_peer="allow"), True),
        (None, told(), True),
        (told(), None, True),
        (told(guards=["door"]), told(), True),
    ],
)
def test_truncation_is_closed_by_coverage_on_both_roles(
    tmp_path: Path, prefill: Any, decode: Any, exposed: bool
) -> None:
    flags = {"allow_auto_truncate": True}
    result = guarded(tmp_path, "0.5.23", prefill=prefill, decode=decode, flags=flags)
    assert (result.verdict is Verdict.EXPOSED) is exposed
    cut = finding(result, "KVF104")
    assert cut.level is (Level.CRITICAL if exposed else Level.MEDIUM)


def test_required_guards_are_missed_where_nobody_has_them(tmp_path: Path) -> None:
    from kvfence.audit.run import audit

    result = guarded(tmp_path, "0.5.23", prefill=None, decode=None)
    assert statuses(result, "KVF415") == {"not-applicable"}
    result.deployment.guards_required = True
    again = audit(result.deployment)
    assert statuses(again, "KVF415") == {"fail"}


def test_weakened_guards_are_found(tmp_path: Path) -> None:
    result = guarded(
        tmp_path, "0.5.23", prefill=told(accepted_untried=["speculative"]), decode=told(silent_peer="allow")
    )
    found = {f.workers[0]: f.level for f in result.findings if f.rule == "KVF416" and f.status is Status.FAIL}
    assert found == {"prefill": Level.MEDIUM, "decode": Level.HIGH}
