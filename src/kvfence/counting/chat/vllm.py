"""A conversation as vLLM 0.32.0 writes it (`renderers/hf.py`, `renderers/chat_utils.py`, `renderers/params.py`).

A content that is a string becomes a list of one part if the template loops over contents. A variable of the body's that
is null or "auto" gives way to the server's, and one that the template does not read is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from jinja2 import meta

from kvfence.counting.asked import BadRequestError, Chat, Fields, UncountableError
from kvfence.counting.chat import common
from kvfence.counting.chat.common import Rendered, Turn
from kvfence.counting.chat.content import of_vllm
from kvfence.counting.chat.settings import Settings
from kvfence.counting.chat.tools import vllm_calls, vllm_tools
from kvfence.counting.model_files import ModelFiles
from kvfence.counting.template import ChatTemplate
from kvfence.counting.template_bound import LinearBound, bound_of

_VERSION: Final = "0.32.0"
_ENCODED_TYPES: Final = ("gpt_oss", "deepseek_v32", "deepseek_v4", "deepseek_v41", "kimi_k3", "kimi_k25", "inkling")
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_ROLES: Final = frozenset(("system", "user", "assistant", "tool"))
_FIELDS: Final = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "refusal")
)
_DROPPED_LINE: Final = "x-anthropic-billing-header"
_DOCUMENTS: Final = msgspec.json.Decoder(list[dict[str, str]] | None)
_EFFORT: Final = msgspec.json.Decoder(str | None)


class VllmRenderer:
    """Renders for one server.

    Args:
        settings: of the server.
        model: its files.

    Raises:
        UncountableError: it is not known to write conversations by the template alone.

    """

    def __init__(self, settings: Settings, model: ModelFiles) -> None:
        if settings.version != _VERSION:
            raise UncountableError(
                f"how vLLM {settings.version or 'of this release'} writes conversations is not known"
            )
        common.require_plain_files(settings, model)
        if model.model_type in _ENCODED_TYPES:
            raise UncountableError(f"the engine encodes conversations of {model.model_type} in Python")
        if settings.takes_embeddings:
            raise UncountableError("the engine has a special token more, for prompt_embeds")
        if "tokenize" in settings.defaults or common.RESERVED.intersection(settings.defaults):
            raise UncountableError("the server's own variables hold one that is more than a variable")
        self._settings = settings
        self._plainly = _Written(_source(settings, model, with_tools=False), settings, model)
        with_tools = _source(settings, model, with_tools=True)
        same = with_tools == self._plainly.template.source
        self._with_tools = self._plainly if same else _Written(with_tools, settings, model)
        defaults = bool(settings.defaults)
        self.bound: LinearBound | None = (
            None if defaults or self._plainly.parts else bound_of(self._plainly.template, model.named_tokens)
        )

    def render(self, chat: Chat) -> Rendered:
        """Write a conversation; as `Renderer.render`."""
        if chat.plain is not None:
            turns = [self._plainly.plain(turn) for turn in chat.plain]
            text = self._plainly.write(turns, dict(self._settings.defaults), add_generation_prompt=True)
            return Rendered(text, add_special_tokens=False)
        fields = chat.fields
        if common.decode(fields, "continue_final_message", common.FLAG):
            raise UncountableError("continue_final_message cuts the prompt by rules that are not followed here")
        tools = self._tools(fields)
        way = self._plainly if tools is None else self._with_tools
        turns = [way.turn(turn) for turn in common.turns_of(chat)]
        begin = common.decode(fields, "add_generation_prompt", common.FLAG) is not False
        special = common.decode(fields, "add_special_tokens", common.FLAG) is True
        text = way.write(
            turns,
            self._variables(fields),
            add_generation_prompt=begin,
            tools=tools,
            documents=common.decode(fields, "documents", _DOCUMENTS),
        )
        return Rendered(text, add_special_tokens=special)

    def _tools(self, fields: Fields) -> list[Turn] | None:
        tools = common.decode(fields, "tools", common.OBJECTS)
        if tools is None:
            return None
        if not tools:
            raise BadRequestError("tools must not be empty", "tools")
        unused = common.decode(fields, "tool_choice", common.ANY) == "none"
        return None if unused and self._settings.hides_unused_tools else vllm_tools(tools)

    def _variables(self, fields: Fields) -> dict[str, object]:
        """Give the variables of the template that are neither null nor "auto" in the body, and the server's."""
        variables = common.variables_of(fields)
        effort = common.decode(fields, "reasoning_effort", _EFFORT)
        if effort is not None:
            if effort not in _EFFORTS:
                raise BadRequestError("reasoning_effort is none that the engine knows", "reasoning_effort")
            variables.setdefault("enable_thinking", effort != "none")
            variables["reasoning_effort"] = effort
        return dict(self._settings.defaults) | {
            name: value for name, value in variables.items() if value is not None and value != "auto"
        }


