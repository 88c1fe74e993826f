from __future__ import annotations

import json

import msgspec
import pytest

from kvfence.counting.asked import CHAT, COMPLETIONS, GENERATE, read
from kvfence.counting.chat import Settings
from kvfence.counting.endpoint import UnreadableAnswerError, ask
from kvfence.counting.endpoint import read as read_answer

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SGLANG = Settings(engine="sglang", version="0.5.23", model="m")
VLLM = Settings(engine="vllm", version="0.32.0")


def questions(settings: Settings, path: str = CHAT, /, **body: object) -> list[dict[str, object]] | None:
    asked = read(settings.engine, path, MEMBERS.decode(json.dumps(({"messages": [HI]} if path == CHAT else {}) | body)))
    found = ask(settings, asked, "llama")
    if found is None:
        return None
    assert {one.path for one in found} == {"/tokenize"}
    return [json.loads(one.body) for one in found]


def question(settings: Settings, path: str = CHAT, /, **body: object) -> dict[str, object]:
    """Give the one question of a body."""
    found = questions(settings, path, **body)
    assert found is not None
    (only,) = found
    return only


@pytest.mark.parametrize("settings", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_texts_are_asked_about_one_by_one(settings: Settings) -> None:
    first, second = ({"prompt": text, "add_special_tokens": True, "model": "m"} for text in ("a", "b"))
    assert questions(settings, COMPLETIONS, prompt=["a", "b"], model="m") == [first, second]


def test_vllms_client_chooses_special_tokens() -> None:
    assert question(VLLM, COMPLETIONS, prompt="a", add_special_tokens=False) == {
        "prompt": "a",
        "add_special_tokens": False,
    }


def test_sglang_is_given_what_generation_reads() -> None:
    body = {
        "tools": [TOOL],
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "continue_final_message": True,
    }
    others = {"add_generation_prompt": False, "prompt": "x", "max_tokens": 3, "temperature": 1, "documents": []}
    assert questions(SGLANG, CHAT, **body, **others) == [{"messages": [HI]} | body]
    assert questions(SGLANG, tools=None, reasoning=None) == [{"messages": [HI]}]


def test_vllm_is_given_what_generation_hands_to_the_template() -> None:
    variables = {"x": 1, "reasoning_effort": "low", "enable_thinking": True, "documents": [{"text": "t"}]}
    given = questions(
        VLLM,
        chat_template_kwargs={"x": 1},
        reasoning_effort="low",
        documents=[{"text": "t"}],
        tools=[TOOL],
        tool_choice="none",
        add_generation_prompt=False,
        add_special_tokens=True,
    )
    rest = {"tools": [TOOL], "add_generation_prompt": False, "add_special_tokens": True, "messages": [HI]}
    assert given == [{"chat_template_kwargs": variables} | rest]


@pytest.mark.parametrize(("variables", "expected"), [({}, False), ({"enable_thinking": True}, True)])
def test_no_effort_is_no_thinking_unless_the_body_says_so(variables: dict[str, object], expected: bool) -> None:
    given = question(VLLM, reasoning_effort="none", chat_template_kwargs=variables)
    assert given["chat_template_kwargs"] == {"reasoning_effort": "none", "enable_thinking": expected}


def test_vllm_leaves_unused_tools_out_if_it_was_told_to() -> None:
    hides = Settings(engine="vllm", version="0.32.0", hides_unused_tools=True)
    assert questions(hides, tools=[TOOL], tool_choice="none") == [{"messages": [HI]}]
    assert questions(hides, tools=[TOOL], tool_choice="auto") == [{"tools": [TOOL], "messages": [HI]}]


def test_vllms_endpoint_does_not_rename_thoughts() -> None:
    thought = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    renamed = {"role": "assistant", "content": "a", "reasoning": "b"}
    assert question(VLLM, messages=[thought, HI])["messages"] == [renamed, HI]
    other = {"reasoning": "c"}
    assert question(VLLM, messages=[thought | other])["messages"] == [renamed | other]


@pytest.mark.parametrize(
    ("settings", "path", "body"),
    [
        (SGLANG, COMPLETIONS, {"prompt": [1, 2]}),
        (SGLANG, CHAT, {"input_ids": [1]}),
        (SGLANG, CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}),
        (SGLANG, CHAT, {"chat_template_kwargs": {"reasoning_effort": "low"}}),
        (SGLANG, CHAT, {"tools": [{"type": "function", "function": {"name": "f", "description": None}}]}),
        (SGLANG, GENERATE, {"text": "a", "session_params": {"id": "x"}}),
        (Settings(engine="sglang", version="0.5.23", completion_template="x"), COMPLETIONS, {"prompt": "a"}),
        (VLLM, CHAT, {"truncate_prompt_tokens": 4}),
        (VLLM, CHAT, {"chat_template": "x"}),
        (VLLM, CHAT, {"chat_template_kwargs": []}),
        (Settings(engine="kvfence", version=None), CHAT, {}),
    ],
)
def test_what_its_answer_would_not_tell_is_not_asked(settings: Settings, path: str, body: dict[str, object]) -> None:
    assert questions(settings, path, **body) is None


def test_a_gpt_oss_model_of_vllm_is_not_asked() -> None:
    asked = read("vllm", CHAT, MEMBERS.decode(json.dumps({"messages": [HI], "model": "openai/GPT-OSS-20b"})))
    assert ask(VLLM, asked, "gpt_oss") is None
    assert ask(VLLM, asked) is None
    assert ask(VLLM, asked, "llama") is not None


def test_what_only_other_decoders_take_is_not_asked_about() -> None:
    body = b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":1e999}}'
    for settings in (SGLANG, VLLM):
        assert ask(settings, read(settings.engine, CHAT, MEMBERS.decode(body))) is None


def test_an_answer() -> None:
    assert read_answer(b'{"tokens":[1,2],"count":2,"max_model_len":9}') == 2


@pytest.mark.parametrize("body", [b"", b"{}", b'{"count":[1,2]}', b'{"count":-1}', b'{"count":"2"}', b"[]", b"\xff"])
def test_an_answer_without_a_count(body: bytes) -> None:
    with pytest.raises(UnreadableAnswerError):
        read_answer(body)
