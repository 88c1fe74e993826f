"""How a handoff ends: decode decides, tells prefill until it knows, its ranks agree, and targets wait for proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvfence.fence import ALL, Decode
from kvfence.fence.commands import (
    Answer,
    CancelStep,
    Check,
    Copy,
    End,
    Fence,
    Revoke,
    Scrub,
    Step,
    Timer,
    Verify,
)
from kvfence.fence.events import (
    Abort,
    Expired,
    Fenced,
    Preempt,
    Refuse,
    Stepped,
    Submit,
)
from kvfence.fence.messages import (
    Cancel,
    Ended,
    Epoch,
    Grant,
    Noted,
)
from kvfence.fence.outcome import (
    ABORTED,
    BUDGET,
    COMMITTED,
    GRAMMAR,
    RESTARTED,
    TIMED_OUT,
)
from kvfence.fence.pool import FREE, LANDING, QUARANTINED
from kvfence.fence.transfer import DOUBTFUL, DRAINED, PENDING
from kvfence.fence.worker import ENGINE
from tests.fence.playbook import (
    ASKED,
    LEASE,
    REF,
    Playbook,
    checking,
    config,
    copying,
    decode,
    each_cause,
    each_state,
    each_uncommitted,
    finish_decode_work,
    landed,
    lease,
    offer,
    receiving,
    restart,
    starved,
    stepping,
    targets,
    verifying,
    without,
)

Play = Playbook[Decode]


def fences(play: Playbook[Any]) -> bool:
    """Say whether the engine of the first life is to be fenced, which is asked for once."""
    return play.of(Fence) == [Fence(1)]


def all_free(play: Play) -> bool:
    machine = play.machine
    return machine.pool.count(FREE) == len(machine.pool) and machine.arena.count(FREE) == len(machine.arena)


# Every ending, in every state


@each_uncommitted
@each_cause
def test_what_ends_a_leg_before_its_commit_is_answered_told_and_lets_go(
    state: Callable[[Play], object], event: object, outcome: str
) -> None:
    play = decode()
    state(play)
    ended = Ended(REF, outcome, lease(state))
    play.tell(event).gives(End(REF, outcome), Answer(REF, "r", outcome), ended, Timer(REF, 1.0))
    finish_decode_work(play, state)
    play.hear(Noted(REF, lease(state), DRAINED)).gives(Timer(REF, 0))
    assert REF not in play.machine.legs
    assert all_free(play) or state is starved


@pytest.mark.parametrize("state", [checking, stepping], ids=lambda state: state.__name__)
@each_cause
def test_after_the_commit_a_request_is_given_up_and_the_handoff_stays_committed(
    state: Callable[[Play], object], event: object, outcome: str
) -> None:
    play = decode()
    state(play)
    play.tell(event).gives_beside_timers(*[CancelStep(REF)] * (state is stepping), Answer(REF, "r", outcome))
    finish_decode_work(play, state)
    play.gives_no(Step)
    play.hear(Cancel(REF, ABORTED)).gives(Ended(REF, COMMITTED, LEASE))
    play.hear(Noted(REF, LEASE, DRAINED))
    assert all_free(play)


@each_uncommitted
def test_a_leg_that_waits_too_long_is_timed_out(state: Callable[[Play], object]) -> None:
    play = decode()
    state(play)
    play.tell(Expired(REF)).gives_of((End, Answer), End(REF, TIMED_OUT), Answer(REF, "r", TIMED_OUT))


@each_uncommitted
def test_prefill_may_cancel_until_the_commit(state: Callable[[Play], object]) -> None:
    play = decode()
    state(play)
    play.hear(Cancel(REF, GRAMMAR)).gives_of((End, Ended), End(REF, GRAMMAR), Ended(REF, GRAMMAR, lease(state)))
    play.hear(Cancel(REF, GRAMMAR)).gives(Ended(REF, GRAMMAR, lease(state)))


@each_state
def test_prefill_cannot_commit_what_is_not(state: Callable[[Play], object]) -> None:
    play = decode()
    state(play)
    play.hear(Cancel(REF, COMMITTED)).gives()
    assert play.tell(Abort(REF)).of(Answer)


def test_prefill_cannot_commit_what_has_not_come() -> None:
    play = decode().hear(Cancel(REF, COMMITTED)).gives()
    play.tell(Submit(ASKED, REF, "P0")).gives(Timer(REF, 30.0))


@each_state
def test_a_restart_of_prefill_ends_what_is_not_committed(state: Callable[[Play], object]) -> None:
    play = decode()
    state(play)
    restart(play)
    if state in {checking, stepping}:
        play.gives(Timer(REF, 0))
    else:
        assert [end.outcome for end in play.of(End) if end.ref == REF] == [RESTARTED]
        assert Answer(REF, "r", RESTARTED) in play.of(Answer)
    finish_decode_work(play, state)
    assert (REF in play.machine.legs) == (state in {receiving, checking, stepping})


@each_state
def test_after_its_end_nothing_more_begins_and_nothing_ends_twice(state: Callable[[Play], object]) -> None:
    play = decode()
    state(play)
    play.tell(Abort(REF))
    finish_decode_work(play, state)
    play.tell(Abort(REF), Refuse(REF, BUDGET), Preempt(REF), Stepped(REF)).gives()
    play.hear(offer(ASKED), landed(*targets(4, 5))).gives_no(End, Answer, Copy, Verify, Grant, Check, Step)


def test_without_cancel_both_nobody_is_told() -> None:
    play = decode(without("cancel-both"))
    copying(play)
    play.tell(Abort(REF)).gives(End(REF, ABORTED), Answer(REF, "r", ABORTED))
    play = receiving(decode(without("cancel-both")))
    play.tell(Abort(REF)).gives(End(REF, ABORTED), Answer(REF, "r", ABORTED), Timer(REF, 30.0))


# Telling prefill


def test_the_end_is_told_so_often_and_then_the_peer_counts_as_gone() -> None:
    play = receiving(decode()).tell(Abort(REF))
    for _ in range(2):
        play.tell(Expired(REF)).gives(Ended(REF, ABORTED, LEASE), Timer(REF, 1.0))
    play.tell(Expired(REF)).gives_of((Timer, Ended), Timer(REF, 0))
    assert fences(play)
    assert play.machine.arena.count(QUARANTINED) == 2


def test_a_commit_is_told_again_as_well_and_disturbs_no_step() -> None:
    play = decode()
    stepping(play)
    for _ in range(2):
        play.tell(Expired(REF)).gives(Ended(REF, COMMITTED, LEASE), Timer(REF, 1.0))
    play.tell(Expired(REF)).gives(Timer(REF, 0))
    play.tell(Stepped(REF)).gives_of(Answer, Answer(REF, "r", COMMITTED))
    assert all_free(play)


def test_prefill_whose_operations_are_pending_is_asked_on_until_they_are_not() -> None:
    play = receiving(decode(config(tries=1))).tell(Abort(REF))
    play.hear(Noted(REF, LEASE, PENDING)).gives()
    play.tell(Expired(REF)).gives(Ended(REF, ABORTED, LEASE), Timer(REF, 1.0))
    play.hear(Noted(REF, LEASE, PENDING), Noted(REF, LEASE, DRAINED)).gives(Timer(REF, 0))
    assert all_free(play)


@pytest.mark.parametrize(("wait", "retry", "believed"), [(30.0, 1.0, 34), (2.0, 1.0, 6), (2.0, 4.0, 5)])
def test_prefill_whose_operations_are_pending_for_ever_leaves_their_targets_in_doubt(
    wait: float, retry: float, believed: int
) -> None:
    play = receiving(decode(config(tries=4, wait_seconds=wait, retry_seconds=retry))).tell(Abort(REF))
    asked = 1
    while not play.of(Fence):
        assert asked < believed + 5
        play.hear(Noted(REF, LEASE, PENDING)).gives().tell(Expired(REF))
        asked += len(play.of(Ended))
    assert asked == believed + 4
    play.gives(Timer(REF, 0), Fence(1))
    assert play.machine.arena.count(QUARANTINED) == 2
    play.tell(Fenced(1))
    assert all_free(play)


def test_a_restart_of_prefill_grants_nothing_to_a_leg_that_ends_with_it() -> None:
    play = decode()
    starved(play)
    restart(play).gives_no(Grant, Scrub)
    play.gives_of(End, End("holder", RESTARTED), End(REF, RESTARTED))


@pytest.mark.parametrize("epoch", [None, Epoch(1, 2), Epoch(2, 1)])
def test_what_is_noted_of_another_lease_frees_nothing(epoch: Epoch | None) -> None:
    play = receiving(decode()).tell(Abort(REF)).hear(Noted(REF, epoch, DRAINED)).gives()
    assert play.machine.arena.count(QUARANTINED) == 2


def test_what_is_noted_before_the_end_or_of_no_handoff_is_ignored() -> None:
    play = receiving(decode())
    play.hear(Noted(REF, LEASE, DRAINED), Noted("unknown", LEASE, DRAINED)).gives()
    assert play.machine.arena.count(LANDING) == 2


# Targets wait for proof


def test_targets_that_a_write_may_reach_are_quarantined_until_prefill_has_drained() -> None:
    play = receiving(decode())
    play.tell(Abort(REF))
    assert play.machine.arena.count(QUARANTINED) == 2
    assert play.machine.pool.count(FREE) == 4
    play.hear(Noted(REF, LEASE, DRAINED))
    assert all_free(play)


def test_a_completion_after_the_end_frees_its_target_and_copies_nothing() -> None:
    play = receiving(decode())
    play.tell(Abort(REF)).hear(landed(*targets(4), last=False)).gives()
    assert (play.machine.arena.state(4), play.machine.arena.state(5)) == (FREE, QUARANTINED)


def test_doubt_is_quarantined_and_only_a_fenced_engine_frees_it() -> None:
    play = receiving(decode(config(quarantine_bound=1.0))).tell(Abort(REF))
    play.hear(Noted(REF, LEASE, DOUBTFUL)).gives(Timer(REF, 0), Timer(ENGINE, 10.0))
    play.hear(Noted(REF, LEASE, DRAINED), landed(*targets(4, 5))).gives()
    assert play.machine.arena.count(QUARANTINED) == 2
    play.tell(Expired(ENGINE)).gives(Fence(1))
    play.tell(Fenced(1)).gives()
    assert all_free(play)
    assert not play.machine.legs


def test_a_word_that_is_not_known_is_doubt() -> None:
    assert fences(receiving(decode()).tell(Abort(REF)).hear(Noted(REF, LEASE, "surely")))


def test_without_a_landing_arena_the_pages_themselves_are_quarantined() -> None:
    play = receiving(decode(without("landing-arena", quarantine_bound=1.0))).tell(Abort(REF))
    assert (play.machine.pool.count(QUARANTINED), play.machine.pool.count(FREE)) == (2, 2)
    play.hear(landed(*targets(0), last=False)).hear(Noted(REF, LEASE, DOUBTFUL))
    assert play.machine.pool.count(QUARANTINED) == 1
    play.tell(Expired(ENGINE), Fenced(1))
    assert play.machine.pool.count(FREE) == 4


def test_a_transport_with_epochs_in_its_frames_shuts_the_door_and_frees_at_once() -> None:
    play = receiving(decode(config(transport="tcp-epoch")))
    play.tell(Abort(REF)).gives_of((Revoke, Fence), Revoke(LEASE))
    assert all_free(play)
    play.hear(Noted(REF, LEASE, DOUBTFUL)).gives(Timer(REF, 0))
    assert not play.machine.legs


def test_no_door_is_shut_where_nothing_is_on_its_way() -> None:
    play = decode(config(transport="tcp-epoch"))
    verifying(play)
    play.tell(Abort(REF)).gives_no(Revoke)


def test_a_sender_that_was_killed_proves_it_over_shared_memory_and_not_over_sockets() -> None:
    play = receiving(decode(config(transport="shared-memory")))
    restart(play).gives_no(Fence)
    assert all_free(play)
    play = receiving(decode())
    assert fences(restart(play))
    assert play.machine.arena.count(QUARANTINED) == 2


@pytest.mark.parametrize("after", [0.0, 7.0])
def test_without_release_on_proof_targets_return_at_once_or_after_a_time(after: float) -> None:
    settings = config(on=ALL.without("release-on-proof", release_after=after))
    play = receiving(decode(settings)).tell(Abort(REF))
    if after:
        assert Timer(REF, after) in play.of(Timer)
        play.tell(Expired(REF))
    assert all_free(play)
