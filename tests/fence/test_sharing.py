"""A cached prefix is shared only within its scope, is not lost while it is in use, and leaves when it is bad."""

from __future__ import annotations

from typing import Any

import pytest

from kvfence.fence import Decode, Prefill
from kvfence.fence.commands import (
    Answer,
    Check,
    Compute,
    Scrub,
    Seal,
    Step,
)
from kvfence.fence.events import (
    Checked,
    Computed,
    Copied,
    Diverged,
    Sealed,
    Submit,
    Verified,
)
from kvfence.fence.messages import (
    Cancel,
    Ended,
    Grant,
    Landed,
    Noted,
)
from kvfence.fence.outcome import (
    ABORTED,
    CANARY,
    PREEMPTED,
)
from kvfence.fence.pool import FREE, LIVE
from kvfence.fence.prefix import ROOT
from kvfence.fence.statement import Request
from kvfence.fence.transfer import DRAINED
from kvfence.fence.units import FULL, LATENT, RECURRENT, ROW, Layout, Unit
from tests.fence.playbook import (
    REF,
    Playbook,
    config,
    decode,
    full,
    landed,
    offer,
    prefill,
    request,
    targets,
    without,
)

CACHED = config(prefix_cache=True)


def cached(play: Playbook[Any]) -> list[tuple[int, ...]]:
    """Give the tokens of every cached page, with all that come before them."""
    prefixes = {page: prefix for prefix, page in play.machine.index.pages.items()}

    def whole(page: int) -> tuple[int, ...]:
        prefix = prefixes[page]
        return (*(whole(prefix.before) if prefix.before != ROOT else ()), *prefix.tokens)

    return sorted(whole(page) for page in prefixes)


def served(play: Playbook[Prefill], asked: Request) -> Compute:
    """Serve a request on prefill, and give what had to be computed."""
    ref = asked.id
    play.tell(Submit(asked, ref, "D0"))
    if play.of(Check):
        play.tell(Checked(ref, ()))
    compute: Compute = play.the(Compute)
    play.tell(Computed(ref, asked.length))
    while play.machine.legs[ref].busy:
        play.tell(Sealed(ref, ()))
    play.hear(Ended(ref, ABORTED, None))
    assert ref not in play.machine.legs
    return compute


def test_a_prefix_that_is_cached_is_not_computed_again_but_read() -> None:
    play = prefill(CACHED)
    assert served(play, request(3, "a", scope="s"))[2:] == (0, 3, targets(0, 1, 2), ())
    assert play.machine.pool.count(LIVE) == 3
    compute = served(play, request(3, "b", scope="s"))
    assert (compute.start, compute.pages, compute.context) == (2, targets(3, first=2), targets(0, 1))


def test_units_of_a_cached_prefix_are_sealed_for_the_lease_of_their_new_request() -> None:
    play = prefill(CACHED)
    served(play, request(3, "a", scope="s"))
    play.tell(Submit(request(3, "b", scope="s"), REF, "D0"))
    assert [(unit, page, binding.request) for unit, page, binding in play.the(Seal).units] == [
        (Unit(FULL, 0), 0, "b"),
        (Unit(FULL, 1), 1, "b"),
    ]


@pytest.mark.parametrize("other", [{"scope": "t"}, {"adapter": "x"}, {"content": "image"}, {"tokens": (5, 6, 7)}])
def test_a_prefix_of_another_scope_adapter_content_or_prompt_is_no_hit(other: dict[str, Any]) -> None:
    play = prefill(config(prefix_cache=True, pages={FULL: 8}))
    served(play, request(3, "a", scope="s"))
    assert served(play, request(3, "b", scope="s")._replace(**other)).start == 0


def test_a_page_that_only_the_cache_holds_makes_room_the_least_recently_used_first() -> None:
    play = prefill(CACHED)
    for name, first in (("a", 0), ("b", 10), ("c", 20)):
        served(play, request(1, name, first))
    served(play, request(2, "a again", 0, scope="tenant a"))
    assert served(play, request(1, "d", 30)).pages == targets(1)
    assert cached(play) == [(0,), (0, 1), (20,), (30,)]


def test_a_page_in_use_is_never_given_to_another_request() -> None:
    play = prefill(CACHED)
    served(play, request(3, "a", scope="s"))
    play.tell(Submit(request(3, "b", scope="s"), "b", "D0")).tell(Submit(request(3, "c", 10), "c", "D0"))
    play.gives_no(Compute, Scrub)
    assert [play.machine.pool.state(page) for page in (0, 1)] == [LIVE, LIVE]
    play = prefill(CACHED)
    served(play, request(3, "a", scope="s"))
    play.tell(Submit(request(1, "b", 10), "b", "D0")).tell(Submit(request(4, "c", scope="s"), "c", "D0")).gives_no(
        Scrub
    )
    assert len(play.machine.index.pages) == 3


