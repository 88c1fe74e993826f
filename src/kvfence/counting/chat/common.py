"""What the engines' ways to write a conversation have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgspec
from jinja2 import meta, nodes

from kvfence.counting.asked import BadRequestError, Chat, Fields, UncountableError
from kvfence.counting.chat.settings import Settings
from kvfence.counting.model_files import ModelFiles
from kvfence.counting.template import ChatTemplate
from kvfence.counting.template_bound import LinearBound

Turn = dict[str, object]

_T = TypeVar("_T")

# The parameters of Hugging Face's apply_chat_template (transformers 5.12 to 5.19): as a variable of a body's they are
# no variable of the template.
RESERVED: Final = frozenset(
    (
        *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self"),
    )
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as text.

    Attributes:
        text: what the engine tokenises.
        add_special_tokens: whether the tokenizer adds its own to those that the template wrote.

    """

    text: str
    add_special_tokens: bool


class Renderer(Protocol):
    """Writes conversations as one engine does."""

    @property
    def bound(self) -> LinearBound | None:
        """How long, in bytes, the prompt of a plain conversation may at most be; None if that is not known."""

    def render(self, chat: Chat) -> Rendered:
        """Write a conversation.

        Raises:
            UncountableError: it has something that is not known to be written as the engine writes it.
            BadRequestError: no engine of this kind takes it.
            UnwritableError: the template refuses it, here as there.

        """


def compile_template(source: str, model: ModelFiles) -> ChatTemplate:
    """Compile a template.

    Raises:
        UncountableError: it is none.

    """
    try:
        return ChatTemplate(source, model.specials)
    except ValueError as error:
        raise UncountableError(f"the chat template {error}") from None


def steadiness(template: ChatTemplate, model: ModelFiles) -> UncountableError | None:
    """Tell why a template may write another text here than in the engine; None if it may not."""
    syntax = template.syntax()
    if any(name.name == "strftime_now" for name in syntax.find_all(nodes.Name)):
        return UncountableError("the chat template writes the time, and the engine's clock may tell another")
    unnamed = {name for name in meta.find_undeclared_variables(syntax) if name.endswith("_token")} - model.named_tokens
    if unnamed:
        return UncountableError(f"the chat template writes {min(unnamed)}, which the model's files do not name")
    return None


def require_plain_files(settings: Settings, model: ModelFiles) -> None:
    """Look for what makes an engine leave the way of the chat template.

    Raises:
        UncountableError: something of the sort is there, or not known not to be.

    """
    if model.architectures is None:
        raise UncountableError(f"{model.directory} has no config.json, which tells how its conversations are encoded")
    if model.media:
        raise UncountableError("the model takes more than text, and its processor writes the prompt")
    if settings.tokenizer_mode not in ("auto", "hf"):
        raise UncountableError(f"the tokenizer mode is {settings.tokenizer_mode}")
    mistral = sorted(name for name in model.names if name == "tekken.json" or name.startswith("tokenizer.model.v"))
    if mistral:
        raise UncountableError(f"{mistral[0]} has its tokens encoded by mistral-common")
    if "additional_chat_templates" in model.names:
        raise UncountableError("the model has additional chat templates")


def decode(fields: Fields, name: str, decoder: msgspec.json.Decoder[_T]) -> _T | None:
    """Decode a member that may be absent.

    Raises:
        UncountableError: it is of a type that is not followed here.

    """
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UncountableError(f"{name} is not of the type that is followed here") from None


CACHE_CONTROL: Final = frozenset(("cache_control",))
"""A field that clients made for Anthropic's endpoints put into text parts."""

_PART: Final = frozenset(("type", "text"))

TURNS: Final = msgspec.json.Decoder(list[dict[str, object]])
OBJECT: Final = msgspec.json.Decoder(dict[str, object] | None)
OBJECTS: Final = msgspec.json.Decoder(list[dict[str, object]] | None)
FLAG: Final = msgspec.json.Decoder(bool | None)
ANY: Final = msgspec.json.Decoder(object)


def turns_of(chat: Chat) -> list[Turn]:
    """Decode the messages.

    Raises:
        BadRequestError: they are no objects.

    """
    try:
        return TURNS.decode(chat.raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequestError("messages must be a list of objects", "messages") from None


def variables_of(fields: Fields) -> dict[str, object]:
    """Give the variables that a body has for the template.

    Raises:
        UncountableError: one of them is no variable but a parameter, or of the wrong type.

    """
    variables = decode(fields, "chat_template_kwargs", OBJECT) or {}
    taken = sorted(RESERVED.intersection(variables))
    if taken:
        raise UncountableError(f"chat_template_kwargs.{taken[0]} is a parameter, no variable")
    return variables


def expect(turn: Mapping[str, object], known: frozenset[str]) -> None:
    """Look that a message has no field but those known.

    Raises:
        UncountableError: it has.

    """
    if not turn.keys() <= known:
        raise UncountableError("a message has a field that is not followed here")


def texts_of(content: list[object], ignored: frozenset[str] = frozenset()) -> list[str]:
    """Give the texts of a content of nothing but text parts.

    Args:
        content: the parts.
        ignored: fields that a text part may have besides its text, as the engine drops them.

    Raises:
        UncountableError: another part is there, or one has more fields.

    """
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not part.keys() - _PART <= ignored:
            raise UncountableError("a message has a content part that is not just text")
        text = part.get("text")
        if not isinstance(text, str):
            raise UncountableError("a message has a text part without text")
        texts.append(text)
    return texts
