"""The recorded signatures are complete, and what reads them out of sources and out of live functions agrees."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acceptance.record_signatures import DATA, OLDEST, signature
from kvfence.errors import InputError
from kvfence.knowledge.releases import sglang_releases
from kvfence.plugin.sglang.arm import TARGETS
from kvfence.plugin.sglang.engine import NAMES
from kvfence.plugin.sglang.settings import UnknownRelease
from kvfence.plugin.sglang.signatures import demand_known, form_of, recorded, releases
from tests.plugin.sglang.conftest import Install
from tests.plugin.sglang.standin import Build

GUARDABLE = [str(release) for release in sglang_releases() if release >= OLDEST]


def test_every_release_with_a_plugin_interface_is_recorded() -> None:
    assert sorted(releases(recorded())) == sorted(GUARDABLE)
    assert len(GUARDABLE) == 16


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_recorded_in_every_release(target: str) -> None:
    assert list(recorded()[target]) == releases(recorded())


def test_nothing_else_is_recorded() -> None:
    assert tuple(recorded()) == TARGETS


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_recorded_in_every_release(name: str) -> None:
    names = json.loads(DATA.read_text(encoding="utf-8"))["names"]
    assert names[name].split() == releases(recorded())
    assert set(names) == set(NAMES)


names = st.lists(st.sampled_from("abcdefghijkl"), unique=True, max_size=8)


@st.composite
def definitions(draw: st.DrawFn) -> str:
    """Draw a function definition, with parameters of every kind."""
    given_names = draw(names)
    cuts = sorted(draw(st.lists(st.integers(0, len(given_names)), min_size=2, max_size=2)))
    before, middle, after = given_names[: cuts[0]], given_names[cuts[0] : cuts[1]], given_names[cuts[1] :]
    optional = draw(st.integers(0, len(before) + len(middle)))
    positional = [*before, *middle]
    words = [name + ("=1" if place >= optional else "") for place, name in enumerate(positional)]
    slash: bool = draw(st.booleans())
    if before and slash:
        words.insert(len(before), "/")
    star: str = draw(st.sampled_from(["*", "*rest"]))
    if after or star == "*rest":
        words.append(star)
    words += [name + draw(st.sampled_from(["", "=None", ": int = 3"])) for name in after]
    if draw(st.booleans()):
        words.append("**named")
    return f"def function({', '.join(words)}):\n    pass\n"


@given(source=definitions())
def test_a_source_and_its_function_have_the_same_form(source: str) -> None:
    made: dict[str, Any] = {}
    exec(source, made)
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    assert form_of(made["function"]) == signature(node)


def test_known_form() -> None:
    def function(first: int, second: int = 2, *rest: int, third: int, fourth: int = 4, **named: int) -> None: ...

    def keyed(first: int, *, second: int = 2) -> None: ...

    assert form_of(function) == "(first, second=, *rest, third, fourth=, **named)"
    assert form_of(keyed) == "(first, *, second=)"


@pytest.mark.parametrize("release", GUARDABLE)
def test_a_function_of_another_release_is_noticed_where_it_differs(install: Install, release: str) -> None:
    table = recorded()
    install(Build(release))
    for other in GUARDABLE:
        differ = [target for target in TARGETS if table[target][release] != table[target][other]]
        if differ:
            with pytest.raises(InputError, match="the guards know it as"):
                demand_known(other, TARGETS, UnknownRelease.STOP)
        else:
            demand_known(other, TARGETS, UnknownRelease.STOP)