def test_a_prefix_of_several_kinds_is_computed_from_its_end_on() -> None:
    layout = Layout(1, (FULL, LATENT))
    play = prefill(config(prefix_cache=True, layout=layout, pages={FULL: 8, LATENT: 8}))
    served(play, request(4, "a", scope="s"))
    assert served(play, request(4, "b", scope="s")).start == 3


def test_prefill_checks_what_a_chunk_reads_and_a_bad_page_leaves_the_cache_with_what_was_derived_from_it() -> None:
    play = prefill(CACHED)
    served(play, request(4, "a", scope="s"))
    play.tell(Submit(request(4, "b", scope="s"), REF, "D0")).gives_no(Compute)
    assert play.the(Check).pages == targets(0, 1, 2)
    play.tell(Checked(REF, full(1))).gives_of((Cancel, Compute), Cancel(REF, CANARY))
    assert cached(play) == [(0,)]


def test_caching_needs_a_layout_whose_kinds_are_kept_for_all_tokens() -> None:
    layout = Layout(1, (FULL, RECURRENT))
    play = prefill(config(layout=layout, pages={FULL: 8, RECURRENT: 2}, prefix_cache=True))
    served(play, request(3, "a", scope="s"))
    assert served(play, request(3, "b", scope="s")).start == 0
    assert play.machine.pool.count(FREE) == 10


def begun(play: Playbook[Decode], name: str) -> Grant:
    """Let a request of three tokens begin on decode, and give what it asked for."""
    asked = request(3, name, scope="s")
    given: Grant = play.tell(Submit(asked, name, "P0")).hear(offer(asked, name)).the(Grant)
    return given


def brought(play: Playbook[Decode], name: str, given: Grant) -> Playbook[Decode]:
    """Bring what was asked for, up to the commit."""
    play.hear(Landed(name, given.epoch, tuple((unit, place, "tag") for unit, place in given.targets), True))
    play.tell(*(Copied(name, unit) for unit, _ in given.targets))
    return play.tell(*(Verified(name, unit, True) for unit, _ in given.targets))


def committed(play: Playbook[Decode], name: str) -> Grant:
    """Bring a request of three tokens to its commit on decode, let prefill know, and give what it asked for."""
    given = begun(play, name)
    brought(play, name, given).hear(Noted(name, given.epoch, DRAINED))
    return given


ROOMY = config(prefix_cache=True, pages={FULL: 12}, slots=4, lanes=4)


def test_decode_asks_only_for_what_its_cache_lacks() -> None:
    play = decode(ROOMY)
    assert [unit for unit, _ in committed(play, "a").targets] == list(full(0, 1, 2))
    assert [unit for unit, _ in committed(play, "b").targets] == list(full(2))
    play.tell(Checked("b", ()))
    assert [page for _, page in play.the(Step).pages] == [0, 1, 4]


def test_a_page_that_failed_its_check_leaves_the_cache_with_all_that_was_derived_from_it() -> None:
    play = decode(ROOMY)
    committed(play, "a")
    committed(play, "b")
    play.tell(Checked("b", full(1))).gives_of(Answer, Answer("b", "b", CANARY))
    assert cached(play) == [(0,)]
    assert [unit for unit, _ in committed(play, "c").targets] == list(full(1, 2))


def test_without_a_clean_cache_a_bad_page_stays_in_it() -> None:
    play = decode(without("clean-cache", prefix_cache=True, pages={FULL: 12}, slots=4, lanes=4))
    committed(play, "a")
    play.tell(Checked("a", full(0)))
    assert len(play.machine.index.pages) == 3


def test_only_whole_pages_of_the_prompt_are_cached_and_no_page_that_the_answer_is_written_to() -> None:
    layout = Layout(2, (FULL, ROW))
    play = decode(config(prefix_cache=True, layout=layout, pages={FULL: 4, ROW: 1}, slots=4, lanes=4))
    asked = request(3)
    play.tell(Submit(asked, REF, "P0")).hear(offer(asked, layout=layout))
    given = play.the(Grant).targets
    play.hear(landed(*given)).tell(*(Copied(REF, unit) for unit, _ in given))
    play.tell(*(Verified(REF, unit, True) for unit, _ in given))
    assert cached(play) == [(0, 1)]


