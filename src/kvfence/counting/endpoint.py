"""Ask an engine's own tokenize endpoint, so that it counts what its generation would count; no input or output here.

SGLang's `/tokenize` takes texts, and since before 0.5.18 messages, which it makes into a chat request of its own
(`entrypoints/openai/serving_tokenize.py`, `TokenizeRequest.to_chat_completion_request`); members that it does not know
go there too. Only those that generation reads are handed on: from 0.5.23 on `add_generation_prompt` means something
there and nothing in generation. A null in a tool's function moves behind the other fields in 0.5.23, so that such a
body is not asked about. Images are not counted: the prompt that comes back is the one before their tokens.

vLLM's `/tokenize` of 0.32.0 (`entrypoints/serve/tokenize`) knows neither `reasoning_effort` nor `documents`; generation
hands both to the template among its variables, so they are put among the variables here. Nor does it rename
`reasoning_content` of a message, as generation does, nor leave tools out that may not be used. A gpt-oss model's
generation does not use the template at all, and this endpoint does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kvfence.counting.asked import Asked, Chat, Fields, Ids, Prompt, Text
from kvfence.counting.chat.settings import Settings
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.facts.dialects.vllm import ENGINE as VLLM

PATH: Final = "/tokenize"

_OF_SGLANG: Final = (
    *("model", "messages", "tools", "tool_choice", "reasoning_effort", "reasoning", "thinking", "task"),
    *("continue_final_message", "chat_template_kwargs", "response_format"),
)
_OF_VLLM: Final = ("model", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens")
_AMONG_VARIABLES: Final = ("documents", "reasoning_effort")
_NULL: Final = b"null"

_ANY: Final = msgspec.json.Decoder(object)
_TURNS: Final = msgspec.json.Decoder(list[dict[str, object]])
_ENCODER: Final = msgspec.json.Encoder()


class Question(msgspec.Struct, frozen=True):
    """A request to an engine.

    Attributes:
        path: to POST to.
        body: JSON.

    """

    path: str
    body: bytes


class UnreadableAnswerError(Exception):
    """An engine's answer holds no count."""


class _Answer(msgspec.Struct):
    count: int | list[int]


_ANSWER: Final = msgspec.json.Decoder(_Answer)


def ask(settings: Settings, asked: Asked, model_type: str | None = None) -> tuple[Question, ...] | None:
    """Give one question for each prompt of a body; None if an answer would not tell what generation counts.

    Args:
        settings: of the engine; the server's own variables need not be known, the engine adds them.
        asked: the body.
        model_type: of the model's config.json, if it is known.

    """
    if asked.multimodal or asked.uncountable is not None or settings.engine not in (SGLANG, VLLM):
        return None
    try:
        questions = [_question(settings, asked, prompt, model_type) for prompt in asked.prompts]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # a member that only other decoders take
    found = tuple(question for question in questions if question is not None)
    return found if found and len(found) == len(questions) else None


def read(body: bytes) -> int:
    """Read an answer.

    Raises:
        UnreadableAnswerError: it holds no number of tokens.

    """
    try:
        count = _ANSWER.decode(body).count
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UnreadableAnswerError("an engine's answer holds no count") from None
    if not isinstance(count, int) or count < 0:
        raise UnreadableAnswerError("an engine's answer holds no count of one prompt")
    return count


def _question(settings: Settings, asked: Asked, prompt: Prompt, model_type: str | None) -> Question | None:
    if isinstance(prompt, Ids):
        return None  # nothing is to be asked
    if isinstance(prompt, Text):
        return _text(settings, asked, prompt)
    return _sglang(prompt) if settings.engine == SGLANG else _vllm(settings, asked, prompt, model_type)


def _text(settings: Settings, asked: Asked, prompt: Text) -> Question | None:
    if settings.engine == SGLANG and settings.completion_template is not None and asked.path != "/generate":
        return None  # generation puts the prompt into a template
    body: dict[str, object] = {"prompt": prompt.text, "add_special_tokens": prompt.add_special_tokens}
    if asked.model is not None:
        body["model"] = asked.model
    return Question(PATH, _ENCODER.encode(body))


def _sglang(chat: Chat) -> Question | None:
    variables = _decoded(chat.fields, "chat_template_kwargs")
    if isinstance(variables, dict) and "reasoning_effort" in variables:
        return None  # generation takes it out of the variables first
    if any(_has_nulls(tool) for tool in _decoded_list(chat.fields, "tools")):
        return None
    return Question(PATH, _ENCODER.encode(_given(chat.fields, _OF_SGLANG)))


def _has_nulls(tool: object) -> bool:
    """Whether a tool's function has a field that is null, which the endpoint of 0.5.23 puts behind the others."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and None in function.values()


def _vllm(settings: Settings, asked: Asked, chat: Chat, model_type: str | None) -> Question | None:
    fields = chat.fields
    harmony = model_type == "gpt_oss" or (model_type is None and _sounds_like_gpt_oss(settings, asked))
    if harmony:
        return None
    given: dict[str, object] = dict(_given(fields, _OF_VLLM))
    if "tools" in given and settings.hides_unused_tools and _decoded(fields, "tool_choice") == "none":
        del given["tools"]
    variables = _decoded(fields, "chat_template_kwargs")
    if variables is None:
        variables = {}
    if not isinstance(variables, dict):
        return None
    effort = _decoded(fields, "reasoning_effort")
    if effort is not None and "enable_thinking" not in variables:
        variables["enable_thinking"] = effort != "none"
    variables |= {name: value for name in _AMONG_VARIABLES if (value := _decoded(fields, name)) is not None}
    if variables:
        given["chat_template_kwargs"] = variables
    given["messages"] = _renamed(chat)
    return Question(PATH, _ENCODER.encode(given))


def _given(fields: Fields, names: tuple[str, ...]) -> Mapping[str, msgspec.Raw]:
    """Take members that are there and not null."""
    return {
        name: raw for name in names if (raw := fields.get(name)) is not None and bytes(memoryview(raw)[:4]) != _NULL
    }


def _decoded(fields: Fields, name: str) -> object:
    raw = fields.get(name)
    return None if raw is None else _ANY.decode(raw)


def _decoded_list(fields: Fields, name: str) -> list[object]:
    value = _decoded(fields, name)
    return value if isinstance(value, list) else []


def _renamed(chat: Chat) -> object:
    """Call `reasoning_content` of a message `reasoning`, as vLLM's generation does before it looks at messages."""
    if chat.plain is not None:
        return chat.raw
    turns = _TURNS.decode(chat.raw)
    for turn in turns:
        thought = turn.pop("reasoning_content", None)
        if thought is not None and turn.get("reasoning") is None:
            turn["reasoning"] = thought
    return turns


def _sounds_like_gpt_oss(settings: Settings, asked: Asked) -> bool:
    names = f"{settings.model or ''} {asked.model or ''}".lower().replace("_", "-")
    return "gpt-oss" in names
