"""Requests of every sort that is counted: texts, ids, batches, conversations with tools; in several scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from acceptance.gateway.catalogue import MODEL_NAME
from acceptance.gateway.client import CHAT, COMPLETIONS, GENERATE, Request

TEXTS: Final = (
    *("a", " ", "\n\n\t", "The harbour office opens at nine.", 'def f(x):\r\n\treturn {"a": x}\n'),
    *("Où est la bibliothèque ?", "Ἐν ἀρχῇ ἦν ὁ λόγος", "東京都の天気は晴れです。", "안녕하세요 세계", "مرحبا بالعالم"),
    *("नमस्ते दुनिया", "👩\u200d👩\u200d👧\u200d👦 and 🇫🇮", "e\u0301 and é", "\ufdfa", "\u200b\u200d\ufeff", "\x00\x01"),
    *("<s>", "</s> and <pad><s>", "< s>", "<|im_start|>system", "x" * 700, "€" * 120, "𐍈" * 90),
)
"""A token is a byte here, but for what the tokenizer has as a special token."""
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a place — in °C.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "as 東京"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
CALL: Final = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "東京"}'}}
    ],
}
RESULT: Final = {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear"}'}
USAGE: Final = {"include_usage": True}
SYSTEM: Final = {"role": "system", "content": "You answer in one word. ☂"}

Make = Callable[[str], Request]
"""From a text to a request that holds it."""


def sampling(tokens: int) -> dict[str, Any]:
    """Give the parameters of `/generate` for so many tokens, the likeliest ones."""
    return {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}


def generate(text: str | list[str], tokens: int = 4, **more: object) -> Request:
    """Ask SGLang's own endpoint."""
    return Request(GENERATE, {"text": text, "sampling_params": sampling(tokens), **more})


def generate_ids(ids: list[int], tokens: int = 4) -> Request:
    """Ask it by token ids."""
    return Request(GENERATE, {"input_ids": ids, "sampling_params": sampling(tokens)})


def completion(prompt: object, tokens: int = 4, **more: object) -> Request:
    """Ask OpenAI's older endpoint."""
    common = {"model": MODEL_NAME, "temperature": 0, "ignore_eos": True, "max_tokens": tokens}
    return Request(COMPLETIONS, {"prompt": prompt, **common, **more})


def chat(messages: list[dict[str, Any]], tokens: int = 4, **more: object) -> Request:
    """Ask OpenAI's endpoint for conversations."""
    common = {"model": MODEL_NAME, "temperature": 0, "ignore_eos": True, "max_tokens": tokens}
    return Request(CHAT, {"messages": messages, **common, **more})


def say(text: str) -> dict[str, Any]:
    """Give a user's message."""
    return {"role": "user", "content": text}


def varied() -> Iterator[Request]:
    """Give requests of all sorts, each of which an engine answers."""
    for text in TEXTS:
        yield completion(text)
        yield chat([SYSTEM, say(text)])
    for text in TEXTS[::3]:
        yield generate(text)
        yield chat([say(text), {"role": "assistant", "content": text}, say("And now?")])
        yield chat([SYSTEM, say(text), CALL, RESULT], tools=[TOOL])
        yield chat([{"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": "two"}]}])
    yield completion([7, 8, 9, 300])
    yield completion(["one", "and a second", "東京"])
    yield completion([[1, 2, 3], [4, 5]])
    yield generate(["one", "and a second"])
    yield generate_ids(list(range(250)))
    yield chat([say("hi")], tools=[TOOL, TOOL], tool_choice="none")
    yield chat([say("hi"), {"role": "assistant", "content": "The sky"}], continue_final_message=True)
    yield chat([say("hi")], stream=True, stream_options=USAGE)
    yield completion("hi there", stream=True, stream_options=USAGE)


KINDS: Final[dict[str, Make]] = {
    "text": generate,
    "ids": lambda text: generate_ids([65 + number % 26 for number in range(len(text))]),
    "completion": completion,
    "completion of ids": lambda text: completion([65 + number % 26 for number in range(len(text))]),
    "completion, streamed": lambda text: completion(text, stream=True, stream_options=USAGE),
    "completion after 東京": lambda text: completion("東京 " + text),
    "chat": lambda text: chat([say(text)]),
    "chat, streamed": lambda text: chat([say(text)], stream=True, stream_options=USAGE),
    "chat with a system": lambda text: chat([SYSTEM, say("Où ?"), {"role": "assistant", "content": "là"}, say(text)]),
    "chat with tools": lambda text: chat([SYSTEM, say("東京?"), CALL, RESULT, say(text)], tools=[TOOL]),
}
"""What grows by a token with each character of its text, by what it is."""