def test_pages_that_go_on_from_a_cached_prefix_leave_before_it() -> None:
    """The least recently used page goes first, and no page is younger than what goes on from it."""
    play = prefill(config(prefix_cache=True, pages={FULL: 4}, chunk_tokens=1))
    asked = request(4, "a")
    play.tell(Submit(asked, "a", "D0"))
    for stop in range(1, 5):
        play.tell(Computed("a", stop))
        while not play.of(Compute) and play.machine.legs["a"].busy:
            play.tell(Checked("a", ()) if stop < 4 and play.of(Check) else Sealed("a", ()))
    play.hear(Ended("a", ABORTED, None))
    for left in (4, 3, 2, 1):
        assert cached(play) == [asked.tokens[:end] for end in range(1, left + 1)]
        (oldest,) = play.machine.index.remove(play.machine.index.oldest()[0])
        play.machine.pool.drop(oldest)


def test_a_shared_page_that_has_left_the_cache_stays_out_of_it_with_what_goes_on_from_it() -> None:
    """It may have left as bad, and nothing could hit what goes on from a page that is not there."""
    play = prefill(config(prefix_cache=True, pages={FULL: 10}))
    served(play, request(3, "a", scope="s"))
    play.tell(Submit(request(4, "b", scope="s"), "b", "D0"), Checked("b", ()))
    for page in play.machine.index.oldest():
        play.machine.index.remove(page)
        play.machine.pool.drop(page)
    play.tell(Computed("b", 4))
    assert cached(play) == []
    assert served(play, request(5, "c", scope="s")).start == 0


@pytest.mark.parametrize("bad", [0, 1])
def test_a_page_that_decode_finds_bad_does_not_come_back_with_another_commit_that_shares_it(bad: int) -> None:
    play = decode(ROOMY)
    committed(play, "a")
    given = begun(play, "b")
    assert [unit for unit, _ in given.targets] == list(full(2))
    play.tell(Checked("a", full(bad)))
    clean = [(0, 1, 2)[:end] for end in range(1, bad + 1)]
    assert cached(play) == clean
    brought(play, "b", given).gives_no(Step)
    assert cached(play) == clean
    assert [unit for unit, _ in begun(play, "c").targets] == list(full(*range(bad, 3)))


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_page_that_prefill_finds_bad_does_not_come_back_with_another_leg_that_computes_on(bad: int) -> None:
    play = prefill(config(prefix_cache=True, pages={FULL: 12}))
    served(play, request(3, "a", scope="s"))
    play.tell(Submit(request(4, "b", scope="s"), "b", "D0"), Checked("b", ()))
    assert play.the(Compute).start == 3
    play.tell(Submit(request(4, "c", scope="s"), "c", "D0"), Checked("c", full(bad)))
    clean = [(0, 1, 2)[:end] for end in range(1, bad + 1)]
    assert cached(play) == clean
    play.tell(Computed("b", 4))
    assert cached(play) == clean


def test_pages_of_a_leg_enter_the_cache_where_what_they_go_on_from_is_still_there() -> None:
    play = prefill(config(prefix_cache=True, pages={FULL: 10}))
    served(play, request(3, "a", scope="s"))
    play.tell(Submit(request(4, "b", scope="s"), "b", "D0"), Checked("b", ()), Computed("b", 4))
    assert cached(play) == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]


def test_ranks_that_diverged_forget_the_prefix_and_the_next_attempt_starts_from_nothing() -> None:
    play = prefill(config(prefix_cache=True, pages={FULL: 8}))
    served(play, request(3, "a", scope="s"))
    served(play, request(3, "other", scope="t"))
    play.tell(Submit(request(3, "b", scope="s"), "b", "D0"))
    play.tell(Diverged("b")).gives_of(Cancel, Cancel("b", PREEMPTED))
    assert [prefix.scope for prefix in play.machine.index.pages] == ["t", "t", "t"]
    for event in (Checked("b", ()), Sealed("b", ())):
        play.tell(event)
    play.hear(Ended("b", PREEMPTED, None))
    assert play.machine.pool.count(LIVE) == 3
    assert served(play, request(3, "again", scope="s")).start == 0


def test_a_rank_without_that_prefix_ends_the_attempt_as_well() -> None:
    play = prefill(CACHED)
    play.tell(Submit(request(3, "b", scope="s"), "b", "D0"))
    play.tell(Diverged("b")).gives_of(Cancel, Cancel("b", PREEMPTED))
    play.tell(Diverged("unknown")).gives()
