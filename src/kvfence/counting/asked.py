"""From the body of a request to what an engine will count: prompts, and the tokens of the answer.

The body's top-level members come undecoded, as msgspec gives them: of a member named twice the last counts, as in
Python's `json` and in orjson, which the engines decode with. msgspec refuses what only `json` takes: NaN, infinities,
halves of surrogate pairs, UTF-16.

What an engine reads was taken from the wheels of SGLang 0.5.18 to 0.5.23 (`entrypoints/openai/protocol.py`,
`managers/io_struct.py`) and vLLM 0.32.0 (`entrypoints/openai/*/protocol.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from kvfence.counting.template_bound import ROLE_BYTES
from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.facts.dialects.vllm import ENGINE as VLLM

Fields = Mapping[str, msgspec.Raw]

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
GENERATE: Final = "/generate"

# What OpenAI's completions take where a body does not say: SGLang's and kvfence's field has this default.
COMPLETION_TOKENS: Final = 16

_T = TypeVar("_T")


class BadRequestError(Exception):
    """A body cannot be understood, so it must not reach an engine.

    Args:
        message: what is wrong, for the client; it repeats none of the values.
        param: the field.

    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class UncountableError(Exception):
    """A prompt cannot be counted here as the engine does it, though the engine may take it.

    Args:
        reason: why, for the operator; it repeats none of the values.

    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Ids(msgspec.Struct, frozen=True, gc=False):
    """A prompt given as token ids: their number is the count, in tokens."""

    tokens: int


class Text(msgspec.Struct, frozen=True, gc=False):
    """A prompt given as text.

    Attributes:
        text: as the engine tokenises it.
        add_special_tokens: whether the tokenizer adds its own.

    """

    text: str
    add_special_tokens: bool = True


class Chat(msgspec.Struct, frozen=True):
    """A conversation, which a chat template makes a prompt of.

    Attributes:
        raw: the JSON of the messages.
        turns: how many messages.
        plain: the messages, if all are just a role (of at most ROLE_BYTES) and a text, and no other field of the body
            reaches the template; else None.
        fields: the members of the body.

    """

    raw: msgspec.Raw
    turns: int
    plain: list[dict[str, str]] | None
    fields: Fields

    @property
    def most_bytes(self) -> int:
        """No text of the messages has more bytes in UTF-8 than all of their JSON."""
        return memoryview(self.raw).nbytes


Prompt = Ids | Text | Chat


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a body asks for.

    Attributes:
        path: of the request.
        prompts: one for each answer; several make a batch.
        answer_tokens: most tokens of an answer; None if the engine takes as many as fit. Of a batch, the largest.
        stream: whether the answer comes in parts.
        include_usage: whether a stream ends with what was used.
        n: answers to each prompt.
        model: the name it asks for, if any.
        multimodal: whether it holds images, sound or video.
        uncountable: why the prompts alone do not tell what the engine counts, or None.

    """

    path: str
    prompts: tuple[Prompt, ...]
    answer_tokens: int | None
    stream: bool
    include_usage: bool
    n: int
    model: str | None
    multimodal: bool = False
    uncountable: str | None = None


def read(engine: str, path: str, fields: Fields) -> Asked:
    """Read a body for one of the three paths.

    Args:
        engine: "sglang", "vllm" or "kvfence", as the facts name them.
        path: CHAT, COMPLETIONS or GENERATE.
        fields: the top-level members of the body, each undecoded.

    Raises:
        BadRequestError: it is not understood.
        KeyError: there is no such path.

    """
    return _READERS[path](engine, fields)


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Sampling(msgspec.Struct):
    max_new_tokens: int | float | None = None
    n: int | None = None


