from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts.dialects.sglang.finish import read_finish
from kvfence.facts.happenings import Finish
from tests.facts.conftest import at, tell_one


def text_line(prompt: str = "Hello", rid: str = "r1", room: str = "7", reason: str = "length") -> str:
    """Write a request's end as `--log-requests` does."""
    out = {
        "text": "an answer",
        "meta_info": {
            "id": rid,
            "finish_reason": {"type": reason, "length": 8},
            "prompt_tokens": 2000,
            "completion_tokens": 8,
        },
    }
    return f"GenerateReqInput(rid={rid!r}, text={prompt!r}, bootstrap_room={room}, stream=False), out={out!r}"


def json_line(prompt: str = "Hello", rid: str = "r1", room: int | None = 7) -> str:
    entry = {
        "timestamp": "2026-11-30T15:19:13.2",
        "event": "request.finished",
        "rid": rid,
        "obj": {"rid": rid, "text": prompt, "bootstrap_room": room},
        "out": {"meta_info": {"finish_reason": {"type": "length"}, "prompt_tokens": 2000, "completion_tokens": 8}},
    }
    return json.dumps(entry)


def finish(rest: str) -> Finish:
    found = read_finish(rest, None, "w.log", 7)
    assert found is not None
    return found


@pytest.mark.parametrize("rest", [text_line(), json_line()], ids=["text", "JSON"])
def test_ids_and_lengths_are_read(rest: str) -> None:
    found = finish(rest)
    assert (found.rid, found.room, found.prompt_tokens, found.completion_tokens) == ("r1", "7", 2000, 8)
    assert not found.aborted
    assert found.evidence.place == "w.log:7"


@pytest.mark.parametrize("line", [f"Finish: obj={text_line()}", json_line()], ids=["text", "JSON"])
def test_log_line_is_read(line: str) -> None:
    stamped = line if line.startswith("{") else at(5, line)
    (found,) = tell_one(stamped + "\n").happenings.finishes
    assert (found.rid, found.prompt_tokens) == ("r1", 2000)
    assert found.time is not None


def test_lists_of_one_request_are_read() -> None:
    found = finish("GenerateReqInput(rid=['r1'], bootstrap_room=[7]), out={'meta_info': {'prompt_tokens': 3}}")
    assert (found.rid, found.room, found.prompt_tokens, found.completion_tokens) == ("r1", "7", 3, None)


def test_abort_is_told() -> None:
    assert finish(text_line(reason="abort")).aborted
    assert not finish(text_line(reason="stop")).aborted


def test_request_without_an_id_says_nothing() -> None:
    assert read_finish("GenerateReqInput(text='x'), out={}", None, "w.log", 1) is None


SPOOFS = [
    "'prompt_tokens': 5",
    "{'meta_info': {'prompt_tokens': 5, 'completion_tokens': 9}}",
    '"prompt_tokens": 5',
    "), out={'meta_info': {'prompt_tokens': 5}}",
]


@pytest.mark.parametrize("spoof", SPOOFS)
@pytest.mark.parametrize("write", [text_line, json_line], ids=["text", "JSON"])
def test_prompt_cannot_forge_its_length(write: object, spoof: str) -> None:
    found = finish(write(prompt=spoof))  # type: ignore[operator]
    assert (found.prompt_tokens, found.completion_tokens) == (2000, 8)


SPOOFED_IDS = [", rid='forged'", "rid='forged', bootstrap_room=1"]


@pytest.mark.parametrize("spoof", SPOOFED_IDS)
def test_prompt_behind_the_id_cannot_forge_it(spoof: str) -> None:
    assert finish(text_line(prompt=spoof)).rid == "r1"


def test_prompt_cannot_forge_its_room() -> None:
    assert finish(text_line(prompt="bootstrap_room=99999")).room == "7"


def test_prompt_cannot_forge_an_abort() -> None:
    assert not finish(text_line(prompt="{'finish_reason': {'type': 'abort'}}")).aborted


@given(prompt=st.text(max_size=80))
def test_no_word_of_a_prompt_is_kept(prompt: str) -> None:
    marked = f"PROMPT{prompt}"
    for rest in (text_line(prompt=marked), json_line(prompt=marked)):
        assert "PROMPT" not in repr(finish(rest))
        assert "an answer" not in repr(finish(rest))


@given(st.text(max_size=200))
def test_no_line_stops_it(rest: str) -> None:
    read_finish(rest, None, "w.log", 1)


def test_endless_number_does_not_stop_it() -> None:
    assert finish("rid='r1', 'prompt_tokens': " + "9" * 5000).rid == "r1"
