"""What both roles do alike: which life of which worker may say what, and what has ended stays ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfence.fence import Config, Decode, Prefill
from kvfence.fence.commands import (
    Answer,
    End,
    Send,
    Timer,
    Write,
)
from kvfence.fence.events import (
    Abort,
    Completed,
    Submit,
)
from kvfence.fence.messages import (
    Address,
    Cancel,
    Ended,
    Envelope,
    Epoch,
    Grant,
    Heard,
    Hello,
    Message,
    Noted,
    Offer,
    Verdict,
    Vote,
)
from kvfence.fence.outcome import (
    ABORTED,
    GRAMMAR,
    LENGTH,
    RESTARTED,
    SKEW,
    TIMED_OUT,
)
from kvfence.fence.transfer import DOUBTFUL, DRAINED, PENDING
from tests.fence.playbook import (
    ASKED,
    D0,
    DECODE_STATES,
    LEASE,
    P0,
    PREFILL_STATES,
    REF,
    Playbook,
    config,
    decode,
    finish_local_work,
    grant,
    landed,
    offer,
    operations,
    prefill,
    ready,
    receiving,
    request,
    restart,
    targets,
    without,
)

each_state = pytest.mark.parametrize("state", PREFILL_STATES, ids=lambda state: state.__name__)
STRANGER = Address("D1")


def hello(*, reply: bool = False, settings: Config | None = None) -> Hello:
    return Hello((settings or config()).capabilities(), reply)


# Lives


def test_a_worker_greets_its_peers_and_asks_for_their_hello() -> None:
    machine = Prefill(P0, config(), 3, 1)
    assert machine.greet(D0, STRANGER) == [Send(to, Envelope(P0, 3, -1, hello(reply=True))) for to in (D0, STRANGER)]


def test_a_hello_is_answered_if_it_asks_for_that() -> None:
    play = prefill()
    play.hear(hello(reply=True)).gives(hello())
    play.hear(hello()).gives()


def test_a_message_of_a_life_whose_hello_was_lost_is_not_acted_on_and_asks_for_the_hello() -> None:
    play = ready(prefill())
    play.hear(Ended(REF, ABORTED, None), incarnation=2).gives(hello(reply=True))
    play.hear(Ended(REF, ABORTED, None), source=STRANGER)
    play.gives(Send(STRANGER, Envelope(P0, 1, -1, hello(reply=True))))
    assert REF in play.machine.legs


def test_a_message_of_an_earlier_life_is_never_acted_on() -> None:
    play = prefill()
    restart(play, 3)
    ready(play)
    play.hear(Ended(REF, ABORTED, None), grant(4, 5), incarnation=2).gives()
    play.hear(hello(reply=True), incarnation=2).gives()
    play.hear(Ended(REF, ABORTED, None), incarnation=3).gives_of(End, End(REF, ABORTED))


@pytest.mark.parametrize("expects", [-1, 0, 2])
def test_a_message_for_another_life_of_this_worker_is_not_acted_on_and_is_told_of_this_one(expects: int) -> None:
    play = ready(prefill())
    play.hear(Ended(REF, ABORTED, None), expects=expects).gives(hello())
    assert REF in play.machine.legs


def test_every_message_names_the_life_of_both_ends() -> None:
    machine = Prefill(P0, config(), 5, 1)
    machine.handle(Envelope(D0, 9, -1, hello()))
    (sent_offer,) = (one for one in machine.handle(Submit(ASKED, REF, "D0")) if isinstance(one, Send))
    assert sent_offer == Send(D0, Envelope(P0, 5, 9, offer(ASKED, born=Epoch(5, 1))))


def test_a_hello_of_the_same_life_restarts_nothing_and_may_tell_of_other_capabilities() -> None:
    play = ready(prefill())
    play.hear(hello(settings=without("tags"))).gives()
    play.tell(Submit(request(1, "next"), "next", "D0"))
    assert play.machine.legs["next"].asked == SKEW


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_speaks_to_its_like_only(rank: int) -> None:
    play = prefill(config(ranks=2), rank)
    play.tell(Submit(ASKED, REF, "D0"))
    assert play.the(Offer)
    play.hear(hello(), Ended(REF, ABORTED, None), grant(4, 5), source=Address("D0", 1 - rank)).gives()


def test_epochs_count_up_and_name_the_life() -> None:
    play = prefill()
    born = []
    for name in "abc":
        play.tell(Submit(request(1, name), name, "D0"))
        born.append(play.the(Offer).born)
    assert born == [Epoch(1, 1), Epoch(1, 2), Epoch(1, 3)]


# Who may say what


def test_a_worker_does_not_greet_itself() -> None:
    """Somebody who uses its name is one of its ranks, and those say no hello."""
    for play in (prefill(), decode()):
        mine = play.machine.address
        play.hear(hello(reply=True), source=mine).gives()
        play.hear(hello(reply=True), source=Address(mine.worker, 1), incarnation=9).gives()
        assert mine not in play.machine.peers


TO_DECODE = [offer(ASKED), landed(*targets(4, 5)), Cancel(REF, GRAMMAR), Noted(REF, LEASE, DRAINED)]
TO_PREFILL = [grant(4, 5), Heard(REF), Ended(REF, GRAMMAR, LEASE)]
BETWEEN_RANKS = [Vote(REF, GRAMMAR, "P0"), Verdict(REF, GRAMMAR, None, "P0")]


@pytest.mark.parametrize("message", [*TO_DECODE, *BETWEEN_RANKS], ids=lambda message: type(message).__name__)
@each_state
def test_prefill_does_not_act_on_what_is_meant_for_decode(
    state: Callable[[Playbook[Prefill]], None], message: Message
) -> None:
    prefill().hear(message).gives()
    play = prefill()
    state(play)
    play.hear(message).gives()


@pytest.mark.parametrize("message", [*TO_PREFILL, *BETWEEN_RANKS], ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("state", DECODE_STATES, ids=lambda state: state.__name__)
def test_decode_does_not_act_on_what_is_meant_for_prefill(
    state: Callable[[Playbook[Decode]], object], message: Message
) -> None:
    decode().hear(message).gives()
    play = decode()
    state(play)
    play.hear(message).gives()


@pytest.mark.parametrize("message", [*TO_DECODE, *TO_PREFILL], ids=lambda message: type(message).__name__)
def test_what_peers_say_is_not_believed_of_a_rank_of_the_same_worker(message: Message) -> None:
    for rank in (0, 1):
        play = receiving(decode(config(ranks=2), rank))
        play.hear_rank(1 - rank, message).gives()
        sender = ready(prefill(config(ranks=2), rank))
        sender.hear_rank(1 - rank, message).gives()


# The peer of prefill comes back


@each_state
def test_a_restart_of_the_peer_ends_a_leg_in_any_state_but_frees_no_page_in_use(
    state: Callable[[Playbook[Prefill]], None],
) -> None:
    play = prefill()
    state(play)
    under_way = operations(play)
    restart(play)
    assert End(REF, RESTARTED) in play.of(End)
    play.gives_no(Cancel, Noted)
    finish_local_work(play, state)
    play.tell(*(Completed(one) for one in under_way))
    assert REF not in play.machine.legs


def test_a_restart_of_the_peer_ends_a_leg_that_was_cancelling() -> None:
    play = ready(prefill()).tell(Abort(REF))
    restart(play).gives(Timer(REF, 0), End(REF, RESTARTED))
    play = ready(prefill()).hear(grant(4, 5)).hear(Ended(REF, ABORTED, LEASE))
    restart(play).gives()


def test_a_restart_of_another_worker_concerns_no_leg() -> None:
    play = ready(prefill())
    for incarnation in (1, 2):
        play.hear(Hello(config().capabilities(), False), source=Address("D1"), incarnation=incarnation).gives()
    play.hear(grant(4, 5))
    assert [write.to for write in play.of(Write)] == [D0, D0]
    assert play.machine.address == P0


# What has ended on prefill


def test_an_end_that_is_told_again_is_noted_again_with_how_far_operations_drained() -> None:
    play = ready(prefill()).hear(grant(4, 5))
    under_way = operations(play)
    ended = Ended(REF, ABORTED, LEASE)
    play.hear(ended, ended).gives_of((End, Noted), End(REF, ABORTED), *2 * [Noted(REF, LEASE, PENDING)])
    play.tell(*(Completed(one) for one in under_way))
    play.hear(ended).gives(Noted(REF, LEASE, DRAINED))


def test_an_ended_request_is_not_begun_again() -> None:
    play = ready(prefill()).hear(Ended(REF, ABORTED, None))
    play.tell(Submit(ASKED, REF, "D0"), Submit(request(name="other", first=10), REF, "D0")).gives(
        End(REF, ABORTED), End(REF, ABORTED)
    )


@pytest.mark.parametrize(("epoch", "drained"), [(None, DRAINED), (LEASE, DOUBTFUL)])
def test_a_request_that_decode_ended_first_ends_when_it_comes(epoch: Epoch | None, drained: str) -> None:
    """Of a lease that this life of prefill never had, nothing is known, and unknown is not drained."""
    play = prefill()
    play.hear(Ended(REF, LENGTH, epoch)).gives(Noted(REF, epoch, drained))
    play.tell(Submit(ASKED, REF, "D0")).gives(End(REF, LENGTH))


def test_a_peer_cannot_end_what_is_to_be_served_with_another_peer() -> None:
    play = prefill()
    stranger = Address("D1")
    play.hear(Hello(config().capabilities(), False), Ended(REF, LENGTH, None), source=stranger)
    play.tell(Submit(ASKED, REF, "D0")).gives_of((Offer, End), offer(ASKED))
    play.hear(Ended(REF, LENGTH, None), Grant(REF, LEASE, 1, targets(4, 5), True), source=stranger).gives()


# What ended on decode before it came


def test_a_cancel_of_a_request_that_has_not_come_ends_it_when_it_comes() -> None:
    play = decode().hear(Cancel(REF, GRAMMAR)).gives(Ended(REF, GRAMMAR, None))
    play.tell(Submit(ASKED, REF, "P0")).gives(End(REF, GRAMMAR), Answer(REF, "r", GRAMMAR))
    play.hear(offer(ASKED)).gives(Ended(REF, GRAMMAR, None))


def test_what_another_peer_cancelled_is_not_told_to_the_peer_that_serves_the_request() -> None:
    play = decode().hear(hello(), Cancel(REF, GRAMMAR), source=Address("P1"))
    play.hear(offer(ASKED)).gives()
    assert play.tell(Submit(ASKED, REF, "P0")).of(Grant)


def test_what_landed_of_a_request_that_another_peer_cancelled_is_not_answered_with_that() -> None:
    play = decode().hear(hello(), Cancel(REF, GRAMMAR), source=Address("P1"))
    play.hear(landed(*targets(4, 5))).gives()
    play.hear(Cancel(REF, LENGTH)).gives(Ended(REF, LENGTH, None))
    play.hear(landed(*targets(4, 5)), offer(ASKED)).gives(*2 * [Ended(REF, LENGTH, None)])


def test_what_one_decode_ended_is_not_noted_to_another() -> None:
    play = prefill().hear(hello(), Ended(REF, LENGTH, LEASE), source=STRANGER)
    play.hear(Ended(REF, GRAMMAR, None)).gives(Noted(REF, None, DRAINED))
    play.tell(Submit(ASKED, REF, "D0")).gives(End(REF, GRAMMAR))


def test_a_client_that_lets_go_before_its_request_comes_is_not_served() -> None:
    play = decode().tell(Abort(REF)).gives()
    play.hear(offer(ASKED)).gives(Ended(REF, ABORTED, None))
    play.tell(Submit(ASKED, REF, "P0")).gives(End(REF, ABORTED), Answer(REF, "r", ABORTED))
    play.tell(Abort(REF)).gives()


def test_what_a_stranger_cancels_stands_beside_what_the_peer_cancelled() -> None:
    play = decode().hear(Cancel(REF, LENGTH)).hear(hello(), Cancel(REF, GRAMMAR), source=Address("P1"))
    play.hear(Cancel(REF, TIMED_OUT)).gives(Ended(REF, LENGTH, None))
    play.tell(Submit(ASKED, REF, "P0")).gives(End(REF, LENGTH), Answer(REF, "r", LENGTH))
    sender = prefill().hear(Ended(REF, LENGTH, LEASE)).hear(hello(), Ended(REF, GRAMMAR, None), source=STRANGER)
    sender.hear(Ended(REF, LENGTH, LEASE)).gives(Noted(REF, LEASE, DOUBTFUL))
    sender.tell(Submit(ASKED, REF, "D0")).gives(End(REF, LENGTH))


def test_a_client_that_lets_go_before_its_request_comes_is_heard_whatever_a_stranger_has_cancelled() -> None:
    play = decode().hear(hello(), Cancel(REF, GRAMMAR), source=Address("P1")).tell(Abort(REF)).gives()
    play.hear(offer(ASKED)).gives(Ended(REF, ABORTED, None))
    play.tell(Submit(ASKED, REF, "P0")).gives(End(REF, ABORTED), Answer(REF, "r", ABORTED))


def test_a_peer_cannot_cancel_what_is_to_be_served_with_another_peer() -> None:
    play = decode()
    play.hear(Hello(config().capabilities(), False), Cancel(REF, GRAMMAR), source=Address("P1"))
    play.tell(Submit(ASKED, REF, "P0")).gives(Timer(REF, 30.0))
    play.hear(Cancel(REF, GRAMMAR), landed(*targets(4, 5)), source=Address("P1")).gives()
