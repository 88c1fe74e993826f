"""Read the bodies of OpenAI's /v1/completions and /v1/chat/completions.

Answered: `model`, `prompt` (a string, a list of one, token ids, or a list of one list of them), `messages` with text
(the parts of one message are joined by line breaks), `max_tokens` (or `max_completion_tokens`), `temperature`, `top_p`,
`top_k`, `seed`, `stop`, `stream`, `stream_options.include_usage`, `logprobs`, `top_logprobs`; `user` is read and not
used.

Refused, unless it asks for nothing: all of `UNSUPPORTED`, which would make another answer. A field that neither list
names is ignored, as OpenAI-compatible servers do; so are further fields of a message and of `stream_options`, and a
message's `name` goes to the chat template, which may ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from kvfence.engine.http.fields import Fields, is_integer, is_text, parse
from kvfence.engine.http.problem import CONTEXT_LENGTH, MODEL_NOT_FOUND, ApiError, quoted

UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
}
_UNSUPPORTED_OF_A_MESSAGE: Final[dict[str, tuple[object, ...]]] = {
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
}

COMPLETION_TOKENS: Final = 16
STOP_STRINGS: Final = 4
STOP_CHARACTERS: Final = 1024
_MOST: Final = 2**31 - 1
_ROLES: Final = ("system", "developer", "user", "assistant")

Prompt = str | tuple[int, ...]
Messages = tuple[dict[str, str], ...]


class Request(NamedTuple):
    """What a client asks for.

    Attributes:
        prompt: text or token ids; empty for a conversation.
        messages: of a conversation (`role`, `content` and perhaps `name`); else empty.
        max_tokens: most tokens of the answer, or None if the body does not say.
        temperature: in [0, 2].
        top_p: in (0, 1].
        top_k: 0 for all tokens.
        seed: in [0, 2**63), or None if any will do.
        stops: strings that end the answer.
        stream: whether to send the answer in parts.
        include_usage: whether a stream ends with what was used.
        logprobs: alternatives to report for each token; None for no log probabilities.

    """

    prompt: Prompt
    messages: Messages
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: int | None

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return bool(self.messages)

    @property
    def field(self) -> str:
        """Where in the body the prompt is."""
        return "messages" if self.chat else "prompt"


Reader = Callable[[bytes, str, int], Request]


def read_completion(raw: bytes, model: str, vocabulary: int) -> Request:
    """Read a body of /v1/completions.

    Args:
        raw: the body.
        model: the name of the one model that is served.
        vocabulary: token ids are below it.

    Raises:
        ApiError: it cannot be answered.

    """
    fields = _begin(raw, model)
    prompt = _prompt(fields, vocabulary)
    request = _rest(fields, prompt, (), fields.integer("logprobs", 0, 5))
    return request if request.max_tokens is not None else request._replace(max_tokens=COMPLETION_TOKENS)


def read_chat(raw: bytes, model: str, vocabulary: int) -> Request:  # noqa: ARG001 (as every Reader)
    """Read a body of /v1/chat/completions; as `read_completion`.

    Raises:
        ApiError: it cannot be answered.

    """
    fields = _begin(raw, model)
    messages = _messages(fields)
    wanted, top = fields.flag("logprobs"), fields.integer("top_logprobs", 0, 20)
    if top is not None and not wanted:
        raise fields.complain("top_logprobs", "needs logprobs to be true")
    return _rest(fields, "", messages, (top or 0) if wanted else None)


def fit(request: Request, length: int, context_length: int, default: int) -> int:
    """Give the most tokens of an answer to a prompt of `length` tokens; `default` if the body does not say.

    Raises:
        ApiError: prompt and answer would be longer than the model's context.

    """
    room = context_length - length
    wanted = min(default, max(room, 1)) if request.max_tokens is None else request.max_tokens
    if wanted > room:
        raise ApiError(
            f"this model's maximum context length is {context_length} tokens, and {length + wanted} were asked for: "
            f"{length} of the {request.field} and {wanted} of the answer",
            param=request.field,
            code=CONTEXT_LENGTH,
        )
    return wanted


def _begin(raw: bytes, model: str) -> Fields:
    """Decode a body, and look at what both kinds have first."""
    fields = Fields(parse(raw))
    named = fields.text("model")
    if named is None:
        raise fields.complain("model", "is missing")
    if named != model:
        raise ApiError(f"the model {quoted(named)} does not exist", param="model", code=MODEL_NOT_FOUND, status=404)
    _refuse(fields, UNSUPPORTED)
    fields.text("user")
    return fields


def _refuse(fields: Fields, unsupported: dict[str, tuple[object, ...]]) -> None:
    """Refuse what is not supported, unless its value asks for nothing."""
    for name, neutral in unsupported.items():
        value = fields.get(name)
        if value is not None and not any(_same(value, other) for other in neutral):
            only = f"is supported as {json.dumps(neutral[0])} only" if neutral else "is not supported"
            raise fields.complain(name, only)


def _same(value: object, neutral: object) -> bool:
    """Compare as JSON does, where true is not 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _rest(fields: Fields, prompt: Prompt, messages: Messages, logprobs: int | None) -> Request:
    """Read what both kinds of body have after the prompt."""
    temperature, top_p = fields.number("temperature", 0, 2), fields.number("top_p", 0, 1)
    if top_p == 0:
        raise fields.complain("top_p", "must be above 0")
    top_k = fields.integer("top_k", -1, _MOST)
    seed = fields.integer("seed", -(2**63), 2**63 - 1)
    stream = fields.flag("stream") or False
    options = fields.object("stream_options")
    if options is not None and not stream:
        raise fields.complain("stream_options", "needs stream to be true")
    return Request(
        prompt=prompt,
        messages=messages,
        max_tokens=_max_tokens(fields),
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(top_k or 0, 0),
        seed=None if seed is None else seed & (2**63 - 1),
        stops=_stops(fields),
        stream=stream,
        include_usage=bool(options and options.flag("include_usage")),
        logprobs=logprobs,
    )


