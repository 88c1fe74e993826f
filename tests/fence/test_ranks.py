"""Every rank of decode ends a handoff alike: the leader rules, and nobody beside its own ranks has a vote."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfence.fence import Decode
from kvfence.fence.commands import (
    Answer,
    CancelStep,
    Check,
    End,
    Send,
    Step,
    Timer,
)
from kvfence.fence.events import (
    Abort,
    Checked,
    Expired,
    Preempt,
    Refuse,
    Stepped,
    Submit,
    Verified,
)
from kvfence.fence.messages import (
    Address,
    Cancel,
    Ended,
    Grant,
    Heard,
    Hello,
    Message,
    Noted,
    Verdict,
    Vote,
)
from kvfence.fence.outcome import (
    ABORTED,
    BUDGET,
    CANARY,
    COMMITTED,
    GRAMMAR,
    LENGTH,
    RANK_SILENT,
    TAG,
)
from kvfence.fence.pool import FREE
from kvfence.fence.transfer import DRAINED
from tests.fence.playbook import (
    ASKED,
    LEASE,
    REF,
    Playbook,
    checking,
    config,
    decode,
    each_cause,
    each_state,
    each_uncommitted,
    finish_decode_work,
    full,
    lease,
    receiving,
    request,
    restart,
    targets,
    verifying,
    without,
)

Play = Playbook[Decode]
YES = Vote(REF, COMMITTED, "P0")


def pair(rank: int) -> Play:
    """Give one of two ranks of decode."""
    return decode(config(ranks=2), rank)


def committed(rank: int) -> Play:
    """Give one of two ranks whose handoff is committed, with its canaries under way."""
    play = pair(rank)
    checking(play)
    return play.hear_rank(1, YES) if rank == 0 else play.hear_rank(0, Verdict(REF, COMMITTED, None, "P0"))


def test_the_leader_commits_when_every_rank_is_ready_whoever_is_first() -> None:
    play = pair(0)
    checking(play)
    play.gives(Timer(REF, 30.0))
    play.hear_rank(1, YES)
    commit = [
        play.between_ranks(1, Verdict(REF, COMMITTED, None, "P0")),
        End(REF, COMMITTED),
        Ended(REF, COMMITTED, LEASE),
    ]
    play.gives(*commit, Timer(REF, 1.0), Check(REF, ASKED, targets(0, 1)))
    play = pair(0)
    verifying(play)
    play.hear_rank(1, YES).gives()
    play.tell(*(Verified(REF, unit, True) for unit in full(0, 1))).gives_of((Send, End, Ended), *commit)


def test_the_same_vote_twice_is_one_vote() -> None:
    play = decode(config(ranks=3))
    checking(play)
    play.hear_rank(1, YES, YES, YES).gives()
    play.hear_rank(2, YES).gives_of(End, End(REF, COMMITTED))


def test_a_follower_votes_again_and_again_and_never_ends_alone_after_a_yes() -> None:
    play = pair(1)
    checking(play)
    vote = play.between_ranks(0, YES)
    play.gives(vote, Timer(REF, 1.0))
    for _ in range(9):
        play.tell(Expired(REF)).gives(vote, Timer(REF, 1.0))
    play.tell(Abort(REF), Preempt(REF), Refuse(REF, BUDGET)).gives()
    play.hear(Cancel(REF, ABORTED)).gives(Heard(REF))
    restart(play).gives()
    play.hear_rank(0, Verdict(REF, COMMITTED, None, "P0")).gives_of(
        (End, Check), End(REF, COMMITTED), Check(REF, ASKED, targets(0, 1))
    )


@each_uncommitted
@each_cause
def test_a_follower_that_cannot_go_on_asks_the_leader_and_waits(
    state: Callable[[Play], object], event: object, outcome: str
) -> None:
    play = pair(1)
    state(play)
    play.tell(event).gives(play.between_ranks(0, Vote(REF, outcome, "P0")), Timer(REF, 1.0))
    finish_decode_work(play, state)
    play.gives_no(End, Answer)
    play.hear_rank(0, Verdict(REF, RANK_SILENT, None, "P0"))
    play.gives(End(REF, RANK_SILENT), Ended(REF, RANK_SILENT, lease(state)), Timer(REF, 1.0))
    play.hear(Noted(REF, lease(state), DRAINED))
    assert REF not in play.machine.legs


@each_uncommitted
@each_cause
def test_the_leader_that_cannot_go_on_ends_it_for_all(
    state: Callable[[Play], object], event: object, outcome: str
) -> None:
    play = pair(0)
    state(play)
    play.tell(event)
    assert play.got[:3] == [
        play.between_ranks(1, Verdict(REF, outcome, None, "P0")),
        End(REF, outcome),
        Answer(REF, "r", outcome),
    ]


@each_uncommitted
def test_one_rank_that_cannot_go_on_ends_it_for_all(state: Callable[[Play], object]) -> None:
    play = pair(0)
    state(play)
    play.hear_rank(1, Vote(REF, TAG, "P0")).gives_of(
        (Send, End), play.between_ranks(1, Verdict(REF, TAG, None, "P0")), End(REF, TAG)
    )
    play.hear_rank(1, YES).gives(play.between_ranks(1, Verdict(REF, TAG, None, "P0")))


def test_the_leader_may_still_end_it_after_its_own_yes() -> None:
    play = pair(0)
    checking(play)
    play.tell(Abort(REF)).gives_of(
        (Send, End), play.between_ranks(1, Verdict(REF, ABORTED, None, "P0")), End(REF, ABORTED)
    )


def test_a_rank_that_does_not_answer_counts_as_refusal() -> None:
    play = pair(0)
    checking(play)
    play.tell(Expired(REF))
    play.gives_of(
        (Send, Answer), play.between_ranks(1, Verdict(REF, RANK_SILENT, None, "P0")), Answer(REF, "r", RANK_SILENT)
    )


def test_only_the_leader_answers_the_client() -> None:
    pair(1).tell(Submit(request(9), REF, "P0")).gives_no(Answer)
    play = committed(1).tell(Checked(REF, ())).tell(Stepped(REF)).gives_beside_timers()
    assert play.machine.pool.count(FREE) == 4


def test_a_rank_asks_for_a_verdict_of_what_has_not_come_to_the_leader() -> None:
    play = pair(0).hear_rank(1, YES).gives(Timer(REF, 30.0))
    play.hear_rank(1, YES).gives()
    play.tell(Expired(REF)).gives()
    play.hear_rank(1, YES).gives(play.between_ranks(1, Verdict(REF, RANK_SILENT, None, "P0")))
    play.tell(Submit(ASKED, REF, "P0")).gives(End(REF, RANK_SILENT), Answer(REF, "r", RANK_SILENT))
    play = pair(0).hear_rank(1, YES).tell(Submit(ASKED, REF, "P0"))
    assert not play.machine.strangers


def test_a_rank_that_refuses_ends_what_has_not_come_to_the_leader() -> None:
    play = (
        pair(0)
        .hear_rank(1, Vote(REF, LENGTH, "P0"))
        .gives(play_verdict := pair(0).between_ranks(1, Verdict(REF, LENGTH, None, "P0")))
    )
    play.tell(Submit(ASKED, REF, "P0")).gives(End(REF, LENGTH), Answer(REF, "r", LENGTH))
    play.hear_rank(1, YES).gives(play_verdict)


def test_a_verdict_on_what_has_not_come_to_a_rank_ends_it_when_it_comes() -> None:
    play = pair(1).hear_rank(0, Verdict(REF, LENGTH, None, "P0"), Verdict(REF, LENGTH, None, "P0")).gives()
    play.tell(Submit(ASKED, REF, "P0")).gives(End(REF, LENGTH))


def test_a_follower_hands_a_cancel_of_what_has_not_come_to_the_leader() -> None:
    play = pair(1).hear(Cancel(REF, GRAMMAR)).gives(pair(1).between_ranks(0, Vote(REF, GRAMMAR, "P0")), Heard(REF))
    play.tell(Abort("other")).gives(play.between_ranks(0, Vote("other", ABORTED)))


@pytest.mark.parametrize(("said_by", "bound"), [("P0", True), ("P1", False), (None, True)])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_peer_cancelled_at_another_rank_binds_no_request_with_another_peer(
    rank: int, said_by: str | None, *, bound: bool
) -> None:
    play = pair(rank).hear_rank(1 - rank, Verdict(REF, TAG, None, said_by) if rank else Vote(REF, TAG, said_by))
    play.gives(*[play.between_ranks(1, Verdict(REF, TAG, None, said_by))] * (rank == 0 and said_by is not None))
    assert bool(play.tell(Submit(ASKED, REF, "P0")).of(End)) == bound


def test_a_committed_request_is_stopped_on_every_rank_by_the_leader() -> None:
    play = committed(0).tell(Checked(REF, ()))
    stop = play.between_ranks(1, Verdict(REF, COMMITTED, ABORTED, "P0"))
    play.tell(Abort(REF)).gives_beside_timers(stop, CancelStep(REF), Answer(REF, "r", ABORTED))
    play = committed(1).tell(Checked(REF, ()))
    play.hear_rank(0, Verdict(REF, COMMITTED, ABORTED, "P0")).gives_beside_timers(CancelStep(REF))
    assert play.machine.pool.count(FREE) == 4


def test_a_follower_that_meets_a_bad_page_after_the_commit_stops_the_request_through_the_leader() -> None:
    play = committed(1).tell(Checked(REF, full(0)))
    vote = play.between_ranks(0, Vote(REF, CANARY, "P0"))
    play.gives(vote, Timer(REF, 1.0)).hear(Noted(REF, LEASE, DRAINED))
    assert play.timer() != 0
    play.tell(Expired(REF)).gives(vote, Timer(REF, 1.0))
    play.hear_rank(0, Verdict(REF, COMMITTED, CANARY, "P0")).gives_no(Step, End)
    assert play.machine.pool.count(FREE) == 4
    play = committed(0).hear_rank(1, Vote(REF, CANARY, "P0"))
    play.gives_beside_timers(play.between_ranks(1, Verdict(REF, COMMITTED, CANARY, "P0")), Answer(REF, "r", CANARY))


def test_a_vote_after_the_request_is_over_gets_the_verdict_again() -> None:
    play = (
        committed(0)
        .hear_rank(1, YES)
        .gives(play_verdict := pair(0).between_ranks(1, Verdict(REF, COMMITTED, None, "P0")))
    )
    play.tell(Checked(REF, ())).tell(Stepped(REF)).hear_rank(1, Vote(REF, CANARY, "P0")).gives(play_verdict)
    play.hear(Noted(REF, LEASE, DRAINED)).hear_rank(1, Vote(REF, CANARY, "P0")).gives(play_verdict)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_that_some_rank_never_asks_for_is_given_up(rank: int) -> None:
    play = committed(rank).tell(Checked(REF, ())).hear(Noted(REF, LEASE, DRAINED))
    assert play.timer() == 30.0
    play.tell(Expired(REF))
    message = Vote(REF, RANK_SILENT, "P0") if rank else Verdict(REF, COMMITTED, RANK_SILENT, "P0")
    play.gives_of((Send, CancelStep), *[play.between_ranks(1 - rank, message), CancelStep(REF)][:: -1 if rank else 1])


@pytest.mark.parametrize("incarnation", [0, 2])
def test_words_of_another_life_of_a_rank_are_ignored(incarnation: int) -> None:
    play = pair(0)
    checking(play)
    play.hear(YES, source=Address("D0", 1), incarnation=incarnation).gives()


VOTES: list[Message] = [Vote(REF, COMMITTED, "P0"), Vote(REF, TAG, "P0")]
VERDICTS: list[Message] = [
    Verdict(REF, COMMITTED, None, "P0"),
    Verdict(REF, TAG, None, "P0"),
    Verdict(REF, COMMITTED, TAG, "P0"),
]
RULES = [*VOTES, *VERDICTS]


@each_state
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("ranks", [1, 2])
def test_no_worker_but_its_own_has_a_vote_or_rules(state: Callable[[Play], object], ranks: int, rank: int) -> None:
    play = decode(config(ranks=ranks), rank % ranks)
    state(play)
    play.hear(*RULES).gives()
    stranger = Address("D1", rank)
    play.hear(Hello(play.machine.config.capabilities(), reply=False), *RULES, source=stranger).gives()


@pytest.mark.parametrize("rank", [0, 1])
def test_another_worker_ends_nothing_that_has_not_come_by_a_vote_or_a_verdict(rank: int) -> None:
    play = pair(rank).hear(*RULES).gives()
    play.tell(Submit(ASKED, REF, "P0")).gives(Timer(REF, 30.0))


@each_state
def test_only_the_leader_counts_votes_and_only_it_rules(state: Callable[[Play], object]) -> None:
    play = pair(0)
    state(play)
    play.hear_rank(1, *VERDICTS).gives()
    play = decode(config(ranks=3), rank=1)
    state(play)
    play.hear_rank(0, *VOTES).gives()
    play.hear_rank(2, *RULES).gives()


def test_without_rank_agreement_nobody_votes_or_rules() -> None:
    for rank in (0, 1):
        play = decode(without("rank-agreement", ranks=2), rank)
        receiving(play).hear_rank(1 - rank, *RULES).gives()


def test_a_rank_that_has_not_seen_the_request_passes_on_no_word_of_another_worker() -> None:
    """Rank 1 hears a cancel of P1 for what is served with P0, and the leader knows that."""
    leader, follower = receiving(pair(0)), pair(1)
    follower.hear(Hello(config(ranks=2).capabilities(), reply=False), Cancel(REF, GRAMMAR), source=Address("P1", 1))
    votes = [one for one in follower.of(Send) if isinstance(one.envelope.message, Vote)]
    assert votes == [follower.between_ranks(0, Vote(REF, GRAMMAR, "P1"))]
    leader.tell(votes[0].envelope).gives()
    leader.hear_rank(1, Vote(REF, GRAMMAR, "P0")).gives_of(End, End(REF, GRAMMAR))


@each_state
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_on_a_handoff_with_another_worker_ends_none_of_that_name(
    state: Callable[[Play], object], verdict: Verdict
) -> None:
    play = pair(1)
    state(play)
    play.hear_rank(0, verdict._replace(said_by="P1"), verdict._replace(said_by=None)).gives()


@each_state
@pytest.mark.parametrize("vote", VOTES)
def test_a_vote_on_a_handoff_with_another_worker_counts_for_none_of_that_name(
    state: Callable[[Play], object], vote: Vote
) -> None:
    play = pair(0)
    state(play)
    play.hear_rank(1, vote._replace(said_by="P1")).gives()


def test_a_worker_that_cancels_at_the_leader_ends_no_handoff_with_another_worker() -> None:
    leader, follower = pair(0), pair(1)
    leader.hear(Hello(config(ranks=2).capabilities(), reply=False), Cancel(REF, GRAMMAR), source=Address("P1"))
    said = Verdict(REF, GRAMMAR, None, "P1")
    assert leader.between_ranks(1, said) in leader.got
    receiving(follower).hear_rank(0, said).gives()
    assert follower.machine.legs[REF].outcome is None
    leader.hear_rank(1, YES).gives(Timer(REF, 30.0))
    receiving(leader)
    leader.gives_of(Grant, Grant(REF, LEASE, 1, targets(4, 5), True))


def test_the_leader_answers_a_vote_by_what_binds_the_worker_that_it_names() -> None:
    play = pair(0).hear(Hello(config(ranks=2).capabilities(), reply=False), source=Address("P1"))
    play.hear(Cancel(REF, LENGTH)).hear(Cancel(REF, GRAMMAR), source=Address("P1"))
    for peer, outcome in (("P0", LENGTH), ("P1", GRAMMAR)):
        play.hear_rank(1, Vote(REF, COMMITTED, peer))
        play.gives(play.between_ranks(1, Verdict(REF, outcome, None, peer)))


def test_without_rank_agreement_every_rank_ends_for_itself() -> None:
    play = decode(without("rank-agreement", ranks=2), rank=1)
    checking(play)
    play.gives_of((Send, End), End(REF, COMMITTED))
