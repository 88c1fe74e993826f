"""What each role admits and what decode binds: no request is begun that cannot be served, nor with another's KV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvfence.fence import Config, Decode
from kvfence.fence.commands import Answer, Check, Compute, End, Scrub, Send, Step, Timer
from kvfence.fence.events import Refuse, Submit
from kvfence.fence.messages import Address, Cancel, Ended, Epoch, Grant, Hello, Noted, Offer
from kvfence.fence.outcome import (
    BINDING,
    BUDGET,
    COMMITTED,
    GRAMMAR,
    LENGTH,
    MULTIMODAL,
    REPLAY,
    SKEW,
    UNREACHABLE,
)
from kvfence.fence.pool import FREE
from kvfence.fence.statement import Request
from kvfence.fence.transfer import DRAINED
from kvfence.fence.units import FULL, LATENT, ROW, WINDOW, Layout
from tests.fence.playbook import (
    ASKED,
    BORN,
    DECODE_STATES,
    LEASE,
    P0,
    REF,
    Playbook,
    checking,
    config,
    copying,
    decode,
    offer,
    prefill,
    receiving,
    request,
    restart,
    starved,
    targets,
    without,
)

STRANGER = Address("P1")
WEAKER = [without("tags"), without("canary"), config(model="other"), config(ranks=2), config(transport="tcp-epoch")]
WINDOWED = Layout(1, (FULL, WINDOW, ROW), window_tokens=2)

each_decode_state = pytest.mark.parametrize("state", DECODE_STATES, ids=lambda state: state.__name__)


def hello() -> Hello:
    return Hello(config().capabilities(), reply=False)


# Prefill


@pytest.mark.parametrize(("length", "refused"), [(0, True), (1, False), (3, False), (4, False), (5, True), (6, True)])
@pytest.mark.parametrize("context", [5, 16])
def test_prefill_refuses_a_prompt_from_the_limit_on_and_an_empty_one_and_reserves_nothing(
    length: int, context: int, *, refused: bool
) -> None:
    play = prefill(config(context_length=context))
    assert play.machine.config.limit == 5
    play.tell(Submit(request(length), REF, "D0"))
    if refused:
        play.gives(Cancel(REF, LENGTH), Timer(REF, 1.0))
        assert play.machine.pool.count(FREE) == 4
    else:
        assert play.the(Offer).statement.length == length


def test_what_the_engine_of_prefill_refuses_is_cancelled_and_reserves_nothing() -> None:
    play = prefill()
    play.tell(Submit(ASKED, REF, "D0", GRAMMAR)).gives(Cancel(REF, GRAMMAR), Timer(REF, 1.0))
    play.hear(Ended(REF, GRAMMAR, None)).gives_of((End, Noted), End(REF, GRAMMAR), Noted(REF, None, DRAINED))


@pytest.mark.parametrize(("length", "cut"), [(4, 4), (5, 4), (9, 4), (99, 4)])
def test_with_auto_truncate_a_prompt_is_cut_and_what_was_cut_is_what_is_offered(length: int, cut: int) -> None:
    play = prefill(config(truncate=True))
    play.tell(Submit(request(length), REF, "D0")).gives_of(Offer, offer(request(cut)))


def test_an_empty_prompt_is_not_to_be_cut() -> None:
    prefill(config(truncate=True)).tell(Submit(request(0), REF, "D0")).gives_of((Cancel, Offer), Cancel(REF, LENGTH))


def test_prefill_starts_no_handoff_with_a_peer_that_never_said_hello() -> None:
    play = prefill()
    play.tell(Submit(ASKED, REF, "D7")).gives_no(Offer, Compute)
    assert play.machine.legs[REF].asked == UNREACHABLE


@pytest.mark.parametrize("weaker", WEAKER)
def test_prefill_starts_no_handoff_with_a_peer_that_can_do_less(weaker: Config) -> None:
    play = prefill(peer=weaker)
    play.tell(Submit(ASKED, REF, "D0")).gives(Cancel(REF, SKEW), Timer(REF, 1.0))


def test_where_policy_allows_a_weaker_peer_gets_its_handoff() -> None:
    play = prefill(without("skew-refusal"), peer=without("canary"))
    play.tell(Submit(ASKED, REF, "D0"))
    assert play.of(Offer)


def test_without_admission_a_placeholder_stands_for_the_refused_prompt() -> None:
    play = prefill(without("admission"))
    play.tell(Submit(request(9), REF, "D0")).gives_of(Offer, offer(request(1)))


def test_a_second_submission_to_prefill_under_a_reference_in_use_changes_nothing() -> None:
    play = prefill().tell(Submit(ASKED, REF, "D0"))
    play.tell(Submit(request(name="other", first=10), REF, "D0"), Submit(ASKED, REF, "D1")).gives()


def test_a_commit_is_no_cause_for_which_an_engine_may_refuse() -> None:
    """Nobody commits but decode, and only what has verified."""
    play = prefill().tell(Submit(ASKED, REF, "D0", COMMITTED))
    assert play.the(Offer) == offer(ASKED)
    play.tell(Refuse(REF, COMMITTED)).gives()
    other = decode().tell(Submit(ASKED, REF, "P0", COMMITTED)).gives(Timer(REF, 30.0))
    other.tell(Refuse(REF, COMMITTED)).gives()
    other.hear(offer(ASKED)).gives_of((Grant, Check, Step, End, Answer), Grant(REF, LEASE, 1, targets(4, 5), True))


# Decode


@pytest.mark.parametrize(
    ("length", "steps", "context", "refused"),
    [
        (3, 1, 16, False),
        (4, 0, 16, False),
        (4, 1, 16, True),
        (5, 0, 16, True),
        (2, 1, 3, False),
        (3, 1, 3, True),
        (0, 1, 16, True),
        (1, -1, 16, True),
        (2, -9, 16, True),
    ],
)
def test_a_prompt_and_its_answer_must_fit(length: int, steps: int, context: int, *, refused: bool) -> None:
    play = decode(config(context_length=context))
    play.tell(Submit(request(length, steps=steps), REF, "P0"))
    if refused:
        play.gives(End(REF, LENGTH), Answer(REF, "r", LENGTH), Ended(REF, LENGTH, None), Timer(REF, 1.0))
    else:
        play.gives(Timer(REF, 30.0))
    assert play.machine.pool.count(FREE) == 4


@pytest.mark.parametrize(("windows", "fits"), [(3, False), (4, False), (5, True)])
def test_an_answer_whose_window_goes_over_more_pages_than_there_are_is_refused_and_never_waits_for_them(
    windows: int, *, fits: bool
) -> None:
    """The window of the prompt lies in two pages, and no page comes back while three tokens are added."""
    settings = config(layout=WINDOWED, pages={FULL: 9, WINDOW: windows, ROW: 1}, slots=9, lanes=9)
    asked = request(4, steps=3)
    play = decode(settings).tell(Submit(asked, REF, "P0"))
    play.gives_of(Answer, *[Answer(REF, "r", LENGTH)] * (not fits))
    assert bool(play.hear(offer(asked, layout=WINDOWED)).of(Grant)) == fits


@pytest.mark.parametrize(
    ("length", "steps", "cut"), [(4, 1, 3), (9, 1, 3), (9, 3, 1), (4, 0, 4), (9, 4, None), (9, -1, None), (0, 1, None)]
)
def test_with_auto_truncate_decode_cuts_the_prompt_to_what_it_can_serve_or_refuses(
    length: int, steps: int, cut: int | None
) -> None:
    play = decode(config(truncate=True)).tell(Submit(request(length, steps=steps), REF, "P0"))
    if cut is None:
        play.gives_of(Answer, Answer(REF, "r", LENGTH))
        return
    play.gives(Timer(REF, 30.0))
    assert play.hear(offer(request(cut, steps=steps))).of(Grant)


@pytest.mark.parametrize(("length", "refused"), [(2, False), (3, True)])
def test_what_prefill_would_refuse_is_refused_before_anything_is_reserved(length: int, *, refused: bool) -> None:
    play = decode(peer=config(pages={FULL: 2}))
    play.tell(Submit(request(length), REF, "P0"))
    assert [answer.outcome for answer in play.of(Answer)] == ([LENGTH] if refused else [])


@pytest.mark.parametrize("outcome", [GRAMMAR, MULTIMODAL, BUDGET])
def test_what_the_engine_of_decode_refuses_is_answered_and_told_to_prefill(outcome: str) -> None:
    play = decode()
    play.tell(Submit(ASKED, REF, "P0", outcome))
    play.gives(End(REF, outcome), Answer(REF, "r", outcome), Ended(REF, outcome, None), Timer(REF, 1.0))


def test_a_refused_request_forgets_the_offer_that_was_there() -> None:
    play = decode().hear(offer(ASKED))
    play.tell(Submit(ASKED, REF, "P0", GRAMMAR)).gives_no(Grant, Scrub)
    assert not play.machine.offers


def test_decode_starts_no_handoff_with_a_peer_that_never_said_hello() -> None:
    decode().tell(Submit(ASKED, REF, "P7")).gives_of(Answer, Answer(REF, "r", UNREACHABLE))


@pytest.mark.parametrize("weaker", WEAKER)
def test_decode_starts_no_handoff_with_a_peer_that_can_do_less(weaker: Config) -> None:
    decode(peer=weaker).tell(Submit(ASKED, REF, "P0")).gives_of(Answer, Answer(REF, "r", SKEW))


def test_without_admission_pages_are_reserved_before_prefill_has_offered() -> None:
    play = decode(without("admission"), peer=config(pages={FULL: 1}))
    play.tell(Submit(ASKED, REF, "P0")).gives_of((Scrub, Grant), Scrub((0, 1, 2)))
    play.hear(offer(ASKED)).gives_of((Scrub, Grant), Grant(REF, LEASE, 1, targets(4, 5), True))


def test_a_second_submission_of_the_same_request_changes_nothing() -> None:
    decode().tell(Submit(ASKED, REF, "P0")).tell(Submit(ASKED, REF, "P0")).gives()


@each_decode_state
def test_a_reference_in_use_serves_no_other_request(state: Callable[[Playbook[Decode]], object]) -> None:
    play = decode()
    state(play)
    play.tell(Submit(request(name="thief"), REF, "P0")).gives(Answer(REF, "thief", REPLAY))


def test_a_reference_that_was_served_serves_no_other_request_wherever_it_comes_from() -> None:
    play = decode().hear(Hello(config().capabilities(), reply=False), source=STRANGER)
    play.tell(Submit(ASKED, REF, "P0", GRAMMAR)).hear(Noted(REF, None, DRAINED))
    for peer in ("P0", "P1"):
        play.tell(Submit(request(name="thief"), REF, peer)).gives(Answer(REF, "thief", REPLAY))


def test_a_reference_that_a_peer_ended_first_serves_no_other_request_once_its_own_has_come() -> None:
    play = decode().hear(hello(), source=STRANGER).hear(Cancel(REF, GRAMMAR))
    play.tell(Submit(ASKED, REF, "P0")).gives(End(REF, GRAMMAR), Answer(REF, "r", GRAMMAR))
    play.tell(Submit(request(name="thief"), REF, "P1")).gives(Answer(REF, "thief", REPLAY))
    sender = prefill().hear(hello(), source=Address("D1")).hear(Ended(REF, GRAMMAR, None))
    for asked, peer in ((ASKED, "D0"), (request(name="thief"), "D0"), (request(name="thief"), "D1")):
        sender.tell(Submit(asked, REF, peer)).gives(End(REF, GRAMMAR))


@pytest.mark.parametrize("make", [prefill, decode])
def test_a_worker_has_no_handoff_with_itself(make: Callable[[], Playbook[Any]]) -> None:
    play = make()
    play.tell(Submit(ASKED, REF, play.machine.address.worker)).gives_no(Offer, Grant, Compute)
    for sent in play.of(Send):
        play.tell(sent.envelope).gives()


# Binding


def test_an_offer_that_comes_first_waits_for_its_request() -> None:
    play = decode().hear(offer(ASKED)).gives()
    play.tell(Submit(ASKED, REF, "P0")).gives_of(Grant, Grant(REF, LEASE, 1, targets(4, 5), True))
    assert not play.machine.offers


def test_an_offer_that_came_first_binds_no_request_with_another_peer() -> None:
    play = decode().hear(hello(), offer(ASKED), source=STRANGER).gives()
    play.tell(Submit(ASKED, REF, "P0")).gives(Timer(REF, 30.0))
    play.hear(offer(ASKED, born=Epoch(1, 5))).gives_of(Grant, Grant(REF, LEASE, 1, targets(4, 5), True))
    assert play.machine.legs[REF].born == Epoch(1, 5)


@pytest.mark.parametrize("theirs", [ASKED, request(first=9)], ids=["the same", "another"])
def test_an_offer_of_another_peer_does_not_take_the_place_of_one_that_came_first(theirs: Request) -> None:
    play = decode().hear(offer(ASKED)).hear(hello(), offer(theirs, born=Epoch(1, 5)), source=STRANGER).gives()
    play.tell(Submit(ASKED, REF, "P0")).gives_of((Grant, Answer), Grant(REF, LEASE, 1, targets(4, 5), True))
    assert play.machine.legs[REF].born == BORN
    assert list(play.machine.offers) == [(REF, STRANGER)]


def test_an_offer_that_came_first_is_void_once_its_peer_has_restarted() -> None:
    play = decode().hear(offer(ASKED))
    restart(play).tell(Submit(ASKED, REF, "P0")).gives(Timer(REF, 30.0))
    assert play.hear(offer(ASKED, born=Epoch(2, 1)), incarnation=2).of(Grant)


def test_a_hello_that_is_said_again_leaves_an_offer_that_came_first_as_it_is() -> None:
    play = decode().hear(offer(ASKED), hello())
    assert play.tell(Submit(ASKED, REF, "P0")).of(Grant)


@each_decode_state
def test_an_offer_of_another_peer_is_ignored(state: Callable[[Playbook[Decode]], object]) -> None:
    play = decode()
    state(play)
    play.hear(hello(), offer(ASKED), source=STRANGER).gives()


def test_offers_without_a_request_cost_no_more_than_so_many() -> None:
    play = decode(config(tombstones=3))
    play.hear(*(offer(ASKED, f"h{number}") for number in range(9))).gives()
    assert list(play.machine.offers) == [(ref, P0) for ref in ("h6", "h7", "h8")]


def test_an_offer_that_is_made_again_at_the_bound_takes_the_room_of_nobody() -> None:
    play = decode(config(tombstones=2)).hear(offer(ASKED, "first"), offer(ASKED, "second"))
    play.hear(*2 * [offer(ASKED, "second")], offer(ASKED, "first")).gives()
    for ref in ("first", "second"):
        assert (ref, P0) in play.machine.offers
    assert play.tell(Submit(ASKED, "first", "P0")).of(Grant)


DIFFERENT = [
    request(3),
    request(1),
    request(0),
    request(first=1),
    ASKED._replace(scope="another"),
    ASKED._replace(model="another"),
    ASKED._replace(adapter="another"),
    ASKED._replace(content="another"),
]


@pytest.mark.parametrize("other", DIFFERENT)
@pytest.mark.parametrize("early", [False, True])
def test_an_offer_of_anything_else_is_not_bound(other: Request, *, early: bool) -> None:
    play = decode()
    if early:
        play.hear(offer(other)).tell(Submit(ASKED, REF, "P0"))
    else:
        play.tell(Submit(ASKED, REF, "P0")).hear(offer(other))
    play.gives_of((Answer, Grant, Scrub), Answer(REF, "r", BINDING))


def test_an_offer_of_another_layout_is_not_bound() -> None:
    play = decode().tell(Submit(ASKED, REF, "P0")).hear(offer(ASKED, layout=Layout(2, (FULL,))))
    play.gives_of((Answer, Grant), Answer(REF, "r", BINDING))


def test_latents_of_another_width_are_bound_for_they_are_the_same_on_every_rank() -> None:
    layout = Layout(1, (LATENT,))
    play = decode(config(layout=layout, pages={LATENT: 4}), rank=0)
    play.tell(Submit(ASKED, REF, "P0")).hear(offer(ASKED, layout=layout._replace(head_shards=4)))
    assert play.of(Grant)


def test_without_binding_any_offer_will_do() -> None:
    play = decode(without("binding")).tell(Submit(ASKED, REF, "P0")).hear(offer(request(first=9)))
    assert play.of(Grant)


@pytest.mark.parametrize("state", [starved, receiving, copying, checking], ids=lambda state: state.__name__)
def test_a_second_offer_is_ignored(state: Callable[[Playbook[Decode]], object]) -> None:
    play = decode()
    state(play)
    play.hear(offer(ASKED), offer(request(first=9), born=Epoch(1, 7))).gives()