class _Written:
    """One template and what vLLM makes of messages for it."""

    def __init__(self, source: str, settings: Settings, model: ModelFiles) -> None:
        self.template: ChatTemplate = common.compile_template(source, model)
        form = of_vllm(self.template) if settings.content_format == "auto" else settings.content_format
        if form not in ("string", "openai"):
            raise UncountableError("whether the template takes contents as text or in parts is not known")
        self.parts = form == "openai"
        self._reads = frozenset(meta.find_undeclared_variables(self.template.syntax()))
        self._steady = common.steadiness(self.template, model)

    def write(
        self,
        turns: list[Turn],
        variables: Mapping[str, object],
        *,
        add_generation_prompt: bool,
        tools: list[Turn] | None = None,
        documents: list[dict[str, str]] | None = None,
    ) -> str:
        """Write messages that are as the template takes them."""
        if self._steady is not None:
            raise self._steady
        return self.template.render(
            turns,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            documents=documents,
            variables={name: value for name, value in variables.items() if name in self._reads},
        )

    def plain(self, turn: dict[str, str]) -> Turn:
        """Take a message of a role and a text."""
        role, content = _role(turn["role"]), turn["content"]
        if role == "system" and content.startswith(_DROPPED_LINE):
            raise UncountableError("the engine drops a line of the system message")
        return {"role": role, "content": self._content(role, [content])}

    def turn(self, turn: Turn) -> Turn:
        """Take from a message what vLLM takes, in its order."""
        common.expect(turn, _FIELDS)
        role, content = _role(turn.get("role")), turn.get("content")
        if content is not None and not isinstance(content, str | list):
            raise BadRequestError("a message's content is neither text nor a list", "messages")
        ignored = frozenset[str]() if self.parts else common.CACHE_CONTROL
        texts = [content] if isinstance(content, str) else common.texts_of(content or [], ignored)
        if role == "system" and any(text.startswith(_DROPPED_LINE) for text in texts):
            raise UncountableError("the engine drops a line of the system message")
        written: Turn = {"role": role, "content": self._content(role, texts)}
        if role == "assistant":
            calls = turn.get("tool_calls")
            if calls:
                written["tool_calls"] = vllm_calls(calls)
            thought = turn.get("reasoning")
            thought = turn.get("reasoning_content") if thought is None else thought
            if thought is not None:
                written["reasoning"] = written["reasoning_content"] = _is_text(thought)
        elif turn.get("tool_calls") is not None or turn.get("refusal") is not None:
            raise UncountableError("a message has a field of another role")
        if role == "tool" and "tool_call_id" in turn:
            written["tool_call_id"] = _is_text(turn["tool_call_id"])
        if turn.get("name") is not None:
            written["name"] = _is_text(turn["name"])
        return written

    def _content(self, role: str, texts: list[str]) -> object:
        if not self.parts:
            return "\n".join(filter(None, texts))  # empty ones are dropped, with their line
        if role == "tool":
            return "\n".join(texts)
        return [{"type": "text", "text": text} for text in texts]


def _role(role: object) -> str:
    if role not in _ROLES:
        raise UncountableError("a message's role is not followed here")
    return str(role)


def _is_text(value: object) -> str:
    if not isinstance(value, str):
        raise UncountableError("a message has a field that is no text")
    return value


def _source(settings: Settings, model: ModelFiles, *, with_tools: bool) -> str:
    """Give the template that vLLM uses: of several, one of its own for tools (`get_chat_template` of transformers)."""
    if settings.named_template is not None or settings.template is not None:
        if settings.template is None:
            raise UncountableError("the engine was started with a chat template that is not known here")
        return settings.template
    names = ("tool_use", "default") if with_tools else ("default",)
    for name in names:
        if name in model.templates:
            return model.templates[name]
    raise UncountableError("the model has no chat template, or none by default")
