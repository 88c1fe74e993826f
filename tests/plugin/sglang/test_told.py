"""Decode gives its client prefill's own error, and is never led astray by what a client wrote."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.plugin.sglang.notices import REASON, told_reason
from tests.plugin.sglang.parts import FAILED


def told(message: Any, status: Any = 500) -> tuple[Any, Any]:
    """Give the message and the status that a request ends with."""
    seen: list[tuple[Any, Any]] = []
    told_reason(lambda _req, error, status_code=None: seen.append((error, status_code)), "req", message, status)
    return seen[0]


@pytest.mark.parametrize(
    "text", ["Input length (9 tokens) exceeds", "a: b: c", "two\nlines", "", "\u00e9\u4e2d", "400:x"]
)
@pytest.mark.parametrize("status", [400, 422, 500, 503])
def test_a_reason_becomes_the_error(status: int, text: str) -> None:
    assert told(f"{FAILED}{REASON}{status}:{text}") == (text, HTTPStatus(status))


@pytest.mark.parametrize(
    "status", ["999", "0", "200", "304", "99", "", " 400", "+400", "4e2", "\u0664\u0660\u0660", "\u00b2"]
)
def test_what_is_no_status_of_an_error_is_no_reason(status: str) -> None:
    message = f"{FAILED}{REASON}{status}:text"
    assert told(message) == (message, 500)


@pytest.mark.parametrize("rest", ["", "400", "400;text", "text", ":", ":400:text"])
def test_what_is_cut_short_is_no_reason(rest: str) -> None:
    message = f"{FAILED}{REASON}{rest}"
    assert told(message) == (message, 500)


@pytest.mark.parametrize("message", ["Aborted", "Aborted by AbortReq.", "", None, FAILED + "Failed to send kv chunk"])
def test_other_messages_pass_as_they_are(message: str | None) -> None:
    assert told(message, None) == (message, None)


@given(message=st.text() | st.builds((FAILED + REASON).__add__, st.text(alphabet="0459:+ \n\u0664x")))
def test_no_message_is_too_strange(message: str) -> None:
    error, status = told(message)
    assert (error, status) == (message, 500) or HTTPStatus(status) >= HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize("where", ["Decode handshake", "Prefill bootstrap", "Prefill transfer", "Decode transfer"])
def test_a_request_id_of_many_digits_ends_no_server(where: str) -> None:
    """`int()` refuses more than 4300 digits, and an exception here ends the scheduler."""
    rid = f"{REASON}{'9' * 5000}:x"
    message = f"{where} failed for request rank=0 req.rid={rid!r} req.bootstrap_room=1"
    assert told(message) == (message, 500)


def test_a_request_id_gives_no_reason_where_no_peer_spoke() -> None:
    message = f"Request {REASON}418:teapot exceeds the maximum number of tokens: 9 > 8"
    assert told(message, 400) == (message, 400)
