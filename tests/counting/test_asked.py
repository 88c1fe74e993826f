from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.counting.asked import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    Asked,
    BadRequestError,
    Chat,
    Fields,
    Ids,
    Text,
    read,
)

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
HI = {"role": "user", "content": "hi"}
ENGINES = ("sglang", "vllm", "kvfence")


def members(**body: object) -> Fields:
    return MEMBERS.decode(json.dumps(body))


def chat(engine: str = "sglang", /, **body: object) -> Asked:
    return read(engine, CHAT, members(**{"messages": [HI]} | body))


def conversation(asked: Asked) -> Chat:
    (prompt,) = asked.prompts
    assert isinstance(prompt, Chat)
    return prompt


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plain_conversation(engine: str) -> None:
    fields = members(messages=[HI, HI], model="m", max_tokens=5, stream=True, stream_options={"include_usage": True})
    asked = read(engine, CHAT, fields)
    assert asked == Asked(
        path=CHAT,
        prompts=(Chat(fields["messages"], 2, [HI, HI], fields),),
        answer_tokens=5,
        stream=True,
        include_usage=True,
        n=1,
        model="m",
    )
    assert conversation(asked).most_bytes == len(bytes(fields["messages"]))


def test_what_is_not_said() -> None:
    asked = chat(max_tokens=None, stream=None, n=None, model=None, stream_options=None)
    said = (asked.answer_tokens, asked.stream, asked.include_usage, asked.n, asked.model, asked.uncountable)
    assert said == (None, False, False, 1, None, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "max_tokens": 9}, 7),
        ({"max_completion_tokens": 0, "max_tokens": 9}, 9),  # SGLang: max_completion_tokens or max_tokens
        ({"max_completion_tokens": 0}, 0),
        ({"max_tokens": 16.0}, 16),
    ],
)
def test_the_tokens_of_an_answer(given: dict[str, object], expected: int) -> None:
    assert chat("sglang", **given).answer_tokens == expected


@pytest.mark.parametrize(
    ("engine", "expected"), [("sglang", 16), ("kvfence", 16), ("vllm", None)], ids=["sglang", "kvfence", "vllm"]
)
def test_completions_have_an_answer_of_sixteen_tokens(engine: str, expected: int | None) -> None:
    assert read(engine, COMPLETIONS, members(prompt="a")).answer_tokens == expected
    assert read(engine, COMPLETIONS, members(prompt="a", max_tokens=3)).answer_tokens == 3


@pytest.mark.parametrize(
    "message",
    [
        HI | {"name": None},
        HI | {"tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "user", "content": None},
        {"role": "user", "content": 1},
        {"role": "user"},
        {"content": "hi", "x": "y"},
        {"role": "x" * 17, "content": "hi"},
        {"role": "\u00e9", "content": "hi"},
    ],
)
def test_more_than_a_role_and_a_text_is_not_plain(message: dict[str, object]) -> None:
    asked = chat(messages=[HI, message])
    assert conversation(asked).plain is None
    assert conversation(asked).turns == 2
    assert not asked.multimodal


@pytest.mark.parametrize(
    ("engine", "field", "value"),
    [
        ("sglang", "tools", []),
        ("sglang", "chat_template_kwargs", {}),
        ("sglang", "reasoning_effort", "low"),
        ("sglang", "reasoning", {"enabled": True}),
        ("sglang", "continue_final_message", True),
        ("vllm", "documents", []),
        ("vllm", "add_generation_prompt", False),
        ("vllm", "add_special_tokens", True),
    ],
)
def test_what_reaches_the_template_is_not_plain(engine: str, field: str, value: object) -> None:
    assert conversation(chat(engine, **{field: value})).plain is None
    assert conversation(chat(engine, **{field: None})).plain == [HI]


def test_a_member_that_does_not_reach_it_is() -> None:
    assert conversation(chat(documents=[], temperature=1, user="u", zzz=1)).plain == [HI]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "video_url", "video_url": {}},
        {"type": "new_kind"},
        {"type": ["text"]},
        {"image_url": "u"},
        {"type": "text", "text": "a", "image_url": "u"},
        {"type": "prompt_embeds", "data": "x"},
    ],
)
def test_media_is_seen(part: dict[str, object]) -> None:
    assert chat(messages=[{"role": "user", "content": [part]}]).multimodal


def test_token_ids_in_place_of_a_conversation() -> None:
    assert chat(input_ids=[1, 2, 3]).prompts == (Ids(3),)
    assert isinstance(conversation(chat("vllm", input_ids=[1, 2, 3])), Chat)  # which vLLM does not know


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a\n\u00e9", (Text("a\n\u00e9"),)),
        ("", (Text(""),)),
        (["a", "b"], (Text("a"), Text("b"))),
        ([1, 2, 3], (Ids(3),)),
        ([5], (Ids(1),)),
        ([-1, 2**70], (Ids(2),)),
        ([[1], [2, 3]], (Ids(1), Ids(2))),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_prompts(engine: str, prompt: object, expected: tuple[object, ...]) -> None:
    assert read(engine, COMPLETIONS, members(prompt=prompt)).prompts == expected


