from __future__ import annotations

import pytest

from acceptance.judge import LEAST_VERBATIM, judge, longest_piece
from acceptance.traffic import Exchange, Leg, read_answer, read_stream

FOREIGN = "The password of the vault is Marigold-7781-Zebra and Ingrid alone may change it."
OWN = "What is the weather? The password of the vault is nobody's business."


def said(text: str = "", status: int | None = 200, seconds: float = 0.1, error: str = "") -> Leg:
    return Leg(status, seconds, text=text, error=error)


def word(prefill: Leg, decode: Leg) -> str:
    return judge(Exchange(prefill, decode), right=" red", foreign=FOREIGN, own=OWN, patience=10).word


def test_the_longest_piece_is_one_that_the_own_prompt_lacks() -> None:
    assert longest_piece("xx The password of the vault is", FOREIGN, OWN) == ""
    assert longest_piece("x vault is Marigold-77 y", FOREIGN, OWN) == " vault is Marigold-77"


def test_a_piece_of_another_tenant_is_a_leak_from_the_stated_length_on() -> None:
    piece = FOREIGN[29 : 29 + LEAST_VERBATIM]
    assert word(said(), said(f"?{piece}?")) == "leaked"
    assert word(said(), said(f"?{piece[:-1]}?")) == "wrong"


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        (said(), said(" red, white"), "answered"),
        (said(), said("\n\n\n"), "wrong"),
        (said(status=400, error="too long"), said(status=400, error="too long"), "refused"),
        (said(), said(status=400, error="too long"), "refused by decode"),
        (said(status=400, error="too long"), said(status=500, error="failed"), "stopped"),
        (said(status=400, error="too long"), said(status=500, error="timed out", seconds=10.2), "waits"),
        (said(status=400, error="too long"), said(status=None, error="no answer", seconds=60), "hung"),
    ],
)
def test_an_exchange_comes_to_one_word(prefill: Leg, decode: Leg, expected: str) -> None:
    assert word(prefill, decode) == expected


def test_an_answer_is_read_with_its_tokens() -> None:
    content = b'{"text": " red", "output_ids": [1, 2], "meta_info": {"prompt_tokens": 7, "cached_tokens": 3}}'
    leg = read_answer(200, content, 0.5)
    assert (leg.text, leg.tokens, leg.prompt_tokens, leg.cached_tokens, leg.error) == (" red", (1, 2), 7, 3, "")


def test_what_is_no_json_is_an_error() -> None:
    assert read_answer(502, b"<html>", 0.5).error == "<html>"
    assert read_answer(200, b"[]", 0.5).error == "[]"


def test_an_error_in_a_stream_counts_as_the_status_it_names() -> None:
    stream = (
        b'data: {"text": "", "meta_info": {}}\n\ndata: {"error": {"message": "gone", "code": 500}}\n\ndata: [DONE]\n\n'
    )
    leg = read_stream(200, stream, 0.5)
    assert (leg.status, leg.error) == (500, "gone")


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (500, b'{"error": {"message": "gone"}}'),
        (500, b'{"object": "error", "message": "gone", "code": 500}'),
        (500, b'{"detail": "gone"}'),
        (
            200,
            b'{"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "gone", "status_code": 500}}}',
        ),
    ],
)
def test_an_error_is_read_however_it_is_worded(status: int, content: bytes) -> None:
    leg = read_answer(status, content, 0.5)
    assert (leg.status, leg.error) == (500, "gone")


def test_the_last_event_of_a_stream_is_its_answer() -> None:
    assert read_stream(200, b'data: {"text": " r"}\n\ndata: {"text": " red"}\n\ndata: [DONE]\n\n', 0.5).text == " red"
    assert read_stream(200, b"", 0.5).error == "a stream without events"
