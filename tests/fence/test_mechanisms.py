"""Each mechanism is a switch of its own, and all are on unless switched off by name."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.fence.mechanisms import ALL, PROPERTIES, SERVES, SWITCHES, Mechanisms

NAMES = (
    "admission",
    "cancel-both",
    "binding",
    "coverage",
    "ready-before-send",
    "source-hold",
    "release-on-proof",
    "bounded-batches",
    "landing-arena",
    "tags",
    "canary",
    "clean-cache",
    "scope-salt",
    "scrub",
    "rank-agreement",
    "skew-refusal",
)


def test_the_switches_and_their_order() -> None:
    assert SWITCHES == NAMES


def test_all_are_on() -> None:
    assert Mechanisms() == ALL
    assert ALL.off == ()
    assert [value for name, value in asdict(ALL).items() if name != "release_after"] == [True] * len(NAMES)


@pytest.mark.parametrize("switch", NAMES)
def test_each_can_be_switched_off_singly(switch: str) -> None:
    weakened = ALL.without(switch)
    assert weakened.off == (switch,)
    before, after = asdict(ALL), asdict(weakened)
    assert [name for name in before if before[name] != after[name]] == [switch.replace("-", "_")]


@given(one=st.lists(st.sampled_from(NAMES)), more=st.lists(st.sampled_from(NAMES)))
def test_several_are_switched_off_together_or_after_another(one: list[str], more: list[str]) -> None:
    weakened = ALL.without(*one).without(*more)
    assert weakened == ALL.without(*one, *more)
    assert weakened.off == tuple(name for name in NAMES if name in {*one, *more})


@pytest.mark.parametrize("wrong", ["release_on_proof", "release-after", "Tags", "", "everything"])
def test_what_is_no_switch_is_refused_with_the_names_of_those_that_are(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a mechanism; the mechanisms are admission, cancel-both, ") as caught:
        ALL.without("tags", wrong)
    assert all(name in str(caught.value) for name in (repr(wrong), *NAMES))


def test_pages_return_at_once_without_proof_unless_seconds_are_given() -> None:
    assert ALL.without("release-on-proof").release_after == 0
    waiting = ALL.without("release-on-proof", release_after=30)
    assert waiting.release_after == 30
    assert waiting.off == ("release-on-proof",)


def test_what_else_is_switched_off_leaves_the_seconds_alone_unless_it_gives_some() -> None:
    waiting = ALL.without("release-on-proof", release_after=30)
    assert waiting.without("tags").release_after == 30
    assert waiting.without().release_after == 30
    assert waiting.without("tags", release_after=5).release_after == 5
    assert waiting.without("tags", release_after=0).release_after == 0
    assert ALL.without(release_after=7) == Mechanisms(release_after=7)


def test_switches_do_not_change_under_a_running_worker() -> None:
    with pytest.raises(FrozenInstanceError):
        ALL.tags = False  # type: ignore[misc]
    assert hash(ALL) == hash(Mechanisms())


def test_there_are_five_properties() -> None:
    assert list(PROPERTIES) == ["P1", "P2", "P3", "P4", "P5"]
    assert all(": " in text for text in PROPERTIES.values())


def test_every_switch_serves_properties_and_every_property_is_served() -> None:
    assert tuple(SERVES) == NAMES
    for served in SERVES.values():
        assert served
        assert list(served) == sorted(set(served))
    assert {name for served in SERVES.values() for name in served} == set(PROPERTIES)
