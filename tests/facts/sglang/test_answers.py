from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from kvfence.facts.dialects.sglang.answers import FOLLOWED_LINES, WINDOW, AnswerSearch
from kvfence.facts.fact import Evidence
from kvfence.facts.happenings import Answer, Refusal
from tests.facts.conftest import access, at, batch, refusal, refusals, stamped

NOON = datetime(2026, 11, 30, 12)  # noqa: DTZ001 (the log's own clock)
ANSWERED, REFUSED, UNCLEAR = Answer.ANSWERED, Answer.REFUSED, Answer.UNCLEAR


def answers(*messages: str) -> list[Answer]:
    return [one.answer for one in sorted(refusals(stamped(*messages)), key=lambda one: one.rid or "")]


def search(*lines: tuple[int, str]) -> list[Refusal]:
    """Feed a search directly: seconds and messages; a refusal is named by its id."""
    found = AnswerSearch()
    for number, (seconds, message) in enumerate(lines, 1):
        evidence = Evidence("w.log", message, number)
        time = NOON + timedelta(seconds=seconds)
        if message.startswith("r"):
            found.refused(Refusal(2000, 1018, message, time, evidence))
        else:
            found.look_at(message, time, evidence)
    return found.close()


def test_placeholder_and_200_are_an_answer() -> None:
    (found,) = refusals(stamped(refusal(), batch(1), access(200)))
    assert (found.answer, found.tokens, found.limit, found.rid) == (ANSWERED, 2000, 1018, "r1")
    assert [line.line for line in found.chain] == [2, 3]
    assert [line.text[:7] for line in found.chain] == ["Prefill", '"POST /']


def test_error_of_the_http_server_is_a_refusal() -> None:
    told = "[http_server] Error: " + refusal().partition("., self.rid")[0] + "."
    assert answers(refusal(), told, access(400)) == [REFUSED]
    assert answers(refusal(), batch(1), told, access(200)) == [REFUSED]
    assert answers(refusal(), told.replace("2000", "2001"), access(400)) == [UNCLEAR]


@pytest.mark.parametrize("status", [400, 401, 500])
def test_error_status_alone_may_be_of_another_client(status: int) -> None:
    assert answers(refusal(), access(status)) == [UNCLEAR]
    assert answers(refusal(), batch(1), access(status)) == [UNCLEAR]


def test_nothing_after_it_is_unclear() -> None:
    assert answers(refusal()) == [UNCLEAR]


def test_200_without_a_placeholder_is_another_request() -> None:
    assert answers(refusal(), access(200)) == [UNCLEAR]
    assert answers(refusal(), batch(1000), access(200)) == [UNCLEAR]


def test_placeholder_alone_is_unclear() -> None:
    assert answers(refusal(), batch(1)) == [UNCLEAR]


def test_two_refusals_in_one_batch_are_both_answered() -> None:
    assert answers(refusal(rid="a"), refusal(rid="b"), batch(2, 2), access(200), access(200)) == [ANSWERED] * 2


def test_two_refusals_with_one_answer_leave_one_open() -> None:
    assert answers(refusal(rid="a"), refusal(rid="b"), batch(2, 2), access(200)) == [ANSWERED, UNCLEAR]


def test_two_refusals_one_after_the_other() -> None:
    messages = (refusal(rid="a"), batch(1), access(200), refusal(rid="b"), access(400))
    assert answers(*messages) == [ANSWERED, UNCLEAR]


def test_batch_of_a_real_prompt_is_no_placeholder() -> None:
    assert answers(refusal(), batch(2, 1), access(200)) == [UNCLEAR]


def test_batch_before_the_refusal_does_not_count() -> None:
    assert answers(batch(1), refusal(), access(200)) == [UNCLEAR]


def test_error_of_another_client_does_not_end_the_search() -> None:
    assert answers(refusal(), access(401), batch(1), access(200)) == [ANSWERED]
    assert answers(refusal(), batch(1), access(400), access(200)) == [ANSWERED]


