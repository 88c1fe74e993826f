"""`kvfence audit`: exit codes, formats, and what its options do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.conftest import DATA, EXAMPLES
from tests.facts.kvfence.documents import files

INCIDENT = EXAMPLES / "incident"
Run = Callable[..., Ran]

COVERED = (
    "[2026-09-01 08:02:40] max_total_num_tokens=8192, chunked_prefill_size=2048, max_prefill_tokens=16384, "
    "max_running_requests=64, context_len=4096, available_gpu_mem=9.12 GB\n"
)


def test_exposed_is_exit_code_1(kvfence: Run) -> None:
    ran = kvfence("audit", INCIDENT)
    assert ran.code == 1
    assert ran.out.startswith(" EXPOSED ")
    assert "[681,274, 1,048,570) refused by prefill only" in ran.out
    assert "3f0a7d0c9b5e4e5f8f6b2a1d4c3e2b1a" in ran.out
    assert ran.err == ""


def test_expectation_turns_the_incident_into_exit_code_0(kvfence: Run) -> None:
    ran = kvfence("audit", INCIDENT, "--expect", INCIDENT / "expected.json")
    assert ran.code == 0
    assert "as expected: exposed" in ran.err


def test_unmet_expectation_is_exit_code_1_and_told(kvfence: Run, tmp_path: Path) -> None:
    expected = json.loads((INCIDENT / "expected.json").read_text())
    expected["verdict"] = "clear"
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    ran = kvfence("audit", INCIDENT, "--expect", tmp_path / "expected.json")
    assert ran.code == 1
    assert "not as expected: verdict exposed, expected clear" in ran.err


def test_unknown_is_exit_code_3_unless_allowed(kvfence: Run, tmp_path: Path) -> None:
    log = tmp_path / "prefill.log"
    log.write_text(COVERED)
    assert kvfence("audit", log).code == 3
    assert kvfence("audit", log, "--allow-unknown").code == 0


def test_fail_on_sets_the_level(kvfence: Run) -> None:
    log = DATA / "cases" / "41.txt"
    assert kvfence("audit", log, "--allow-unknown").code == 0
    assert kvfence("audit", log, "--allow-unknown", "--fail-on", "medium").code == 1


def test_json_is_the_same_twice_and_has_the_contract(kvfence: Run) -> None:
    first, second = (kvfence("audit", INCIDENT, "--format", "json") for _ in range(2))
    assert first.out == second.out
    document = json.loads(first.out)
    assert document["schema"] == "kvfence.audit/1"
    assert document["verdict"] == "exposed"
    (pair,) = document["pairs"]
    assert pair == {
        "prefill": "prefill",
        "decode": "decode",
        "limit": 681274,
        "gap": {"lo": 681274, "hi": 1048570, "refuses": "prefill"},
    }
    prefill = next(worker for worker in document["workers"] if worker["role"] == "prefill")
    assert (prefill["context_len"], prefill["pool_tokens"], prefill["max_input_len"]) == (1048576, 681280, 681274)
    assert prefill["version"] == {"lo": "0.5.18", "hi": "0.5.18"}
    assert prefill["members"] == ["prefill"]


def test_output_goes_to_a_file(kvfence: Run, tmp_path: Path) -> None:
    ran = kvfence("audit", INCIDENT, "--format", "json", "--output", tmp_path / "report.json")
    assert (ran.code, ran.out) == (1, "")
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "exposed"


def test_output_that_cannot_be_written_is_told(kvfence: Run, tmp_path: Path) -> None:
    ran = kvfence("audit", INCIDENT, "--output", tmp_path / "no" / "report.json")
    assert ran.code == 2
    assert "cannot be written" in ran.err


def test_standard_input_is_read(kvfence: Run) -> None:
    ran = kvfence("audit", "-", "--format", "json", stdin=(INCIDENT / "prefill.log").read_bytes())
    assert ran.code == 1
    assert json.loads(ran.out)["workers"][0]["pool_tokens"] == 681280


def test_role_can_be_given(kvfence: Run, tmp_path: Path) -> None:
    for name in ("one.log", "two.log"):
        (tmp_path / name).write_text(COVERED)
    ran = kvfence("audit", "--prefill", tmp_path / "one.log", "--decode", tmp_path / "two.log", "--format", "json")
    roles = {worker["name"]: worker["role"] for worker in json.loads(ran.out)["workers"]}
    assert roles == {"one": "prefill", "two": "decode"}
    facts = json.loads(ran.out)["workers"][0]["facts"]
    assert facts["role"]["standing"] == "stated"


def test_assumptions_are_shown_as_stated(kvfence: Run, tmp_path: Path) -> None:
    (tmp_path / "prefill.log").write_text(COVERED)
    ran = kvfence("audit", tmp_path, "--assume", "version=0.5.19", "--format", "json")
    version = json.loads(ran.out)["workers"][0]["facts"]["version"]
    assert version["standing"] == "stated"
    assert version["value"] == "0.5.19"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["audit"], "names no input"),
        (["audit", "nowhere.log"], "nowhere.log: no such file or directory"),
        (["audit", str(INCIDENT), "--assume", "poll_tokens=1"], "pool_tokens"),
        (["audit", str(INCIDENT), "--assume", "pool_tokens"], "NAME=VALUE"),
        (["audit", str(INCIDENT), "--assume", "pool_tokens=many"], "needs a value"),
        (["audit", str(INCIDENT), "--expect", "nowhere.json"], "cannot be read"),
        (["audit", str(INCIDENT), "--previous", str(INCIDENT / "expected.json")], "report"),
        (["audit", "http://"], "names no host"),
        (["audit", "--format", "yaml", str(INCIDENT)], "yaml"),
        (["rules", "KVF999"], "is no rule"),
        (["nonsense"], "nonsense"),
    ],
)
def test_unusable_calls_are_exit_code_2_and_one_clear_line(kvfence: Run, words: list[str], told: str) -> None:
    ran = kvfence(*words)
    assert ran.code == 2
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_old_tables_are_told(kvfence: Run) -> None:
    assert "the release tables are" in kvfence("audit", INCIDENT, "--today", "2027-06-01").out
    assert "the release tables are" not in kvfence("audit", INCIDENT, "--today", "2026-12-01").out


def test_earlier_report_tells_what_changed(kvfence: Run, tmp_path: Path) -> None:
    report, script = tmp_path / "report.json", tmp_path / "now"
    kvfence("audit", INCIDENT, "--format", "json", "--output", report)
    script.mkdir()
    launch = (INCIDENT / "prefill-launch.sh").read_text().replace("0.85", "0.70")
    (script / "prefill-launch.sh").write_text(launch)
    ran = kvfence("audit", script, "--previous", report, "--format", "json")
    found = [f for f in json.loads(ran.out)["findings"] if f["rule"] == "KVF108"]
    assert [f["status"] for f in found] == ["fail"]
    assert "mem_fraction_static 0.85 -> 0.7" in found[0]["message"]


def test_limits_prints_the_gap(kvfence: Run) -> None:
    ran = kvfence("limits", INCIDENT)
    assert ran.code == 1
    assert "[681,274, 1,048,570) is refused by prefill only" in ran.out
    document = json.loads(kvfence("limits", INCIDENT, "--format", "json").out)
    assert document["schema"] == "kvfence.limits/1"
    assert [worker["max_input_len"] for worker in document["workers"]] == [681274, 1048570]


def test_limits_of_one_known_worker_is_exit_code_0(kvfence: Run) -> None:
    assert kvfence("limits", INCIDENT / "decode.log").code == 0
    assert kvfence("limits", DATA / "cases" / "46.txt").code == 3


def test_rules_are_listed_and_explained_offline(kvfence: Run) -> None:
    listed = kvfence("rules")
    assert listed.code == 0
    assert "KVF801" in listed.out
    page = kvfence("rules", "pool-below-context")
    assert page.out.startswith("# KVF101 pool-below-context")
    assert kvfence("rules", "kvf101").out == page.out


def test_help_and_version(kvfence: Run) -> None:
    assert kvfence("--version").out.startswith("kvfence ")
    for command in ("audit", "limits", "rules"):
        ran = kvfence(command, "--help")
        assert ran.code == 0
        assert "Usage" in ran.out


def test_pair_of_the_own_engine_is_exit_code_0(kvfence: Run, tmp_path: Path) -> None:
    for name, content in files().items():
        (tmp_path / name).write_text(content)
    ran = kvfence("audit", tmp_path, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    assert report["verdict"] == "clear"
    assert {worker["engine"] for worker in report["workers"]} == {"kvfence"}
