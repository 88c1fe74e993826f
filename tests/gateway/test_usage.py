"""What answers say of their tokens is read of all endpoints, and what is unclear is unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.gateway.usage import Tally, Usage, read_usage

DATA = Path(__file__).parent / "data"


def generated(prompt: int, completion: int | None = 2, **more: Any) -> dict[str, Any]:
    return {"text": "a", "meta_info": {"prompt_tokens": prompt, "completion_tokens": completion}, **more}


def part(choice: int | None, prompt: int, completion: int = 1, reason: str | None = None) -> bytes:
    choices = [] if choice is None else [{"index": choice, "finish_reason": reason}]
    return json.dumps(
        {"choices": choices, "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    ).encode()


def test_what_a_real_engine_answered() -> None:
    assert read_usage((DATA / "vllm-0.32.0-completion.json").read_bytes()) == Usage(8191, 1)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 2}, "choices": [{"finish_reason": "stop"}]}, Usage(5, 2)),
        ({"usage": {"prompt_tokens": 5, "completion_tokens": None}, "choices": None}, Usage(5, None)),
        ({"usage": {"prompt_tokens": 0}}, Usage(0, None)),
        ({"usage": {"prompt_tokens": 5}, "choices": [{}, {"finish_reason": "abort"}]}, Usage(5, None, aborted=True)),
        (generated(5), Usage(5, 2)),
        ([generated(5), generated(7, 0)], Usage(12, 2)),
        ([generated(5), generated(7, None)], Usage(12, None)),
        ({"meta_info": {"prompt_tokens": 5, "finish_reason": {"type": "length", "length": 0}}}, Usage(5, None)),
        ({"meta_info": {"prompt_tokens": 5, "finish_reason": {"type": "abort"}}}, Usage(5, None, aborted=True)),
        ({"meta_info": {"prompt_tokens": 5, "finish_reason": "abort"}}, Usage(5, None, aborted=True)),
        ({"usage": {"prompt_tokens": 10**30, "completion_tokens": 1}}, Usage(10**30, 1)),
    ],
)
def test_answers(document: Any, expected: Usage) -> None:
    assert read_usage(json.dumps(document).encode()) == expected


def test_samples_say_the_tokens_of_their_prompt_again() -> None:
    body = json.dumps([generated(5), generated(5), generated(7), generated(7)]).encode()
    assert read_usage(body, 2) == Usage(12, 8)
    assert read_usage(bytearray(body), 1) == Usage(24, 8)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"5", b"[]", b"{}", b'{"usage":null}', b'{"usage":{}}', b'{"usage":{"prompt_tokens":null}}',
        b'{"usage":{"prompt_tokens":-1}}', b'{"usage":{"prompt_tokens":true}}', b'{"usage":{"prompt_tokens":5.5}}',
        b'{"usage":{"prompt_tokens":"5"}}', b'{"usage":{"prompt_tokens":%b}}' % (b"9" * 9999), b"[" * 99_999,
        b'[{"meta_info":{"prompt_tokens":5}},{}]', b'{"usage":{"prompt_tokens":5}} x', b"\xff",
    ],
)  # fmt: skip
def test_what_is_unclear_is_unknown(body: bytes) -> None:
    assert read_usage(body) is None
    tally = Tally()
    tally.add(body)
    assert tally.usage() is None


def test_stream_of_one_prompt() -> None:
    tally = Tally()
    assert tally.usage() is None
    tally.add(part(0, 5))
    tally.add(part(0, 5, 2))
    assert tally.usage() == Usage(5, 2)
    tally.add(part(None, 6, 9))
    assert tally.usage() == Usage(6, 9)


def test_stream_of_sglangs_own_endpoint() -> None:
    tally = Tally(2)
    tally.add(json.dumps(generated(5, 1, index=0)).encode())
    tally.add(json.dumps(generated(5, 3, index=0)).encode())
    assert tally.usage() is None
    tally.add(json.dumps(generated(7, 4, index=1)).encode())
    assert tally.usage() == Usage(12, 7)


def test_stream_of_several_samples() -> None:
    tally = Tally(2, 2)
    tally.add(part(1, 5))
    assert tally.usage() is None
    tally.add(part(2, 7))
    assert tally.usage() == Usage(12, None)
    tally.add(part(0, 5))
    tally.add(part(3, 7, 1, "abort"))
    assert tally.usage() == Usage(12, 4, aborted=True)


@given(prompts=st.lists(st.integers(0, 99), min_size=1, max_size=4), samples=st.integers(1, 3), data=st.data())
def test_order_makes_no_difference(prompts: list[int], samples: int, data: st.DataObject) -> None:
    choices = data.draw(st.permutations(range(len(prompts) * samples)))
    tally = Tally(len(prompts), samples)
    for choice in choices:
        tally.add(part(choice, prompts[choice // samples]))
    assert tally.usage() == Usage(sum(prompts), len(choices))


def test_choices_that_were_not_asked_for_are_not_kept() -> None:
    tally = Tally(1, 1)
    for choice in range(-5, 1000):
        tally.add(part(choice, 5))
    assert tally.usage() == Usage(5, 1)
    assert len(tally._parts) == 1
