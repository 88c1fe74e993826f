"""A peer that can do less is refused with the reason, and one that can do more is welcome."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.fence.capabilities import VERSION, Capabilities, agreed_tag, mismatch
from kvfence.fence.tags import Algorithm
from kvfence.fence.units import FULL, LATENT, ROW, Layout

MINE = Capabilities(
    version=(1, 0),
    limit=1000,
    layout=Layout(16, (FULL, ROW), head_shards=2),
    ranks=2,
    model="model@1",
    tags=("blake3-keyed",),
    canary=True,
    transport="mooncake-tcp-push",
)
WORSE = {
    "message version 2, not 1": MINE._replace(version=(2, 0)),
    "transport tcp-epoch, not mooncake-tcp-push": MINE._replace(transport="tcp-epoch"),
    "model 'model@2', not 'model@1'": MINE._replace(model="model@2"),
    "4 ranks, not 2": MINE._replace(ranks=4),
    "no unit of KV in common between the layouts": MINE._replace(layout=MINE.layout._replace(head_shards=4)),
    "no tag algorithm in common": MINE._replace(tags=("xxh3-128",)),
    "no slot canaries": MINE._replace(canary=False),
}


def test_a_peer_alike_is_welcome() -> None:
    assert mismatch(MINE, MINE._replace()) is None


@pytest.mark.parametrize("reason", WORSE)
def test_a_peer_that_differs_in_one_thing_is_refused_with_it(reason: str) -> None:
    assert mismatch(MINE, WORSE[reason]) == reason


@pytest.mark.parametrize(
    "more",
    [
        MINE._replace(version=(1, 7)),
        MINE._replace(limit=1),
        MINE._replace(limit=10**6),
        MINE._replace(tags=("xxh3-128", "blake3-keyed", "later-1")),
    ],
    ids=str,
)
def test_another_minor_version_or_limit_and_more_tags_are_welcome(more: Capabilities) -> None:
    assert mismatch(MINE, more) is None


def test_what_this_worker_lacks_it_does_not_ask_for() -> None:
    old = MINE._replace(tags=(), canary=False)
    assert mismatch(old, MINE) is None
    assert mismatch(MINE, old) == "no tag algorithm in common"
    assert mismatch(MINE._replace(tags=()), old) == "no slot canaries"


def test_an_older_minor_version_is_understood() -> None:
    assert mismatch(MINE._replace(version=(1, 3)), MINE) is None
    assert mismatch(MINE._replace(version=(0, 3)), MINE) == "message version 1, not 0"


def test_widths_may_differ_where_pages_are_the_same_on_every_rank() -> None:
    latent = MINE._replace(layout=Layout(64, (LATENT, ROW), head_shards=8))
    assert mismatch(latent, latent._replace(layout=Layout(64, (LATENT, ROW), head_shards=1))) is None


def test_the_first_of_several_reasons_is_given() -> None:
    reasons = list(WORSE)
    everything = Capabilities(
        (2, 0), 1, Layout(1, (ROW,)), 4, "model@2", ("xxh3-128",), canary=False, transport="tcp-epoch"
    )
    for reason in reasons:
        assert mismatch(MINE, everything) == reason
        field = next(name for name in MINE._fields if getattr(WORSE[reason], name) != getattr(MINE, name))
        everything = everything._replace(**{field: getattr(MINE, field)})
    assert mismatch(MINE, everything) is None


known = st.sets(st.sampled_from([one.value for one in Algorithm])).map(tuple)
names = st.sets(st.sampled_from(["xxh3-128", "blake3-keyed", "later-1"])).map(tuple)


@given(mine=known, theirs=names, canary=st.booleans(), other=st.booleans())
def test_what_is_promised_is_kept_with_every_peer_that_is_not_refused(
    mine: tuple[str, ...], theirs: tuple[str, ...], *, canary: bool, other: bool
) -> None:
    refused = mismatch(MINE._replace(tags=mine, canary=canary), MINE._replace(tags=theirs, canary=other))
    tagged = not mine or bool(set(mine) & set(theirs))
    assert (refused is None) == (tagged and (other or not canary))


@given(mine=known, theirs=names)
def test_the_strongest_of_both_is_agreed_on(mine: tuple[str, ...], theirs: tuple[str, ...]) -> None:
    common = [one for one in Algorithm if one.value in mine and one.value in theirs]
    assert agreed_tag(mine, theirs) == (common[-1] if common else None)


def test_what_a_worker_does_not_offer_it_does_not_fall_back_to() -> None:
    assert agreed_tag(("blake3-keyed",), ("xxh3-128",)) is None
    assert agreed_tag(("xxh3-128",), ("xxh3-128", "blake3-keyed")) is Algorithm.XXH3_128
    assert agreed_tag(("xxh3-128", "blake3-keyed"), ("xxh3-128",)) is Algorithm.XXH3_128
    assert agreed_tag((), ("blake3-keyed",)) is None


def test_version_is_major_and_minor() -> None:
    assert VERSION == (1, 0)
    assert mismatch(MINE._replace(version=VERSION), MINE) is None
