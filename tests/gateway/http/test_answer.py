"""Answers as bytes."""

from __future__ import annotations

import httptools
import msgspec
import pytest

from kvfence.gateway.http.answer import CHUNKED, LAST_CHUNK, chunk, head, headers_of, whole
from kvfence.gateway.problem import Problem


class Taken:
    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name] = value

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def taken(data: bytes) -> tuple[int, Taken]:
    answer = Taken()
    parser = httptools.HttpResponseParser(answer)
    parser.feed_data(data)
    return parser.get_status_code(), answer


def test_an_answer_of_a_known_length() -> None:
    status, answer = taken(head(200, [(b"content-type", b"a/b")], 3, b"gw-1", keep_alive=True) + b"abc")
    assert (status, answer.body, answer.complete) == (200, b"abc", True)
    assert answer.headers == {b"content-type": b"a/b", b"content-length": b"3", b"x-request-id": b"gw-1"}


def test_an_answer_in_chunks() -> None:
    status, answer = taken(head(200, [], CHUNKED, b"", keep_alive=False) + chunk(b"ab" * 20) + chunk(b"c") + LAST_CHUNK)
    assert (status, answer.body, answer.complete) == (200, b"ab" * 20 + b"c", True)
    assert answer.headers == {b"transfer-encoding": b"chunked", b"connection": b"close"}


def test_an_answer_that_ends_with_its_connection() -> None:
    status, answer = taken(head(200, [], None, b"", keep_alive=False) + b"abc")
    assert (status, answer.body, answer.complete) == (200, b"abc", False)


@pytest.mark.parametrize("status", [200, 400, 418, 431, 499, 503, 599])
def test_any_status_has_a_line(status: int) -> None:
    assert taken(head(status, [], 0, b"", keep_alive=True))[0] == status


def test_a_problem_is_a_document_and_says_when_to_come_back() -> None:
    status, answer = taken(whole(Problem(503, "too many", code="overloaded", retry_after=2)))
    assert (status, answer.complete) == (503, True)
    assert answer.headers[b"retry-after"] == b"2"
    assert answer.headers[b"connection"] == b"close"
    assert msgspec.json.decode(answer.body)["error"]["code"] == "overloaded"


def test_a_method_that_is_not_allowed_is_told_which_one_is() -> None:
    assert (b"allow", b"POST") in headers_of(Problem(405, "no", allow="POST"))
    assert all(name != b"allow" for name, _ in headers_of(Problem(404, "no")))
