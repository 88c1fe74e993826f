"""The audit of what real, guarded servers recorded is what the acceptance table declares; without guards, worse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from acceptance.table import AUDIT, RULES, read
from kvfence.findings import Audit
from tests.conftest import DATA, audit_of, failed

BUNDLES = [("0.5.19", "plugin"), ("0.5.23", "plugin-auto-truncate")]


def bundle(version: str, configuration: str) -> Path:
    return DATA / "guarded" / f"{version}-{configuration}"


def audited(folder: Path) -> Audit:
    return audit_of(*(path for path in sorted(folder.iterdir()) if path.name != "outcomes.json"))


@pytest.mark.parametrize(("version", "configuration"), BUNDLES)
def test_verdict_is_that_of_the_table(version: str, configuration: str) -> None:
    declared = read()[version][configuration]
    result = audited(bundle(version, configuration))
    assert result.verdict.value == declared[AUDIT]
    # Endpoints that were left out to save room tell of these two alone.
    assert failed(result) >= set(declared[RULES].split()) - {"KVF107", "KVF103"}


@pytest.mark.parametrize(("version", "configuration"), BUNDLES)
def test_without_its_guards_it_would_be_exposed(version: str, configuration: str, tmp_path: Path) -> None:
    for path in bundle(version, configuration).iterdir():
        shutil.copy(path, tmp_path)
    for log in tmp_path.glob("*.log"):
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if " guards " not in line))
    for saved in tmp_path.glob("*server_info.json"):
        document = json.loads(saved.read_text())
        for state in document["internal_states"]:
            assert state.pop("kvfence")["schema"] == "kvfence.sglang-plugin/1"
        saved.write_text(json.dumps(document))
    assert audited(tmp_path).verdict.value == "exposed"


@pytest.mark.parametrize(("version", "configuration"), BUNDLES)
def test_outcomes_are_those_of_the_table(version: str, configuration: str) -> None:
    declared = read()[version][configuration]
    outcomes = json.loads((bundle(version, configuration) / "outcomes.json").read_text())["scenarios"]
    assert {name: seen["word"] for name, seen in outcomes.items()} == {
        name: word for name, word in declared.items() if name not in (AUDIT, RULES)
    }
