"""The page of the plugin names every guard, setting and feature there is, and no other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kvfence.plugin.sglang.limits import Limits
from kvfence.plugin.sglang.presence import GUARDS, Presence
from kvfence.plugin.sglang.settings import PREFIX, Settings
from kvfence.plugin.sglang.signatures import recorded, releases
from kvfence.plugin.sglang.suited import UNTRIED
from kvfence.plugin.sglang.tally import Tally

PAGE = (Path(__file__).parents[3] / "docs/sglang-plugin.md").read_text()


def first_cells(heading: str) -> list[str]:
    """Give the first column of the table under a heading."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [row.split("|")[1].strip(" `") for row in re.findall(r"^\|.*\|$", part, re.MULTILINE)[2:]]


def test_every_setting_is_described() -> None:
    assert first_cells("Settings") == [PREFIX + field.name.upper() for field in dataclasses.fields(Settings)]


def test_every_guard_is_described() -> None:
    assert first_cells("What the guards do") == list(GUARDS)


def test_every_untried_feature_is_described() -> None:
    assert first_cells("What it was run with") == list(UNTRIED)


def test_releases_are_those_recorded() -> None:
    known = releases(recorded())
    assert f"{known[0]} to {known[-1]}" in PAGE


def test_line_in_the_log_is_the_one_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        Presence("0.5.23", Settings(), Limits(None), Tally()).announce("prefill", metrics=False)
    assert f"\n{caplog.records[-1].getMessage()}\n" in PAGE