_INTEGER: Final = msgspec.json.Decoder(int | None)
_NUMBER: Final = msgspec.json.Decoder(float | None)
_FLAG: Final = msgspec.json.Decoder(bool | None)
_STRING: Final = msgspec.json.Decoder(str | None)
_STRINGS: Final = msgspec.json.Decoder(list[str])
_RAWS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OPTIONS: Final = msgspec.json.Decoder(_StreamOptions | None)
_PARAMETERS: Final = msgspec.json.Decoder(_Sampling)
_PLAIN: Final = msgspec.json.Decoder(list[dict[str, str]])
_MESSAGES: Final = msgspec.json.Decoder(list[dict[str, object]] | None)

_PLAIN_KEYS: Final = 2  # role and content
_IN_A_LIST_OF_IDS: Final = b"0123456789-, \t\r\n"

# Members that reach a template, or the tokens that it makes; a conversation with one of them is not plain.
_OF_THE_TEMPLATE: Final = {
    SGLANG: frozenset(
        (
            "tools",
            "chat_template_kwargs",
            "chat_template",
            "reasoning_effort",
            "reasoning",
            "thinking",
            "task",
            "continue_final_message",
            "input_ids",
        )
    ),
    VLLM: frozenset(
        (
            "tools",
            "documents",
            "chat_template_kwargs",
            "chat_template",
            "reasoning_effort",
            "add_generation_prompt",
            "continue_final_message",
            "add_special_tokens",
            "truncate_prompt_tokens",
            "mm_processor_kwargs",
            "kv_transfer_params",
        )
    ),
    KVFENCE: frozenset[str](),  # refuses them all, if they ask for anything
}

# Members of which an engine's count cannot be told from the prompt, and why.
_UNCOUNTABLE: Final = {
    (SGLANG, GENERATE): {
        "input_embeds": "input_embeds stand for tokens",
        "session_params": "session_params put an earlier prompt before this one",
        "positional_embed_overrides": "positional_embed_overrides stand for tokens",
    },
    (VLLM, COMPLETIONS): {
        "prompt_embeds": "prompt_embeds stand for tokens",
        "truncate_prompt_tokens": "truncate_prompt_tokens has the engine cut the prompt",
        "kv_transfer_params": "kv_transfer_params may hold another prompt",
    },
    (VLLM, CHAT): {
        "truncate_prompt_tokens": "truncate_prompt_tokens has the engine cut the prompt",
        "kv_transfer_params": "kv_transfer_params may hold another prompt",
        "chat_template": "chat_template brings a template of its own",
    },
    (SGLANG, CHAT): {"chat_template": "chat_template brings a template of its own"},
}
_MEDIA: Final = ("image_data", "video_data", "audio_data")

# Kinds of content parts that are text in at least one engine; all others count as media.
_TEXT_PARTS: Final = frozenset(
    ("text", "input_text", "output_text", "refusal", "thinking", "reasoning", "tool_reference")
)
_MEDIA_IN_A_PART: Final = frozenset(
    (
        *("image_url", "input_image", "image_pil", "image_embeds"),
        *("audio_url", "input_audio", "audio_embeds", "video_url", "video_embeds", "prompt_embeds"),
    )
)


def _decode(decoder: msgspec.json.Decoder[_T | None], fields: Fields, name: str, kind: str) -> _T | None:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequestError(f"{name} must be {kind}", name) from None


def _is_given(fields: Fields, name: str) -> bool:
    """Whether a member is there and not null."""
    raw = fields.get(name)
    return raw is not None and bytes(memoryview(raw)[:4]) != b"null"


def _integer(fields: Fields, name: str, low: int) -> int | None:
    """Give a whole number of at least `low`; both engines take 16.0 for 16."""
    kind = f"a whole number of at least {low}"
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        value = _INTEGER.decode(raw)
    except msgspec.MsgspecError:
        value = _whole(_decode(_NUMBER, fields, name, kind), name, kind)
    if value is not None and value < low:
        raise BadRequestError(f"{name} must be {kind}", name)
    return value


def _whole(value: float | None, name: str, kind: str) -> int | None:
    if value is None:
        return None
    if value != int(value):
        raise BadRequestError(f"{name} must be {kind}", name)
    return int(value)


