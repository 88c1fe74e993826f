"""`kvfence simulate` as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas" / "simulate-1.json"
KVFENCE = [sys.executable, "-m", "kvfence", "simulate"]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run([*KVFENCE, *arguments], capture_output=True, text=True, env=env, check=False)


def test_nothing_breaks_with_all_mechanisms_on() -> None:
    done = simulate("--budget", "0.5")
    assert done.returncode == 0, done.stderr
    assert "all mechanisms on" in done.stdout
    assert "no property broke" in done.stdout


def test_a_breach_is_told_and_can_be_replayed_from_what_was_printed(tmp_path: Path) -> None:
    done = simulate("--without", "source-hold", "--budget", "20")
    assert done.returncode == 1, done.stdout
    assert "P1 broken: an operation of" in done.stdout
    kept = tmp_path / "breach.txt"
    kept.write_text(done.stdout)
    again = simulate("--replay", str(kept))
    assert again.returncode == 1
    story = [line for line in done.stdout.splitlines() if line.startswith((" ", "     P1"))]
    assert story
    assert [line for line in again.stdout.splitlines() if line.startswith((" ", "     P1"))] == story


def test_a_json_report_has_a_schema_and_replays(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = simulate("-w", "canary", "--scenario", "at-rest", "--json", "--output", str(report))
    assert (done.returncode, done.stdout) == (1, "")
    document = json.loads(report.read_text())
    assert document["schema"] == "kvfence.simulate/1"
    assert document["breach"]["property"] == "P2"
    assert document["breach"]["schedule"]["schema"] == "kvfence.schedule/1"
    jsonschema.validate(document, json.loads(PUBLISHED.read_text()))
    assert simulate("--replay", str(report)).returncode == 1


def test_every_state_of_a_scenario_is_visited() -> None:
    done = simulate("--exhaustive", "--scenario", "over-length", "--budget", "60")
    assert done.returncode == 0
    assert "every state" in done.stdout


def test_the_shortest_breach_is_the_same_whatever_the_order_of_hashes() -> None:
    printed = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [*KVFENCE, "--exhaustive", "--scenario", "reuse", "--without", "source-hold"]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 1
        printed.add(done.stdout.partition("\n")[2])
    assert len(printed) == 1


def test_a_search_that_did_not_finish_says_so() -> None:
    done = simulate("--exhaustive", "--budget", "0")
    assert done.returncode == 0
    assert "not all states" in done.stdout
    assert "no property broke so far" in done.stdout


def test_a_preset_finds_what_is_known() -> None:
    done = simulate("--preset", "sglang-0.5.19", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["mode"] == "preset"
    jsonschema.validate(document, json.loads(PUBLISHED.read_text()))
    assert {row["found"] for row in document["rows"]} == {"P1"}
    assert all(row["as_declared"] for row in document["rows"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--without", "fences"], "'fences' is no mechanism; there are admission"),
        (["--scenario", "nowhere"], "'nowhere' is no scenario; there are over-length"),
        (["--scenario", "random:x"], "no scenario"),
        (["--scenario", "random:²"], "no scenario"),
        (["--scenario", f"random:{'1' * 5000}"], "no scenario"),
        (["--replay", "/dev/zero"], "/dev/zero: is larger than 64 MiB"),
        (["--preset", "sglang-9"], "no release known here; there are sglang-0.5.19"),
        (["--pairs", "nothing"], "no mechanism"),
        (["--matrix", "--exhaustive"], "more than one of"),
        (["--matrix", "--without", "tags"], "a mode that has its own"),
        (["--replay", "absent"], "absent: cannot be read"),
        (["--replay", "/"], "/: cannot be read"),
        (["--seed", "-1"], "--seed"),
        (["--budget", "soon"], "--budget"),
    ],
)
def test_a_wrong_call_says_what_can_be_given(arguments: list[str], problem: str) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_replay_that_does_not_fit_names_the_step(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(
        '{"schema":"kvfence.schedule/1","scenario":"reuse","without":[],"release_after":0,"orderly":false,'
        '"steps":["submit 0 P0","fence D0 1"]}'
    )
    done = simulate("--replay", str(wrong))
    assert done.returncode == 2
    assert "steps[1] 'fence D0 1': cannot be taken there" in done.stderr


def test_pairs_are_told_and_not_judged() -> None:
    done = simulate("--pairs", "bounded-batches", "--budget", "0.05")
    assert done.returncode == 0
    assert "nothing is declared of pairs" in done.stdout
    assert "ok " not in done.stdout


def test_an_output_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*KVFENCE, "--budget", "0"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr


def test_an_interrupt_keeps_what_was_found() -> None:
    with subprocess.Popen(
        [*KVFENCE, "--budget", "600", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    document = json.loads(printed)
    assert process.returncode == 130
    assert document["interrupted"]
    assert document["runs"] > 0