@given(st.lists(st.integers(), min_size=1), st.sampled_from((None, 1, "\t")))
def test_ids_are_counted_as_they_are_decoded(ids: list[int], indent: int | str | None) -> None:
    body = json.dumps({"prompt": ids}, indent=indent)
    assert read("vllm", COMPLETIONS, MEMBERS.decode(body)).prompts == (Ids(len(ids)),)


@pytest.mark.parametrize(
    "prompt",
    [None, 1, True, {}, [], [[]], [[1], []], ["a", 1], [1, "a"], [1.5], [1, [2]], [True], [None], [["a"]], [1e3], [{}]],
)
@pytest.mark.parametrize("path", [COMPLETIONS, GENERATE])
def test_no_prompt(path: str, prompt: object) -> None:
    name = "prompt" if path == COMPLETIONS else "input_ids"
    with pytest.raises(BadRequestError) as caught:
        read("sglang", path, members(**{name: prompt}))
    assert caught.value.param in (name, "text")


def test_special_tokens_are_vllms_clients_choice() -> None:
    fields = members(prompt="a", add_special_tokens=False)
    assert read("vllm", COMPLETIONS, fields).prompts == (Text("a", add_special_tokens=False),)
    assert read("sglang", COMPLETIONS, fields).prompts == (Text("a", add_special_tokens=True),)


def test_sglangs_own_request() -> None:
    asked = read("sglang", GENERATE, members(text="a", sampling_params={"max_new_tokens": 4, "n": 2}, stream=True))
    assert (asked.prompts, asked.answer_tokens, asked.n, asked.stream) == ((Text("a"),), 4, 2, True)
    asked = read("sglang", GENERATE, members(text=["a", "b"], sampling_params=[{"max_new_tokens": 4}, {}]))
    assert (asked.prompts, asked.answer_tokens, asked.n) == ((Text("a"), Text("b")), 4, 1)
    assert read("sglang", GENERATE, members(input_ids=[[1, 2]])).answer_tokens is None
    assert read("sglang", GENERATE, members(text="a", image_data="u")).multimodal


@pytest.mark.parametrize(
    ("engine", "path", "body", "word"),
    [
        ("sglang", GENERATE, {"input_embeds": [[0.5]]}, "input_embeds"),
        ("sglang", GENERATE, {"text": "a", "session_params": {"id": "s"}}, "session_params"),
        ("vllm", COMPLETIONS, {"prompt_embeds": "x"}, "prompt_embeds"),
        ("vllm", COMPLETIONS, {"prompt": "a", "truncate_prompt_tokens": 3}, "truncate"),
        ("vllm", CHAT, {"messages": [HI], "truncate_prompt_tokens": 3}, "truncate"),
        ("vllm", CHAT, {"messages": [HI], "kv_transfer_params": {"prompt_token_ids": [1]}}, "kv_transfer_params"),
        ("vllm", CHAT, {"messages": [HI], "chat_template": "x"}, "chat_template"),
    ],
)
def test_what_cannot_be_counted_says_why(engine: str, path: str, body: dict[str, object], word: str) -> None:
    assert word in (read(engine, path, members(**body)).uncountable or "")
    body = {name: value if name in ("messages", "prompt", "text") else None for name, value in body.items()}
    if len(body) > 1:
        assert read(engine, path, members(**body)).uncountable is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": []}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options"),
        ({"model": 3}, "model"),
    ],
)
def test_what_is_not_understood_is_refused(body: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        chat("sglang", **body)
    assert caught.value.param == param
    assert param in caught.value.message


def test_absent_messages_are_refused() -> None:
    with pytest.raises(BadRequestError):
        read("vllm", CHAT, {})


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1e999}',
        b'{"messages":[{"role":"user","content":"a"}],"model":"\xed\xa0\x80"}',
    ],
    ids=["no-utf-8", "infinite", "surrogate"],
)
def test_what_only_some_decoders_take_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        read("vllm", CHAT, MEMBERS.decode(body))


@pytest.mark.parametrize("value", [b"NaN", b"-Infinity", b'"\\ud800"', b'"\\udc00"', b'"\x01"', b"01", b"{'a':1}"])
def test_msgspec_itself_refuses(value: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        MEMBERS.decode(b'{"messages":[{"role":"user","content":"a"}],"x":[' + value + b"]}")


def test_the_last_of_two_counts_as_in_the_engines() -> None:
    body = b'{"max_tokens":1,"messages":[{"role":"a","content":"x","content":"y"}],"max_tok\\u0065ns":2}'
    assert json.loads(body)["max_tokens"] == 2
    asked = read("vllm", CHAT, MEMBERS.decode(body))
    assert asked.answer_tokens == 2
    assert conversation(asked).plain == [{"role": "a", "content": "y"}]


@pytest.mark.parametrize("body", [{"text": "a", "input_ids": [1]}, {}, {"text": None}])
def test_sglang_takes_one_kind_of_prompt(body: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        read("sglang", GENERATE, members(**body))


@pytest.mark.parametrize("params", [3, [3], {"max_new_tokens": "4"}, {"max_new_tokens": -1}, {"n": 0}, "x"])
def test_sampling_parameters_of_other_types(params: object) -> None:
    with pytest.raises(BadRequestError):
        read("sglang", GENERATE, members(text="a", sampling_params=params))


def test_there_is_no_other_path() -> None:
    with pytest.raises(KeyError):
        read("vllm", "/v1/embeddings", {})