def _common(fields: Fields) -> tuple[bool, bool, str | None]:
    """Give whether it streams, whether a stream ends with what was used, and the model."""
    stream = _decode(_FLAG, fields, "stream", "true or false")
    options = _decode(_OPTIONS, fields, "stream_options", "an object that says include_usage with true or false")
    model = _decode(_STRING, fields, "model", "a string")
    return bool(stream), options is not None and bool(options.include_usage), model


def _uncountable(engine: str, path: str, fields: Fields) -> str | None:
    reasons = _UNCOUNTABLE.get((engine, path))
    if reasons is None or reasons.keys().isdisjoint(fields):
        return None
    return next((reason for name, reason in reasons.items() if _is_given(fields, name)), None)


def _read_chat(engine: str, fields: Fields) -> Asked:
    stream, include_usage, model = _common(fields)
    newer, older = _integer(fields, "max_completion_tokens", 0), _integer(fields, "max_tokens", 0)
    multimodal = False
    if engine == SGLANG and _is_given(fields, "input_ids"):
        prompt: Prompt = _ids(fields["input_ids"], "input_ids")
    else:
        prompt, multimodal = _conversation(engine, fields)
    return Asked(
        path=CHAT,
        prompts=(prompt,),
        answer_tokens=newer or older if older is not None else newer,
        stream=stream,
        include_usage=include_usage,
        n=_integer(fields, "n", 1) or 1,
        model=model,
        multimodal=multimodal,
        uncountable=_uncountable(engine, CHAT, fields),
    )


def _conversation(engine: str, fields: Fields) -> tuple[Chat, bool]:
    """Read the messages; tell also whether they hold media."""
    raw = fields.get("messages")
    if raw is None:
        raise BadRequestError("messages is missing", "messages")
    try:
        plain: list[dict[str, str]] | None = _PLAIN.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        plain = None
    messages: list[dict[str, str]] | list[dict[str, object]] | None = plain
    if messages is None:
        messages = _decode(_MESSAGES, fields, "messages", "a list of objects")
    if not messages:
        raise BadRequestError("messages must hold at least one message", "messages")
    if plain is not None and not (_all_plain(plain) and _says_no_more(engine, fields)):
        plain = None
    media = False if plain is not None else any(_has_media(message.get("content")) for message in messages)
    return Chat(raw, len(messages), plain, fields), media


def _all_plain(messages: list[dict[str, str]]) -> bool:
    for message in messages:  # (a loop, for it is on the way of every request)
        if len(message) != _PLAIN_KEYS or "content" not in message:
            return False
        role = message.get("role")
        if role is None or len(role) > ROLE_BYTES or not role.isascii():
            return False
    return True


def _says_no_more(engine: str, fields: Fields) -> bool:
    """Whether only the messages reach the template."""
    others = _OF_THE_TEMPLATE[engine].intersection(fields)
    return not others or not any(_is_given(fields, name) for name in others)


def _has_media(content: object) -> bool:
    """Whether a message's content has a part that is not text. Parts without a type are told by their keys."""
    return isinstance(content, list) and any(
        isinstance(part, dict)
        and (not _MEDIA_IN_A_PART.isdisjoint(part) or str(part.get("type", "text")) not in _TEXT_PARTS)
        for part in content
    )


def _read_completions(engine: str, fields: Fields) -> Asked:
    stream, include_usage, model = _common(fields)
    special = True
    if engine == VLLM:
        special = _decode(_FLAG, fields, "add_special_tokens", "true or false") is not False
    uncountable = _uncountable(engine, COMPLETIONS, fields)
    if _is_given(fields, "prompt"):
        prompts = _prompts(fields["prompt"], "prompt", add_special_tokens=special)
    elif uncountable is not None:
        prompts = ()
    else:
        raise BadRequestError("prompt is missing", "prompt")
    answer = _integer(fields, "max_tokens", 0)
    if answer is None and engine != VLLM:
        answer = COMPLETION_TOKENS
    return Asked(
        path=COMPLETIONS,
        prompts=prompts,
        answer_tokens=answer,
        stream=stream,
        include_usage=include_usage,
        n=_integer(fields, "n", 1) or 1,
        model=model,
        uncountable=uncountable,
    )