def _max_tokens(fields: Fields) -> int | None:
    older, newer = (fields.integer(name, 1, _MOST) for name in ("max_tokens", "max_completion_tokens"))
    if older is not None and newer is not None and older != newer:
        raise fields.complain("max_tokens", "and max_completion_tokens differ")
    return older if newer is None else newer


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    strings = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(strings, list) or len(strings) > STOP_STRINGS:
        raise fields.complain("stop", f"must be a string or a list of up to {STOP_STRINGS}")
    for string in strings:
        if not is_text(string) or not 0 < len(string) <= STOP_CHARACTERS:
            raise fields.complain("stop", f"must be made of strings of 1 to {STOP_CHARACTERS} Unicode characters")
    return tuple(strings)


def _prompt(fields: Fields, vocabulary: int) -> Prompt:
    value = fields.get("prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if value is None or value in ("", []):
        raise fields.complain("prompt", "is missing or empty")
    if isinstance(value, str):
        if not is_text(value):
            raise fields.complain("prompt", "must be a string of Unicode characters")
        return value
    if not isinstance(value, list):
        raise fields.complain("prompt", "must be a string or a list of token ids")
    if isinstance(value[0], str | list):
        raise fields.complain("prompt", "must be one prompt only")
    for index, token in enumerate(value):
        if not is_integer(token) or not 0 <= token < vocabulary:
            raise fields.complain(f"prompt[{index}]", f"must be a token id from 0 to {vocabulary - 1}")
    return tuple(value)


def _messages(fields: Fields) -> Messages:
    value = fields.get("messages")
    if not isinstance(value, list) or not value:
        raise fields.complain("messages", "must be a list of at least one message")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(value))


def _message(value: object, at: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ApiError(f"{at} must be an object", param=at)
    fields = Fields(value, f"{at}.")
    role, name = fields.text("role"), fields.text("name")
    if role not in _ROLES:
        raise fields.complain("role", f"must be one of {', '.join(_ROLES)}")
    _refuse(fields, _UNSUPPORTED_OF_A_MESSAGE)
    message = {"role": role, "content": _content(fields, at)}
    return message if name is None else message | {"name": name}


def _content(fields: Fields, at: str) -> str:
    """Read a message's text, of one string or of parts."""
    parts = fields.get("content")
    if not isinstance(parts, list):
        text = fields.text("content")
        if text is None:
            raise fields.complain("content", "is missing")
        return text
    texts = []
    for index, part in enumerate(parts):
        place = f"{at}.content[{index}]"
        if not isinstance(part, dict):
            raise ApiError(f"{place} must be an object", param=place)
        if part.get("type") != "text":
            raise ApiError(f"{place}.type is supported as 'text' only", param=f"{place}.type")
        text = Fields(part, f"{place}.").text("text")
        if text is None:
            raise ApiError(f"{place}.text is missing", param=f"{place}.text")
        texts.append(text)
    if not texts:
        raise fields.complain("content", "is empty")
    return "\n".join(texts)
