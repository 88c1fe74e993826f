"""Events are found wherever bytes are cut, and what nobody asked for is taken out of them, and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.gateway import events as module
from kvfence.gateway.events import DONE, EndlessError, OwnId, Splitter, content, without_usage
from tests.gateway.playbook import cut

OWN = b"req-7"
USAGE = (
    b'"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":null,'
    b'"reasoning_tokens":0,"completion_tokens_details":{"reasoning_tokens":1}}'
)
# As SGLang 0.5.23's and vLLM 0.32.0's own classes write them, with usage, without, and whether the member stays.
SGLANG_TEXT = (
    b'{"id":"r","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a","logprobs":null,'
    b'"finish_reason":null,"matched_stop":null}]'
)
SGLANG_CHAT = (
    b'{"id":"r","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"reasoning_content":null,"content":"hi"},"logprobs":null,"finish_reason":null,"matched_stop":null}]'
)
SGLANG_TOOL = (
    b'{"id":"r","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,'
    b'"content":null,"reasoning_content":null,"tool_calls":[{"id":null,"index":0,"type":"function","function":'
    b'{"name":null,"arguments":"{\\"usage\\":{}"}}]},"logprobs":null,"finish_reason":null,"matched_stop":null}]'
)
VLLM_CHAT = (
    b'{"id":"r","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    b'{"content":"\\",\\"usage\\":{}}"},"logprobs":null,"finish_reason":null}]'
)
TOTAL = b'{"id":"r","object":"chat.completion.chunk","created":1,"model":"m","choices":[],' + USAGE + b"}"
SGLEXT = b'{"id":"r","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":null,"sglext":{}}'


def event(told: bytes) -> bytes:
    return b"data: " + told + b"\n\n"


@pytest.mark.parametrize(
    ("told", "unasked"),
    [
        (SGLANG_TEXT, b',"usage":null}'),
        (SGLANG_CHAT, b"}"),
        (SGLANG_TOOL, b',"usage":null}'),
        (VLLM_CHAT, b"}"),
    ],
    ids=["sglang-text", "sglang-chat", "sglang-tool", "vllm-chat"],
)
@pytest.mark.parametrize("keep_total", [False, True])
def test_event_is_as_if_nobody_had_asked_for_usage(told: bytes, unasked: bytes, keep_total: bool) -> None:
    assert without_usage(event(told + b"," + USAGE + b"}"), keep_total=keep_total) == event(told + unasked)
    assert without_usage(event(told + unasked), keep_total=keep_total) == event(told + unasked)


def test_total_is_kept_for_who_asked() -> None:
    assert without_usage(event(TOTAL), keep_total=True) == event(TOTAL)
    assert without_usage(event(TOTAL), keep_total=False) == b""
    spaced = event(json.dumps(json.loads(TOTAL)).encode())
    assert without_usage(spaced, keep_total=True) == spaced
    assert without_usage(spaced, keep_total=False) == b""


@pytest.mark.parametrize(
    "other",
    [
        event(SGLEXT),
        b"event: sglext_ids\n" + event(SGLEXT),
        DONE,
        b": ping\n\n",
        b"\n",
        event(b'{"usage":'),
        event(b"\xff"),
    ],
)
def test_other_events_stay_byte_for_byte(other: bytes) -> None:
    assert without_usage(other, keep_total=False) == other
    assert OwnId(b"r").put(other) == other


@pytest.mark.parametrize(
    "told",
    [
        b'{"usage":{"prompt_tokens":5},"choices":[{"index":0}],"a":1}',
        b'{"choices": [{"index": 0}], "usage": {"prompt_tokens": 5}, "a": 1}',
        b'{"choices":[{"index":0,"x":{"y":1,"usage":{"prompt_tokens":5}}}],"a":1,"usage":{"prompt_tokens":5}}',
        b'{"choices":[{"index":0,"text":"usage"}],"a":1,"usage":{"prompt_tokens":5}}',
        b'{"choices":[{"x":{"y":1,"usage":{"prompt_tokens":5}}}],\n"a":1 , "usage": {"prompt_tokens":5} }',
    ],
)
@pytest.mark.parametrize("before", [b"data: ", b"data:", b"event: x\ndata: ", b": c\nid: 4\ndata:  "])
def test_usage_in_unusual_places(told: bytes, before: bytes) -> None:
    lines = told.replace(b"\n", b"\ndata: ")
    expected: dict[str, Any] = {key: value for key, value in json.loads(told).items() if key != "usage"}
    changed = without_usage(before + lines + b"\n\n", keep_total=False)
    assert json.loads(content(changed)) == expected
    others = [line for line in before.splitlines() if not line.startswith(b"data:")]
    assert [line for line in changed.splitlines() if line and not line.startswith(b"data:")] == others
    assert changed.endswith(b"\n\n")


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["usage", ',"usage":{}}', "\n\n", "error", "id"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["usage", "id", "a", "choices"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    document=st.dictionaries(st.sampled_from(["id", "a", "b"]), JSONISH),
    choices=st.lists(JSONISH, min_size=1, max_size=2),
    usage=JSONISH,
    last=st.booleans(),
    compact=st.booleans(),
)
def test_only_the_usage_goes(document: dict[str, Any], choices: Any, usage: Any, last: bool, compact: bool) -> None:
    members = {**document, "choices": choices}
    whole = {**members, "usage": usage} if last else {"usage": usage, **members}
    separators = (",", ":") if compact else (", ", ": ")
    changed = without_usage(event(json.dumps(whole, separators=separators).encode()), keep_total=False)
    left = json.loads(content(changed))
    if usage is not None:
        assert left.pop("usage", None) is None
        assert left == members
    else:
        assert left == whole


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\n\n\n", b"\r\n\r\n\r\n", b"\n\r\n"])
@given(seed=st.integers(0, 2**32), number=st.integers(0, 40))
def test_events_are_found_wherever_bytes_are_cut(end: bytes, seed: int, number: int) -> None:
    told = [b"data: {}", b": ping", b"event: x\ndata: a\ndata: b", b"data: [DONE]", b"data: x\r\ndata: y"]
    stream = b"".join(part + end for part in told) + b"data: rest"
    splitter = Splitter()
    found = [each for part in cut(stream, random.Random(seed), number) for each in splitter.feed(part)]
    assert b"".join(found) + splitter.rest() == stream
    assert splitter.rest() == b"data: rest"
    assert [each.rstrip() for each in found if each.strip()] == told


@given(stream=st.text(alphabet="\r\nad: {", max_size=60).map(str.encode), seed=st.integers(0, 99))
def test_nothing_is_lost_or_added(stream: bytes, seed: int) -> None:
    splitter = Splitter()
    found = [each for part in cut(stream, random.Random(seed), seed) for each in splitter.feed(part)]
    assert b"".join(found) + splitter.rest() == stream


def test_event_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 100)
    splitter = Splitter()
    assert splitter.feed(b"x" * 100) == []
    with pytest.raises(EndlessError):
        splitter.feed(b"x")


def test_long_event_in_many_pieces_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: bytes) -> tuple[list[bytes], int]:
        raise AssertionError

    splitter = Splitter()
    splitter.feed(b"data: ")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_split", never)  # what is known to have no end is not gone through again
        for _ in range(1000):
            assert splitter.feed(b"xxxxxxxxx\n") == []
    assert splitter.feed(b"\n\n") == [b"data: " + b"xxxxxxxxx\n" * 1000 + b"\n\n"]


LEAK = b"chatcmpl-___prefill_addr_127.0.0.1:18100___decode_addr_127.0.0.1:18200_fff1627b"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (b'{"id":"%b","a":1}', b'{"id":"req-7","a":1}'),
        (b'{ "id" : "%b" , "a":1}', b'{ "id" : "req-7" , "a":1}'),
        (b'{"object":"x","id":"%b","a":{"id":1}}', b'{"object":"x","id":"req-7","a":{"id":1}}'),
    ],
)
@pytest.mark.parametrize("theirs", [LEAK, LEAK + OWN, b'q\\"uote', b"", b"chatcmpl-" + OWN + b"x"])
def test_own_id_takes_the_place_of_theirs(told: bytes, expected: bytes, theirs: bytes) -> None:
    ids = OwnId(OWN)
    assert ids.put_whole(told % theirs) == expected
    for _ in range(3):
        assert ids.put(event(told % theirs)) == event(expected)


@pytest.mark.parametrize("kept", [OWN, b"cmpl-" + OWN, b"chatcmpl-" + OWN])
def test_id_made_of_the_own_stays(kept: bytes) -> None:
    told = b'{"id":"' + kept + b'","a":1}'
    assert OwnId(OWN).put_whole(told) == told
    assert OwnId(OWN).put(event(told)) == event(told)


def test_ids_that_change_within_a_stream() -> None:
    ids = OwnId(OWN)
    assert [ids.put(event(b'{"id":"%b"}' % theirs)) for theirs in (b"a", b"ab", OWN, b"a")] == [
        event(b'{"id":"req-7"}')
    ] * 4


def test_ids_of_tool_calls_stay() -> None:
    told = b'{"id":"req-7","choices":[{"delta":{"tool_calls":[{"id":"call_1"}]}}]}'
    assert OwnId(OWN).put(event(told)) == event(told)
    generated = b'{"text":"a","meta_info":{"id":"req-7","prompt_tokens":5}}'
    ids = OwnId(OWN)
    assert [ids.put(event(generated)) for _ in range(2)] == [event(generated)] * 2
    assert ids.put_whole(generated) == generated
    assert not ids._anywhere  # it is not looked for in every event