def _read_generate(engine: str, fields: Fields) -> Asked:
    """Read SGLang's own request; only one of its three kinds of prompt may be there (`managers/io_struct.py`)."""
    given = [name for name in ("text", "input_ids", "input_embeds") if _is_given(fields, name)]
    if len(given) != 1:
        raise BadRequestError("exactly one of text, input_ids and input_embeds must be given", "text")
    answer, n = _sampling(fields)
    stream = _decode(_FLAG, fields, "stream", "true or false")
    return Asked(
        path=GENERATE,
        prompts=() if given[0] == "input_embeds" else _prompts(fields[given[0]], given[0], add_special_tokens=True),
        answer_tokens=answer,
        stream=bool(stream),
        include_usage=True,  # each part says what was used so far
        n=n,
        model=None,
        multimodal=any(_is_given(fields, name) for name in _MEDIA),
        uncountable=_uncountable(engine, GENERATE, fields),
    )


def _sampling(fields: Fields) -> tuple[int | None, int]:
    """Give the most tokens of an answer, and the answers to each prompt; a batch may say them for each."""
    name, kind = "sampling_params", "an object, or a list of one for each prompt, with whole numbers"
    if not _is_given(fields, name):
        return None, 1
    raw = fields[name]
    try:
        each = _RAWS.decode(raw) if bytes(raw).startswith(b"[") else [raw]
        asked = [_PARAMETERS.decode(one) for one in each]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequestError(f"{name} must be {kind}", name) from None
    most = [_whole(one.max_new_tokens, name, kind) for one in asked]
    if any(value is not None and value < 0 for value in most) or any(one.n is not None and one.n < 1 for one in asked):
        raise BadRequestError(f"{name} must be {kind}", name)
    return (
        max((value for value in most if value is not None), default=None),
        max((one.n or 1 for one in asked), default=1),
    )


def _prompts(raw: msgspec.Raw, name: str, *, add_special_tokens: bool) -> tuple[Prompt, ...]:
    """Read a text, a list of texts, a list of token ids, or a list of such lists."""
    kind = "a string, token ids, or a list of either"
    body = bytes(raw)
    try:
        if body[:1] == b'"':
            text = _STRING.decode(body)
            return (Text(text or "", add_special_tokens),)
        within = body[1:].lstrip()[:1] if body[:1] == b"[" else b""
        if within == b'"':
            return tuple(Text(text, add_special_tokens) for text in _STRINGS.decode(body))
        if within == b"[":
            return tuple(_ids(one, name) for one in _RAWS.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequestError(f"{name} must be {kind}", name) from None
    if not within:
        raise BadRequestError(f"{name} must be {kind}", name)
    return (_ids(raw, name),)


def _ids(raw: msgspec.Raw, name: str) -> Ids:
    """Count the ids of a list by its commas: a million of them need not be decoded.

    That the JSON is well formed was seen when the body was taken apart, so that what is left between the brackets
    after all digits are gone can only be ids.
    """
    body = bytes(raw)
    if body.translate(None, _IN_A_LIST_OF_IDS) != b"[]":
        raise BadRequestError(f"{name} must be made of whole numbers", name)
    if not body[1:-1].strip():
        raise BadRequestError(f"{name} holds no token", name)
    return Ids(body.count(b",") + 1)


_READERS: Final[Mapping[str, Callable[[str, Fields], Asked]]] = {
    CHAT: _read_chat,
    COMPLETIONS: _read_completions,
    GENERATE: _read_generate,
}
