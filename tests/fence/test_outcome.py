"""Every way a handoff ends has one name and one HTTP status."""

from __future__ import annotations

import pytest

from kvfence.fence import outcome
from kvfence.fence.outcome import ABORTED, CANARY, COMMITTED, PREEMPTED, REFUSALS, RETRIABLE, http_status

OUTCOMES = {name: value for name, value in vars(outcome).items() if name.isupper() and isinstance(value, str)}


def test_no_two_outcomes_have_one_name() -> None:
    assert len(OUTCOMES) == 18
    assert len(set(OUTCOMES.values())) == len(OUTCOMES)


def test_what_cannot_be_served_is_not_tried_again() -> None:
    assert not REFUSALS & RETRIABLE
    assert sorted(REFUSALS) == ["budget", "grammar", "length", "multimodal", "replayed-reference"]


def test_every_outcome_is_in_one_class() -> None:
    classes = [{COMMITTED}, REFUSALS, {ABORTED}, RETRIABLE, {CANARY}]
    assert sum(len(one) for one in classes) == len(OUTCOMES)
    assert set().union(*classes) == set(OUTCOMES.values())


@pytest.mark.parametrize("name", OUTCOMES)
def test_each_outcome_has_the_status_of_its_class(name: str) -> None:
    ended = OUTCOMES[name]
    expected = (
        {COMMITTED: 200, ABORTED: 499, CANARY: 500} | dict.fromkeys(REFUSALS, 400) | dict.fromkeys(RETRIABLE, 503)
    )
    assert http_status(ended) == expected[ended]


def test_only_a_commit_is_a_success() -> None:
    assert [name for name, ended in OUTCOMES.items() if http_status(ended) < 400] == ["COMMITTED"]


def test_a_preempted_request_may_come_again_and_an_aborted_one_is_nobody_s() -> None:
    assert http_status(PREEMPTED) == 503
    assert http_status(ABORTED) == 499


def test_an_outcome_of_a_later_release_is_an_error_of_the_server() -> None:
    assert http_status("later") == 500
