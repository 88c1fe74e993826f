"""Doubt about a page ends with the engine: it is fenced once, when no sound operation would be hurt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfence.fence import Prefill
from kvfence.fence.commands import (
    Compute,
    End,
    Fence,
    Write,
)
from kvfence.fence.events import (
    Abort,
    Completed,
    Computed,
    Copied,
    Errored,
    Expired,
    Fenced,
    Rejected,
    Sealed,
    Submit,
    Verified,
)
from kvfence.fence.messages import (
    Cancel,
    Ended,
    Epoch,
    Grant,
    Noted,
    Offer,
)
from kvfence.fence.outcome import (
    TIMED_OUT,
    TRANSFER,
)
from kvfence.fence.pool import FREE
from kvfence.fence.transfer import DOUBTFUL, DRAINED, Operation
from kvfence.fence.units import FULL, Unit
from kvfence.fence.worker import ENGINE
from tests.fence.playbook import (
    LEASE,
    REF,
    Playbook,
    config,
    decode,
    full,
    landed,
    offer,
    operations,
    prefill,
    receiving,
    request,
    restart,
    targets,
)


def doubtful(play: Playbook[Prefill], ref: str, *, others: int = 0) -> Playbook[Prefill]:
    """Let an operation of a one-page leg end in an error."""
    operation = Operation(ref, LEASE, Unit(FULL, 0), play.machine.legs[ref].pages[Unit(FULL, 0)], 9, 7, 1)
    assert sum(len(leg.ledger.open) for leg in play.machine.legs.values()) == others + 1
    return play.tell(Errored(operation))


def sending(play: Playbook[Prefill], *refs: str) -> Playbook[Prefill]:
    """Let one-page legs each have their operation open."""
    for number, ref in enumerate(refs):
        play.tell(Submit(request(1, ref, number), ref, "D0"), Computed(ref, 1), Sealed(ref, ((Unit(FULL, 0), ref),)))
        play.hear(Grant(ref, LEASE, 7, targets(9), True))
        assert len(play.of(Write)) == 1
    return play


def test_doubt_is_fenced_after_a_time() -> None:
    play = sending(prefill(), "a")
    assert doubtful(play, "a").timer(ENGINE) == 10.0
    play.gives_no(Fence)
    play.tell(Expired(ENGINE)).gives(Fence(1))


def test_a_fence_timer_without_doubt_does_nothing() -> None:
    prefill().tell(Expired(ENGINE)).gives()
    sending(prefill(), "a").tell(Expired(ENGINE)).gives()


@pytest.mark.parametrize(("bound", "at_once"), [(0.5, False), (0.25, False), (0.2, True), (0.0, True)])
def test_more_doubt_than_the_bound_is_fenced_without_waiting(bound: float, *, at_once: bool) -> None:
    play = doubtful(sending(prefill(config(quarantine_bound=bound)), "a"), "a")
    assert bool(play.of(Fence)) == at_once
    assert play.timer(ENGINE) == (None if at_once else 10.0)


@pytest.mark.parametrize("end", [Completed, Rejected, Errored])
def test_no_engine_is_fenced_while_a_sound_operation_is_open_and_none_begins_meanwhile(
    end: Callable[[Operation], object],
) -> None:
    play = sending(prefill(), "a", "b")
    (sound,) = operations(play)
    doubtful(play, "a", others=1)
    play.tell(Expired(ENGINE)).gives()
    play.tell(Submit(request(1, "c", 9), "c", "D0")).gives_no(Offer, Compute)
    play.tell(end(sound))
    assert Fence(1) in play.of(Fence)


def test_fencing_is_begun_once_however_much_more_is_in_doubt_before_it_is_done() -> None:
    play = sending(prefill(config(quarantine_bound=0.0)), "a", "b")
    (second,) = operations(play)
    doubtful(play, "a", others=1).gives_no(Fence)
    play.tell(Errored(second)).gives_of(Fence, Fence(1))
    play.tell(Expired(ENGINE), Abort("b"), Submit(request(1, "c", 9), "c", "D0")).gives_no(Fence)
    restart(play).gives_no(Fence)
    play.tell(Fenced(1)).gives_no(Fence)
    assert not play.machine.fencing


def test_decode_that_loses_several_peers_at_once_begins_fencing_once() -> None:
    play = decode(config(pages={FULL: 8}, slots=4, quarantine_bound=0.0))
    for number, name in enumerate("ab"):
        asked = request(1, name, number)
        play.tell(Submit(asked, name, "P0")).hear(offer(asked, name))
    restart(play).gives_of(Fence, Fence(1))
    play.tell(Expired(ENGINE)).gives()
    play.tell(Fenced(1)).gives_no(Fence)
    assert play.machine.arena.count(FREE) == 4


def test_fencing_is_asked_for_after_all_else_that_an_event_begins() -> None:
    play = doubtful(sending(prefill(config(quarantine_bound=0.0)), "a"), "a")
    assert play.got[-1] == Fence(1)


def test_the_next_engine_is_fenced_as_the_first_one_was() -> None:
    play = doubtful(sending(prefill(), "a"), "a").tell(Expired(ENGINE), Fenced(1))
    play.hear(Ended("a", TRANSFER, LEASE))
    sending(play, "b")
    (under_way,) = operations(play)
    assert play.tell(Errored(under_way)).timer(ENGINE) == 10.0
    play.tell(Expired(ENGINE)).gives(Fence(2))


@pytest.mark.parametrize("ref", ["fence", "", "None", "engine"])
def test_a_handoff_of_any_name_has_a_timer_of_its_own(ref: str) -> None:
    play = prefill().tell(Submit(request(1, "a"), ref, "D0"))
    assert (play.timer(ref), play.timer(ENGINE)) == (30.0, None)
    play.tell(Expired(ENGINE)).gives()
    play.tell(Expired(ref)).gives_of(Cancel, Cancel(ref, TIMED_OUT))


def test_decode_is_fenced_once_the_last_sound_operation_has_landed() -> None:
    play = decode(config(pages={FULL: 8}, lanes=1, quarantine_bound=1.0))
    receiving(play, request(1)).tell(Submit(request(2, "next"), "next", "P0"))
    second = play.hear(offer(request(2, "next"), "next")).the(Grant)
    play.tell(Abort(REF)).hear(Noted(REF, LEASE, DOUBTFUL)).tell(Expired(ENGINE)).gives()
    play.hear(landed(*second.targets, last=False, ref="next", epoch=second.epoch)).gives_of((Fence, Grant), Fence(1))
    play.tell(Copied("next", Unit(FULL, 0)), Verified("next", Unit(FULL, 0), True)).gives_no(Grant)
    play.tell(Fenced(1))
    assert play.the(Grant).engine == 2


def test_a_new_engine_frees_what_was_in_doubt_and_lets_go_on_what_waited() -> None:
    play = doubtful(sending(prefill(), "a"), "a").tell(Expired(ENGINE))
    play.tell(Submit(request(4, "c", 9), "c", "D0")).gives_no(Offer)
    play.hear(Ended("a", TRANSFER, LEASE)).gives_of((End, Noted), End("a", TRANSFER), Noted("a", LEASE, DOUBTFUL))
    play.tell(Fenced(1)).gives_of(Offer, offer(request(4, "c", 9), "c", born=Epoch(1, 2)))
    assert (play.machine.engine, list(play.machine.legs)) == (2, ["c"])
    play.tell(Computed("c", 4), Sealed("c", tuple((unit, "t") for unit in full(0, 1, 2, 3))))
    play.hear(Grant("c", LEASE, 7, targets(9), True))
    assert [one.sender for one in operations(play)] == [2]


def test_what_the_new_engine_cannot_prove_is_told_as_doubtful() -> None:
    """The pages that were read are free, and what was read may still be on its way to decode."""
    play = doubtful(sending(prefill(), "a"), "a").tell(Expired(ENGINE), Fenced(1))
    play.hear(Ended("a", TRANSFER, LEASE)).gives_of(Noted, Noted("a", LEASE, DOUBTFUL))
    play.hear(Ended("a", TRANSFER, LEASE)).gives_of(Noted, Noted("a", LEASE, DOUBTFUL))
    assert play.machine.pool.count(FREE) == 4


def test_over_shared_memory_a_new_sender_proves_that_all_has_drained() -> None:
    play = doubtful(sending(prefill(config(transport="shared-memory")), "a"), "a").tell(Expired(ENGINE), Fenced(1))
    play.hear(Ended("a", TRANSFER, LEASE)).gives_of(Noted, Noted("a", LEASE, DRAINED))


def test_news_of_an_engine_that_was_fenced_before_is_ignored() -> None:
    play = doubtful(sending(prefill(), "a"), "a").tell(Expired(ENGINE), Fenced(1))
    play.tell(Fenced(1), Fenced(0), Fenced(7)).gives()
    assert play.machine.engine == 2


def test_decode_lends_nothing_while_it_is_to_be_fenced_and_goes_on_with_the_new_engine() -> None:
    play = receiving(decode(config(pages={FULL: 8}, lanes=1, quarantine_bound=1.0)), request(1))
    play.tell(Abort(REF)).hear(Noted(REF, LEASE, DOUBTFUL))
    asked = request(1, "next")
    play.tell(Expired(ENGINE)).gives(Fence(1))
    play.tell(Submit(asked, "next", "P0")).hear(offer(asked, "next")).gives_no(Grant)
    play.tell(Fenced(1))
    assert play.the(Grant).engine == 2