def test_health_check_hides_no_answer() -> None:
    """`/health` need not run a batch, and the one batch there is can only be the placeholder."""
    health = 'INFO:     127.0.0.1:55158 - "GET /health HTTP/1.1" 200 OK'
    one = (refusal(), batch(1), health, access(200))
    assert answers(*(message.replace("'r1'", f"'r{n}'") for n in range(5) for message in one)) == [ANSWERED] * 5


def test_every_rank_logs_the_one_refusal() -> None:
    nameless = refusal().partition(", self.rid")[0]
    ranks = "".join(f"[2026-11-30 12:00:00 TP{rank}] {nameless}\n" for rank in range(8))
    named = "".join(f"[2026-11-30 12:00:01 PP{rank}] {refusal(rid='x')}\n" for rank in range(2))
    assert [one.rid for one in refusals(ranks + named)] == [None, "x"]


def test_one_rank_that_refuses_twice_refused_two() -> None:
    nameless = refusal().partition(", self.rid")[0]
    assert len(refusals(f"[2026-11-30 12:00:00 TP0] {nameless}\n" * 2)) == 2


@pytest.mark.parametrize("path", ["/health", "/freeze_gc", "/flush_cache", "/generated", "/v1/embeddings", "/metrics"])
def test_answers_of_other_endpoints_do_not_count(path: str) -> None:
    assert answers(refusal(), batch(1), access(200, path)) == [UNCLEAR]


@pytest.mark.parametrize(
    "path",
    [
        "/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/api/chat",
        "/generate?x=1",
    ],
)
def test_every_generating_endpoint_counts(path: str) -> None:
    assert answers(refusal(), batch(1), access(200, path)) == [ANSWERED]


def test_answer_after_the_window_is_not_its_own() -> None:
    late = int(WINDOW.total_seconds()) + 1
    (found,) = search((0, "r1"), (1, batch(1)), (late, access(200)))
    assert found.answer is UNCLEAR
    assert len(found.chain) == 1


def test_answer_at_the_end_of_the_window_is() -> None:
    (found,) = search((0, "r1"), (1, batch(1)), (int(WINDOW.total_seconds()), access(200)))
    assert found.answer is ANSWERED


def test_answer_many_lines_later_is_not_its_own() -> None:
    noise = [(1, "something else")] * (FOLLOWED_LINES + 1)
    (found,) = search((0, "r1"), (0, batch(1)), *noise, (1, access(200)))
    assert found.answer is UNCLEAR


def test_window_of_one_refusal_does_not_close_another() -> None:
    found = search((0, "r1"), (100, "r2"), (130, batch(1)), (131, access(200)))
    assert {one.rid: one.answer for one in found} == {"r1": UNCLEAR, "r2": ANSWERED}


def test_refusal_without_a_time_stays_open() -> None:
    found = AnswerSearch()
    found.refused(Refusal(2, 1, "r", None, Evidence("w.log", "r", 1)))
    found.look_at(batch(1), NOON, Evidence("w.log", "b", 2))
    found.look_at(access(200), None, Evidence("w.log", "a", 3))
    assert [one.answer for one in found.close()] == [ANSWERED]


def test_lines_without_a_refusal_say_nothing() -> None:
    assert search((0, batch(1)), (1, access(200)), (2, access(400))) == []


def test_busy_log_between_refusal_and_answer_is_seen_through() -> None:
    noise = [message for _ in range(20) for message in (batch(900), "Decode batch, #running-req: 3, token usage: 0.10")]
    assert answers(refusal(), *noise, batch(1), access(200)) == [ANSWERED]


def test_refusals_of_earlier_starts_are_kept() -> None:
    text = stamped(refusal(), batch(1), access(200)) + at(500, "server_args={'model_path': 'm', 'tp_size': 1}") + "\n"
    assert [one.answer for one in refusals(text)] == [ANSWERED]


def test_many_refusals_are_followed_in_step() -> None:
    found = search(*[(n // 50, line) for n in range(2000) for line in (f"r{n}", batch(1), access(200))])
    assert len(found) == 2000
    assert {one.answer for one in found} == {ANSWERED}
