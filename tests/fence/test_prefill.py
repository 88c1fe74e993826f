"""The prefill leg: when a page may be sent, how long it is held, and how every ending is reached."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfence.fence import Prefill
from kvfence.fence.commands import (
    Check,
    Compute,
    End,
    Fence,
    Scrub,
    Seal,
    Timer,
    Write,
)
from kvfence.fence.events import (
    Abort,
    Checked,
    Completed,
    Computed,
    Errored,
    Expired,
    Preempt,
    Refuse,
    Rejected,
    Sealed,
    Submit,
)
from kvfence.fence.messages import (
    Cancel,
    Ended,
    Epoch,
    Grant,
    Heard,
    Landed,
    Noted,
    Offer,
)
from kvfence.fence.outcome import (
    ABORTED,
    BUDGET,
    CANARY,
    COMMITTED,
    COVERAGE,
    PREEMPTED,
    RESTARTED,
    TIMED_OUT,
    TRANSFER,
)
from kvfence.fence.tags import Binding
from kvfence.fence.transfer import DOUBTFUL, DRAINED, PENDING, Operation
from kvfence.fence.units import FULL, ROW, Layout, Unit
from kvfence.fence.worker import ENGINE
from tests.fence.playbook import (
    BORN,
    D0,
    LEASE,
    PREFILL_STATES,
    REF,
    Playbook,
    computing,
    config,
    finish_local_work,
    full,
    grant,
    granted,
    landed,
    offer,
    operations,
    prefill,
    queued,
    ready,
    request,
    sealed,
    sealing,
    sent,
    tag,
    targets,
    without,
    writing,
)

Play = Playbook[Prefill]
ASKED = request()
OTHER = request(name="other", first=10)


def operation(index: int, target: int, ref: str = REF) -> Operation:
    return Operation(ref, LEASE, Unit(FULL, index), index, target, 1, 1)


each_state = pytest.mark.parametrize("state", PREFILL_STATES, ids=lambda state: state.__name__)


# The whole life


def test_a_leg_offers_computes_seals_writes_what_is_granted_and_ends_as_decode_says() -> None:
    play = prefill()
    pages = targets(0, 1)
    bound = tuple(
        (unit, page, Binding(REF, "r", "tenant r", BORN, FULL, unit.index, 1, 0)) for unit, page in targets(0, 1)
    )
    writes = [Write(Operation(REF, LEASE, unit, page, page + 4, 7, 1), D0) for unit, page in pages]
    wait = Timer(REF, 30.0)
    play.tell(Submit(ASKED, REF, "D0"))
    play.gives(wait, Scrub((0, 1)), offer(ASKED), wait, Compute(REF, ASKED, 0, 2, pages, ()))
    play.tell(Computed(REF, 2)).gives(Seal(REF, bound))
    play.tell(sealed(0, 1)).gives()
    play.hear(grant(4, 5)).gives(wait, *writes)
    play.tell(Completed(writes[0].operation)).gives()
    play.tell(Completed(writes[1].operation)).gives(landed(*targets(4, 5)), wait)
    play.hear(Ended(REF, COMMITTED, LEASE))
    play.gives(Timer(REF, 0), End(REF, COMMITTED), Noted(REF, LEASE, DRAINED))
    assert not play.machine.legs
    assert play.machine.pool.count("free") == 4


# Waiting for pages


def test_requests_are_served_in_the_order_they_came_even_if_a_later_one_would_fit() -> None:
    play = prefill()
    play.tell(Submit(request(3), "first", "D0"))
    play.tell(Submit(request(2, "large", 10), "second", "D0"), Submit(request(1, "small", 20), "third", "D0"))
    play.gives_no(Offer, Compute)
    play.tell(Computed("first", 3), Sealed("first", ()))
    play.hear(Ended("first", ABORTED, None))
    assert [made.ref for made in play.of(Offer)] == ["second", "third"]


def test_one_that_gives_up_in_the_queue_lets_the_next_one_through() -> None:
    play = prefill()
    queued(play)
    play.tell(Submit(request(1, "small", 30), "small", "D0"))
    play.tell(Computed("holder", 4), Sealed("holder", ()), Abort(REF)).hear(Ended("holder", ABORTED, None))
    play.gives_of(Offer, offer(request(1, "small", 30), "small", born=Epoch(1, 2)))


# Readiness


def test_a_chunk_is_computed_after_the_other_and_a_page_is_ready_with_its_last_token() -> None:
    layout = Layout(2, (FULL, ROW))
    play = prefill(config(layout=layout, pages={FULL: 4, ROW: 1}, chunk_tokens=3))
    asked = request(5)
    play.tell(Submit(asked, REF, "D0"))
    assert play.the(Compute)[2:4] == (0, 3)
    play.tell(Computed(REF, 3)).gives_no(Compute)
    assert [unit for unit, *_ in play.the(Seal).units] == [Unit(FULL, 0)]
    assert play.the(Check).pages == ((Unit(FULL, 0), 0),)
    play.tell(Checked(REF, ()))
    assert play.the(Compute)[2:4] == (3, 5)
    assert play.the(Compute).context == ((Unit(FULL, 0), 0),)
    play.tell(Computed(REF, 5)).gives_no(Compute, Check)
    assert [(unit, binding.valid) for unit, _, binding in play.the(Seal).units] == [
        (Unit(FULL, 1), 2),
        (Unit(FULL, 2), 1),
        (Unit(ROW, 0), 5),
    ]


def test_a_chunk_that_would_read_a_bad_page_is_not_computed() -> None:
    play = prefill(config(chunk_tokens=1))
    play.tell(Submit(ASKED, REF, "D0"), Computed(REF, 1))
    play.tell(Checked(REF, full(0))).gives(Cancel(REF, CANARY), Timer(REF, 1.0))
    play.tell(Submit(ASKED, "other", "D0"), Computed("other", 1), Abort("other"))
    play.tell(Checked("other", full(0))).gives()


def test_without_canaries_a_chunk_follows_at_once() -> None:
    play = prefill(without("canary", chunk_tokens=1)).tell(Submit(ASKED, REF, "D0"), Computed(REF, 1))
    assert [made[2:4] for made in play.of(Compute)] == [(0, 1), (1, 2)]


def test_nothing_is_written_before_its_tag_was_made() -> None:
    play = prefill(config(chunk_tokens=1))
    computing(play)
    play.hear(grant(4, 5)).gives(Timer(REF, 30.0))
    play.tell(Computed(REF, 1)).gives_no(Write)
    play.tell(sealed(0)).gives_of(Write, Write(operation(0, 4)._replace(engine=7), D0))
    play.tell(Computed(REF, 2)).gives_no(Write)
    play.tell(sealed(1)).gives_of(Write, Write(operation(1, 5)._replace(engine=7), D0))


def test_the_tag_that_is_sent_is_the_one_made_at_completion() -> None:
    play = prefill()
    writing(play)
    play.tell(sealed(), *(Completed(one) for one in operations(play)))
    assert play.the(Landed).units == tuple((unit, place, tag(unit)) for unit, place in targets(4, 5))


def test_without_ready_before_send_a_page_is_sealed_and_sent_before_it_is_computed() -> None:
    play = prefill(without("ready-before-send"))
    computing(play)
    play.hear(grant(4, 5))
    assert [unit for unit, *_ in play.the(Seal).units] == list(full(0, 1))
    play.tell(sealed(0, 1))
    assert len(play.of(Write)) == 2
    play.tell(Computed(REF, 2)).gives()


def test_a_worker_without_tags_sends_what_is_computed_and_says_that_it_has_none() -> None:
    play = prefill(without("tags"))
    granted(play)
    play.tell(Computed(REF, 2)).gives_no(Seal)
    play.tell(*(Completed(one) for one in operations(play)))
    assert [claimed for *_, claimed in play.the(Landed).units] == [None, None]


# Writing


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_never_more_operations_are_open_than_there_are_lanes(lanes: int) -> None:
    play = ready(prefill(config(lanes=lanes)), 4).hear(grant(4, 5, 6, 7))
    under_way = operations(play)
    while under_way:
        assert len(under_way) <= lanes
        assert len(play.machine.legs[REF].ledger.open) == len(under_way)
        play.tell(Completed(under_way.pop(0)))
        under_way += operations(play)
    assert len(play.the(Landed).units) == 4


def test_without_bounded_batches_all_that_is_granted_is_begun_at_once() -> None:
    play = ready(prefill(without("bounded-batches", lanes=1)), 4).hear(grant(4, 5, 6, 7))
    assert len(play.of(Write)) == 4


def test_a_batch_is_announced_once_all_of_it_completed_and_the_last_one_says_so() -> None:
    play = ready(prefill(), 4).hear(grant(4, 5, last=False))
    first, second = operations(play)
    play.tell(Completed(second)).gives_no(Landed)
    play.tell(Completed(first)).gives_of(Landed, landed(*targets(4, 5), last=False))
    play.hear(grant(5, 4, first=2))
    play.tell(*(Completed(one) for one in operations(play)))
    play.gives_of(Landed, landed(*targets(5, 4, first=2)))


def test_a_grant_for_a_unit_that_is_not_held_ends_the_handoff() -> None:
    play = ready(prefill()).hear(grant(4, 5, 6))
    play.gives(Cancel(REF, COVERAGE), Timer(REF, 1.0))


def test_without_coverage_targets_beyond_the_prompt_go_unnoticed() -> None:
    play = ready(prefill(without("coverage"))).hear(grant(4, 5, 6, last=False))
    play.tell(*(Completed(one) for one in operations(play))).gives_of(Landed, landed(*targets(4, 5)))


def test_an_empty_last_grant_is_answered_at_once() -> None:
    ready(prefill()).hear(grant()).gives_of(Landed, landed())


def test_a_grant_while_the_last_one_is_under_way_is_ignored() -> None:
    play = prefill()
    writing(play)
    play.hear(grant(6, 7), grant(4, 5)).gives()
    play = prefill()
    granted(play)
    play.hear(grant(6, 7)).gives()
    play.tell(Computed(REF, 2), sealed(0, 1))
    assert [one.target for one in operations(play)] == [4, 5]


@pytest.mark.parametrize("again", [(0, 1), (1, 0), (0,), (1,), (2, 0), (1, 2)], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_no_unit_is_written_twice_whatever_a_grant_that_comes_again_is_mixed_with(
    again: tuple[int, ...], *, last: bool
) -> None:
    """Its target may have been copied out since, and lent to somebody else."""
    play = ready(prefill(), 3).hear(grant(4, 5, last=False))
    play.tell(*(Completed(one) for one in operations(play))).gives_of(Landed, landed(*targets(4, 5), last=False))
    second = Grant(REF, LEASE, 7, tuple((Unit(FULL, index), 4 + index) for index in again), last)
    play.hear(second, second).gives()
    play.hear(grant(5, first=2))
    assert [(one.unit.index, one.target) for one in operations(play)] == [(2, 5)]


def test_a_grant_that_names_a_unit_twice_has_it_written_once() -> None:
    play = ready(prefill()).hear(Grant(REF, LEASE, 7, (*targets(4, 5), *targets(6)), True))
    assert sorted((one.unit.index, one.target) for one in operations(play)) == [(0, 6), (1, 5)]


def test_a_grant_of_another_lease_is_ignored() -> None:
    play = ready(prefill(), 4).hear(grant(4, 5, last=False))
    play.tell(*(Completed(one) for one in operations(play)))
    play.hear(grant(4, 5, first=2, epoch=Epoch(1, 2)), grant(4, 5, first=2, epoch=Epoch(2, 1))).gives()


def test_a_grant_after_the_last_one_is_ignored() -> None:
    play = prefill()
    sent(play)
    play.hear(grant(4, 5)).gives()


def test_a_grant_for_a_reference_that_is_not_known_is_ignored() -> None:
    prefill().hear(grant(4, 5)).gives()


def test_reports_on_operations_that_are_not_open_are_ignored() -> None:
    play = prefill()
    sent(play)
    play.tell(Completed(operation(0, 4)), Errored(operation(1, 5)), Completed(operation(0, 4, "unknown"))).gives()
    play.tell(Computed("unknown", 1), Sealed("unknown", ())).gives()


# Giving up


CAUSES = [(Abort(REF), ABORTED), (Refuse(REF, BUDGET), BUDGET), (Preempt(REF), PREEMPTED), (Expired(REF), TIMED_OUT)]
each_cause = pytest.mark.parametrize(("event", "outcome"), CAUSES, ids=[outcome for _, outcome in CAUSES])


@each_state
@each_cause
def test_whatever_ends_a_leg_it_begins_nothing_more_and_asks_decode(
    state: Callable[[Play], None], event: object, outcome: str
) -> None:
    play = prefill()
    state(play)
    open_before = operations(play)
    play.tell(event).gives(Cancel(REF, outcome), Timer(REF, 1.0))
    play.hear(grant(4, 5)).gives()
    finish_local_work(play, state)
    play.gives_no(Write, Landed, Seal)
    play.tell(*(Completed(one) for one in open_before)).gives_no(Write, Landed)
    play.hear(Ended(REF, outcome, None)).gives_of((End, Noted), End(REF, outcome), Noted(REF, None, DRAINED))
    assert REF not in play.machine.legs


@each_state
def test_decode_may_end_a_leg_in_any_state_and_its_pages_wait_for_local_work(state: Callable[[Play], None]) -> None:
    play = prefill()
    state(play)
    under_way = operations(play)
    play.hear(Ended(REF, RESTARTED, LEASE))
    play.gives_of((End, Noted), End(REF, RESTARTED), Noted(REF, LEASE, PENDING if under_way else DRAINED))
    assert (REF in play.machine.legs) == (state in {computing, sealing, granted, writing})
    finish_local_work(play, state)
    play.tell(*(Completed(one) for one in under_way))
    assert REF not in play.machine.legs
    assert play.machine.past.stones[REF, None].outcome == RESTARTED


@each_state
def test_what_decode_has_committed_stands_although_this_side_gave_up(state: Callable[[Play], None]) -> None:
    play = prefill()
    state(play)
    play.tell(Abort(REF)).hear(Ended(REF, COMMITTED, LEASE)).gives_of(End, End(REF, COMMITTED))


def test_a_leg_gives_up_once_only() -> None:
    play = prefill()
    sealing(play)
    play.tell(Abort(REF))
    play.tell(Refuse(REF, BUDGET), Preempt(REF), Abort(REF)).gives()
    play.hear(Ended(REF, ABORTED, None))
    play.tell(Refuse(REF, BUDGET), Preempt(REF), Abort(REF), Expired(REF)).gives()


def test_events_for_a_reference_that_is_not_known_are_ignored() -> None:
    prefill().tell(Abort("x"), Refuse("x", BUDGET), Preempt("x"), Expired("x")).gives()


def test_a_cancel_is_said_so_often_and_then_the_peer_counts_as_gone() -> None:
    play = prefill(config(tries=3))
    ready(play).tell(Abort(REF))
    play.tell(Expired(REF)).gives(Cancel(REF, ABORTED), Timer(REF, 1.0))
    play.tell(Expired(REF)).gives(Cancel(REF, ABORTED), Timer(REF, 1.0))
    play.tell(Expired(REF)).gives(Timer(REF, 0), End(REF, ABORTED))
    assert play.machine.pool.count("free") == 4


def test_a_peer_that_has_heard_the_cancel_is_asked_on() -> None:
    play = prefill(config(tries=2))
    ready(play).tell(Abort(REF))
    for _ in range(5):
        play.hear(Heard(REF)).gives()
        play.tell(Expired(REF)).gives(Cancel(REF, ABORTED), Timer(REF, 1.0))
    play.tell(Expired(REF)).gives(Cancel(REF, ABORTED), Timer(REF, 1.0))
    play.tell(Expired(REF)).gives_of(End, End(REF, ABORTED))
    play.hear(Heard(REF)).gives()


@pytest.mark.parametrize(("wait", "retry", "believed"), [(30.0, 1.0, 34), (2.0, 1.0, 6), (2.0, 4.0, 5)])
def test_a_peer_that_has_always_heard_and_never_ends_counts_as_gone_in_the_end(
    wait: float, retry: float, believed: int
) -> None:
    """Decode decides within its time to wait, so one that asks for patience beyond that is not there to decide."""
    play = ready(prefill(config(tries=4, wait_seconds=wait, retry_seconds=retry))).tell(Abort(REF))
    asked = 1
    while not play.of(End):
        play.hear(Heard(REF)).tell(Expired(REF))
        asked += len(play.of(Cancel))
    assert asked == believed + 4
    assert play.machine.pool.count("free") == 4


def test_without_cancel_both_prefill_ends_alone() -> None:
    play = prefill(without("cancel-both"))
    ready(play).tell(Abort(REF)).gives(Timer(REF, 0), End(REF, ABORTED))


# Holding the source


def test_source_pages_are_held_until_the_operations_that_read_them_have_completed() -> None:
    play = ready(prefill(config(lanes=1)), 3).hear(grant(4, 5, 6))
    (first,) = operations(play)
    play.hear(Ended(REF, ABORTED, LEASE)).gives_of(Noted, Noted(REF, LEASE, PENDING))
    assert play.machine.legs[REF].pages == {Unit(FULL, 0): 0}
    assert play.machine.pool.count("free") == 3
    play.tell(Completed(first)).gives(Noted(REF, LEASE, DRAINED))
    assert play.machine.pool.count("free") == 4


def test_without_source_hold_a_page_goes_while_an_operation_still_reads_it() -> None:
    play = ready(prefill(without("source-hold"))).hear(grant(4, 5))
    play.machine.handle(Abort(REF))
    ended = Ended(REF, ABORTED, LEASE)
    play.machine._ended(ended, D0)
    assert play.machine.pool.count("free") == 4


def test_an_operation_in_error_cancels_and_its_page_is_held_until_the_engine_is_fenced() -> None:
    play = ready(prefill()).hear(grant(4, 5))
    first, second = operations(play)
    play.tell(Errored(first)).gives_beside_timers(Cancel(REF, TRANSFER))
    assert (play.timer(), play.timer(ENGINE)) == (1.0, 10.0)
    play.hear(Ended(REF, TRANSFER, LEASE)).gives_of((End, Noted), End(REF, TRANSFER), Noted(REF, LEASE, DOUBTFUL))
    play.tell(Completed(second)).gives()
    assert play.machine.legs[REF].pages == {Unit(FULL, 0): 0}
    play.tell(Expired(ENGINE)).gives(Fence(1))


def test_an_operation_that_was_refused_cancels_and_holds_nothing() -> None:
    play = ready(prefill()).hear(grant(4, 5))
    first, second = operations(play)
    play.tell(Rejected(first)).gives(Cancel(REF, TRANSFER), Timer(REF, 1.0))
    play.tell(Rejected(second), Rejected(second)).gives()
    play.hear(Ended(REF, TRANSFER, LEASE)).gives_of((End, Noted), End(REF, TRANSFER), Noted(REF, LEASE, DRAINED))
    assert play.machine.pool.count("free") == 4


def test_an_operation_that_was_refused_after_the_end_frees_its_page() -> None:
    play = ready(prefill()).hear(grant(4)).hear(Ended(REF, ABORTED, LEASE))
    play.tell(Rejected(operation(0, 4))).gives(Noted(REF, LEASE, DRAINED))
    assert play.machine.pool.count("free") == 4


def test_an_operation_in_error_after_the_end_is_told_to_decode_as_doubtful() -> None:
    play = ready(prefill()).hear(grant(4, 5))
    first, second = operations(play)
    play.hear(Ended(REF, ABORTED, LEASE)).gives_of(Noted, Noted(REF, LEASE, PENDING))
    play.tell(Completed(first)).gives()
    play.tell(Errored(second)).gives_of(Noted, Noted(REF, LEASE, DOUBTFUL))
    assert play.machine.legs[REF].ledger.doubtful == {Unit(FULL, 1): 1}
