from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.catalogue import CONFIGURATIONS, VERSIONS, Configuration
from acceptance.result import Run, document, exit_code
from acceptance.table import AUDIT, RULES, Row, read, write


def test_the_table_is_readable_and_says_something_of_each_release() -> None:
    table = read()
    assert set(table) == set(VERSIONS)
    assert all({AUDIT, RULES} <= set(row) for rows in table.values() for row in rows.values())


def test_each_configuration_is_declared_for_all_of_its_scenarios() -> None:
    known = {configuration.name: configuration for configuration in CONFIGURATIONS}
    for version, rows in read().items():
        for name, row in rows.items():
            assert set(row) == {*known[name].scenarios, AUDIT, RULES}, (version, name)


def test_what_is_written_reads_the_same(tmp_path: Path) -> None:
    rows = {"0.5.19": {"unequal": {"incident": "leaked", "audit": "exposed", "rules": "KVF101 KVF102"}}}
    path = tmp_path / "table.toml"
    path.write_text(write(rows))
    assert read(path) == rows


@pytest.mark.parametrize(
    "text",
    [
        '["0.4.0".unequal]\nincident = "leaked"\n',
        '["0.5.19".unlike]\nincident = "leaked"\n',
        '["0.5.19".plugin-role-switch]\nincident = "refused"\n',
        '["0.5.19".unequal]\naccident = "leaked"\n',
    ],
)
def test_what_there_is_not_cannot_be_declared(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"table\.toml"):
        read(path)


def test_a_run_is_as_declared_only_if_all_of_it_is() -> None:
    good, other, new = Row("incident", "leaked", "leaked"), Row("pin", "answered", "starved"), Row("flood", None, "x")
    assert [row.standing for row in (good, other, new)] == ["as declared", "different", "not declared"]
    assert exit_code([Run("0.5.19", "unequal", rows=[good])]) == 0
    assert exit_code([Run("0.5.19", "unequal", rows=[good, other])]) == 1
    assert exit_code([Run("0.5.19", "unequal", rows=[good, new])]) == 1
    assert exit_code([Run("0.5.19", "unequal", failed="did not come up")]) == 1


def test_what_is_skipped_is_no_difference_but_no_success_either() -> None:
    skipped, good = Run("0.5.18", "unequal", skipped="no torch"), Run("0.5.19", "unequal", rows=[Row("pin", "x", "x")])
    assert exit_code([skipped, good]) == 0
    assert exit_code([skipped]) == 1


def test_the_document_says_how_each_row_stands() -> None:
    runs = document([Run("0.5.19", "unequal", rows=[Row("pin", "x", "y", 1.5, ("because",))])])["runs"]
    assert runs[0]["as_declared"] is False
    assert runs[0]["rows"][0]["standing"] == "different"
    assert runs[0]["rows"][0]["evidence"] == ("because",)


def test_a_configuration_says_what_each_role_gets() -> None:
    one = Configuration("x", flags=("--both",), decode_flags=("--one",), decode_environ={"SGLANG_PLUGINS": "kvfence"})
    assert one.flags_of("prefill") == ("--max-total-tokens", "1024", "--both")
    assert one.flags_of("decode") == ("--max-total-tokens", "8192", "--both", "--one")
    assert one.environ_of("prefill")["SGLANG_PLUGINS"] == "none"
    assert one.environ_of("decode")["SGLANG_PLUGINS"] == "kvfence"
    assert one.limit == 1018
