"""The decode leg: what it grants and takes in, and that nothing is read before all of it is here and verified."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfence.fence import Decode
from kvfence.fence.commands import (
    Answer,
    Check,
    Copy,
    End,
    Scrub,
    Step,
    Timer,
    Verify,
)
from kvfence.fence.events import (
    Abort,
    Checked,
    Copied,
    Expired,
    Stepped,
    Submit,
    Verified,
)
from kvfence.fence.messages import (
    Ended,
    Epoch,
    Grant,
    Landed,
    Noted,
    Vote,
)
from kvfence.fence.outcome import (
    CANARY,
    COMMITTED,
    TAG,
    TIMED_OUT,
)
from kvfence.fence.pool import FREE
from kvfence.fence.tags import Binding
from kvfence.fence.transfer import DRAINED
from kvfence.fence.units import FULL, LATENT, RECURRENT, ROW, WINDOW, Layout, Unit
from tests.fence.playbook import (
    ASKED,
    BORN,
    DECODE_STATES,
    LEASE,
    REF,
    Playbook,
    checking,
    config,
    copying,
    decode,
    full,
    landed,
    offer,
    receiving,
    request,
    starved,
    stepping,
    tag,
    targets,
    verifying,
    without,
)

Play = Playbook[Decode]
ROOMY = {FULL: 8}


def verify(play: Play, *indices: int) -> Play:
    return play.tell(*(Verified(REF, unit, True) for unit in full(*indices)))


def slots_free(play: Play) -> int:
    return play.machine.arena.count(FREE)


# The whole life


def test_a_leg_reserves_on_the_offer_grants_copies_verifies_commits_checks_and_steps() -> None:
    play = decode()
    pages, bound = targets(0, 1), [Binding(REF, "r", "tenant r", BORN, FULL, index, 1, 0) for index in (0, 1)]
    wait = Timer(REF, 30.0)
    play.tell(Submit(ASKED, REF, "P0")).gives(wait)
    play.hear(offer(ASKED)).gives(Scrub((0, 1, 2)), Grant(REF, LEASE, 1, targets(4, 5), True), wait)
    play.hear(landed(*targets(4, 5))).gives(*(Copy(REF, unit, page + 4, page) for unit, page in pages))
    for unit, page in pages:
        play.tell(Copied(REF, unit)).gives(Verify(REF, unit, page, bound[page], tag(unit)))
    play.tell(Verified(REF, Unit(FULL, 0), True)).gives()
    play.tell(Verified(REF, Unit(FULL, 1), True))
    play.gives(End(REF, COMMITTED), Ended(REF, COMMITTED, LEASE), Timer(REF, 1.0), Check(REF, ASKED, pages))
    play.hear(Noted(REF, LEASE, DRAINED)).gives(Timer(REF, 0))
    play.tell(Checked(REF, ())).gives(Step(REF, ASKED, pages, ((Unit(FULL, 2), 2),)))
    play.tell(Stepped(REF)).gives(Answer(REF, "r", COMMITTED))
    assert not play.machine.legs
    assert (play.machine.pool.count(FREE), slots_free(play)) == (4, 2)


# Granting


@pytest.mark.parametrize(("lanes", "slots", "expected"), [(1, 4, 1), (2, 4, 2), (4, 2, 2), (4, 4, 3)])
def test_a_grant_is_bounded_by_lanes_and_by_free_slots(lanes: int, slots: int, expected: int) -> None:
    play = receiving(decode(config(lanes=lanes, slots=slots)), request(3))
    assert len(play.the(Grant).targets) == expected
    assert play.the(Grant).last == (expected == 3)


def test_without_bounded_batches_all_is_granted_at_once() -> None:
    play = receiving(decode(without("bounded-batches", lanes=1, slots=4)), request(3))
    assert len(play.the(Grant).targets) == 3


def test_the_next_grant_follows_when_the_last_call_is_over_and_a_slot_is_free() -> None:
    play = receiving(decode(config(pages=ROOMY)), request(3))
    play.gives_of(Grant, Grant(REF, LEASE, 1, targets(8, 9), False))
    play.hear(landed(*targets(8, 9), last=False)).gives_no(Grant)
    play.tell(Copied(REF, Unit(FULL, 1))).gives_of(Grant, Grant(REF, LEASE, 1, targets(9, first=2), True))
    assert play.timer() == 30.0
    play = receiving(decode(config(pages=ROOMY, slots=4)), request(3))
    play.hear(landed(*targets(8), last=False)).tell(Copied(REF, Unit(FULL, 0))).gives_no(Grant)
    play.hear(landed(*targets(9, first=1), last=False))
    play.gives_of(Grant, Grant(REF, LEASE, 1, targets(8, first=2), True))


def test_free_slots_go_to_legs_in_the_order_they_came() -> None:
    play = receiving(decode(config(pages={FULL: 12})))
    for name in ("second", "third"):
        asked = request(1, name)
        play.tell(Submit(asked, name, "P0")).hear(offer(asked, name)).gives_no(Grant)
    play.hear(landed(*targets(12, 13)))
    play.tell(Copied(REF, Unit(FULL, 1)))
    assert [given.ref for given in play.of(Grant)] == ["second"]
    play.tell(Copied(REF, Unit(FULL, 0)))
    assert [given.ref for given in play.of(Grant)] == ["third"]


def test_requests_are_served_in_the_order_of_their_offers_even_if_a_later_one_would_fit() -> None:
    play = decode()
    starved(play)
    small = request(1, "small", 30, steps=0)
    play.tell(Submit(small, "small", "P0")).hear(offer(small, "small")).gives_no(Grant, Scrub)
    play.tell(Abort("holder")).hear(Noted("holder", LEASE, DRAINED))
    assert [given.ref for given in play.of(Grant)] == [REF]


def test_without_a_landing_arena_the_page_itself_is_the_target() -> None:
    play = receiving(decode(without("landing-arena")))
    play.gives_of(Grant, Grant(REF, LEASE, 1, targets(0, 1), True))
    play.hear(landed(*targets(0, 1))).gives_no(Copy)
    assert len(play.of(Verify)) == 2
    verify(play, 0, 1)
    assert play.of(Check)


# Taking in


STRAY = [
    landed(*targets(4, 5), epoch=Epoch(1, 2)),
    landed(*targets(4, 5), epoch=Epoch(2, 1)),
    landed(*targets(5, 4), last=False),
    landed(*targets(6, 7), last=False),
    landed((Unit(FULL, 2), 4), (Unit(ROW, 0), 5), last=False),
    landed(*targets(4, 5), ref="unknown"),
]


@pytest.mark.parametrize("message", STRAY)
@pytest.mark.parametrize("state", DECODE_STATES, ids=lambda state: state.__name__)
def test_what_was_not_granted_did_not_land(state: Callable[[Play], object], message: Landed) -> None:
    play = decode()
    state(play)
    play.hear(message).gives()


def test_what_landed_twice_is_taken_in_once() -> None:
    play = receiving(decode(config(lanes=1)))
    play.hear(landed(*targets(4), last=False))
    play.hear(landed(*targets(4), last=False)).gives()
    play.tell(Copied(REF, Unit(FULL, 0))).hear(landed(*targets(4), last=False)).gives()


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("indices", [(0, 0), (0, 1, 0), (1, 1, 0, 0)], ids=str)
def test_a_unit_that_one_message_names_twice_landed_once(indices: tuple[int, ...], *, ended: bool) -> None:
    play = receiving(decode())
    if ended:
        play.tell(Abort(REF))
    play.hear(landed(*((Unit(FULL, index), 4 + index) for index in indices), last=False))
    copies = play.of(Copy)
    assert [copy.unit.index for copy in copies] == ([] if ended else list(dict.fromkeys(indices)))
    assert slots_free(play) == (len(set(indices)) if ended else 0)
    play.tell(*(Copied(REF, copy.unit) for copy in copies))
    assert slots_free(play) == len(set(indices))


def test_a_unit_that_is_named_with_two_targets_landed_in_the_one_that_was_granted() -> None:
    play = receiving(decode()).hear(landed(*targets(5), *targets(4), *targets(9), last=False))
    play.gives(Copy(REF, Unit(FULL, 0), 4, 0))


def test_a_slot_is_free_once_it_was_copied_and_the_tag_is_made_over_the_page() -> None:
    play = decode()
    copying(play)
    assert slots_free(play) == 0
    play.tell(Copied(REF, Unit(FULL, 1)))
    assert (play.the(Verify).page, slots_free(play)) == (1, 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_nothing_is_read_before_every_unit_has_verified(order: tuple[int, int, int]) -> None:
    play = receiving(decode(config(slots=3, lanes=3)), request(3))
    play.hear(landed(*targets(4, 5, 6))).gives_no(Check, Step, End)
    play.tell(*(Copied(REF, Unit(FULL, index)) for index in order)).gives_no(Check, Step, End)
    verify(play, *order[:2]).gives()
    verify(play, order[2]).gives_of(End, End(REF, COMMITTED))


def test_the_tag_is_bound_to_rank_position_valid_length_and_the_epoch_of_the_offer() -> None:
    layout = Layout(2, (FULL, LATENT, ROW))
    settings = config(layout=layout, pages={FULL: 2, LATENT: 2, ROW: 1}, slots=5, lanes=5)
    play = decode(settings, rank=1)
    play.tell(Submit(request(3), REF, "P0")).hear(offer(request(3), layout=layout, born=Epoch(1, 6)))
    given = play.the(Grant).targets
    play.hear(landed(*given)).tell(*(Copied(REF, unit) for unit, _ in given))
    bound = {one.unit: one.binding[3:] for one in play.of(Verify)}
    assert bound[Unit(FULL, 1)] == (Epoch(1, 6), FULL, 1, 1, 1)
    assert bound[Unit(LATENT, 0)] == (Epoch(1, 6), LATENT, 0, 2, 0)
    assert bound[Unit(ROW, 0)] == (Epoch(1, 6), ROW, 0, 3, 1)


@pytest.mark.parametrize("bad", [0, 1])
def test_one_tag_that_differs_fails_the_whole_and_frees_every_page(bad: int) -> None:
    play = decode()
    verifying(play)
    verify(play, 1 - bad)
    play.tell(Verified(REF, Unit(FULL, bad), False))
    play.gives(End(REF, TAG), Answer(REF, "r", TAG), Ended(REF, TAG, LEASE), Timer(REF, 1.0))
    assert play.machine.pool.count(FREE) == 4


def test_pages_of_a_leg_that_failed_stay_until_its_local_work_is_done() -> None:
    play = decode()
    verifying(play)
    play.tell(Verified(REF, Unit(FULL, 0), False))
    assert play.machine.pool.count(FREE) == 1
    verify(play, 1).gives()
    assert play.machine.pool.count(FREE) == 4


def test_a_unit_without_a_tag_is_not_verified_but_failed() -> None:
    play = receiving(decode()).hear(landed(*targets(4, 5), tagged=False))
    play.tell(Copied(REF, Unit(FULL, 0))).gives_of((Verify, Answer), Answer(REF, "r", TAG))


def test_where_policy_allows_a_unit_without_a_tag_is_read_but_never_cached() -> None:
    play = receiving(decode(without("skew-refusal", prefix_cache=True)))
    play.hear(landed(*targets(4, 5), tagged=False)).tell(*(Copied(REF, unit) for unit in full(0, 1)))
    play.gives_of(End, End(REF, COMMITTED))
    assert not play.machine.index.pages


def test_a_worker_without_tags_asks_for_no_digest() -> None:
    play = receiving(decode(without("tags"))).hear(landed(*targets(4, 5)))
    play.tell(*(Copied(REF, unit) for unit in full(0, 1))).gives_of((Verify, End), End(REF, COMMITTED))


def test_what_was_not_sent_is_missed() -> None:
    play = receiving(decode()).hear(landed(*targets(4)))
    play.tell(Copied(REF, Unit(FULL, 0)))
    verify(play, 0).gives()
    play.tell(Expired(REF)).gives_of(End, End(REF, TIMED_OUT))
    play = receiving(decode()).hear(landed()).gives()


def test_without_coverage_a_prompt_that_was_sent_in_part_is_read() -> None:
    play = receiving(decode(without("coverage"))).hear(landed(*targets(4)))
    play.tell(Copied(REF, Unit(FULL, 0)))
    verify(play, 0).gives_of(End, End(REF, COMMITTED))
    assert slots_free(play) == 2


def test_a_peer_that_has_sent_all_commits_nothing_that_was_not_granted_yet() -> None:
    play = receiving(decode(config(lanes=1))).hear(landed(*targets(4)))
    play.gives_of((End, Grant), Grant(REF, LEASE, 1, targets(5, first=1), True))
    play.tell(Copied(REF, Unit(FULL, 0)))
    verify(play, 0).gives()


def test_a_leg_commits_only_once_prefill_has_said_that_it_has_sent_all() -> None:
    play = receiving(decode()).hear(landed(*targets(4, 5), last=False))
    play.tell(*(Copied(REF, Unit(FULL, index)) for index in (0, 1)))
    verify(play, 0, 1).gives()
    play.hear(landed()).gives_of(End, End(REF, COMMITTED))


# Reading


def test_canaries_are_checked_before_every_step() -> None:
    play = receiving(decode(), request(1, steps=3)).hear(landed(*targets(4))).tell(Copied(REF, Unit(FULL, 0)))
    verify(play, 0)
    for _ in range(3):
        assert play.the(Check).pages == targets(0)
        play.gives_no(Step)
        play.tell(Checked(REF, ()))
        assert play.the(Step).tail == targets(1, 2, 3, first=1)
        play.tell(Stepped(REF))
    play.gives_beside_timers(Answer(REF, "r", COMMITTED))


def test_an_answer_ends_with_the_step_that_says_so() -> None:
    play = receiving(decode(), request(1, steps=3)).hear(landed(*targets(4))).tell(Copied(REF, Unit(FULL, 0)))
    verify(play, 0)
    play.tell(Checked(REF, ()), Stepped(REF))
    play.tell(Checked(REF, ()))
    play.tell(Stepped(REF, done=True)).gives_beside_timers(Answer(REF, "r", COMMITTED))


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_page_that_goes_bad_before_any_step_ends_the_request_there(taken: int) -> None:
    play = receiving(decode(), request(1, steps=3)).hear(landed(*targets(4))).tell(Copied(REF, Unit(FULL, 0)))
    verify(play, 0)
    for _ in range(taken):
        play.tell(Checked(REF, ()), Stepped(REF))
    play.tell(Checked(REF, (Unit(FULL, 0),))).gives_no(Step)
    play.gives_of(Answer, Answer(REF, "r", CANARY))


def test_a_request_of_no_steps_is_answered_with_its_commit() -> None:
    play = receiving(decode(), request(1, steps=0)).hear(landed(*targets(4))).tell(Copied(REF, Unit(FULL, 0)))
    verify(play, 0).gives_of((End, Answer, Check), End(REF, COMMITTED), Answer(REF, "r", COMMITTED))


def test_a_page_whose_canary_fails_is_not_read_by_any_step() -> None:
    play = decode()
    checking(play)
    play.tell(Checked(REF, full(1))).gives_beside_timers(Answer(REF, "r", CANARY))
    assert play.machine.pool.count(FREE) == 4


def test_a_worker_without_canaries_steps_at_once() -> None:
    play = decode(without("canary"))
    checking(play)
    assert play.the(Step).pages == targets(0, 1)
    play.gives_no(Check)


def test_where_policy_allows_canaries_of_a_peer_that_makes_none_are_not_looked_for() -> None:
    play = decode(without("skew-refusal"), peer=without("canary"))
    checking(play)
    assert play.of(Step)


def test_a_timer_that_ran_out_before_it_was_stopped_ends_no_request_that_goes_on() -> None:
    play = decode()
    stepping(play)
    play.hear(Noted(REF, LEASE, DRAINED)).tell(Expired(REF)).gives()


def test_ranks_wait_for_each_other_from_every_step_anew_so_that_a_long_answer_is_no_silence() -> None:
    play = receiving(decode(config(ranks=2)), request(1, steps=3)).hear(landed(*targets(4)))
    play.tell(Copied(REF, Unit(FULL, 0)))
    verify(play, 0).hear_rank(1, Vote(REF, COMMITTED, "P0")).hear(Noted(REF, LEASE, DRAINED))
    for _ in range(3):
        play.tell(Checked(REF, ()))
        assert play.timer() == 30.0
        play.tell(Stepped(REF))


def test_a_step_that_nobody_waits_for_is_ignored() -> None:
    play = decode()
    checking(play)
    play.tell(Stepped(REF), Stepped("unknown")).gives()


@pytest.mark.parametrize("kinds", [(FULL, RECURRENT, ROW), (FULL, WINDOW, ROW), (LATENT,)])
def test_every_kind_that_a_step_reads_is_transferred_and_read(kinds: tuple[str, ...]) -> None:
    layout = Layout(1, kinds, window_tokens=1)
    play = decode(config(layout=layout, pages=dict.fromkeys(kinds, 4), slots=6, lanes=6))
    given = receiving(play, layout=layout).the(Grant).targets
    assert tuple(unit for unit, _ in given) == layout.required(2)
    play.hear(landed(*given)).tell(*(Copied(REF, unit) for unit, _ in given))
    play.tell(*(Verified(REF, unit, True) for unit, _ in given))
    assert tuple(unit for unit, _ in play.the(Check).pages) == layout.required(2)
