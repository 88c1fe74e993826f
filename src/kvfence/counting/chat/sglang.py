"""A conversation as SGLang 0.5.18 to 0.5.23 writes it (`entrypoints/openai/serving_chat.py`, `protocol.py`).

Messages become objects of known fields, in a known order, before the template sees them: others are dropped, absent
ones left out, but those of tool calls and tools written as null. A last message of the assistant becomes one of the
user. Tokens are encoded without the special ones that the tokenizer would add: the template writes them.
"""

from __future__ import annotations

from typing import Final

from kvfence.counting.asked import BadRequestError, Chat, UncountableError
from kvfence.counting.chat import common
from kvfence.counting.chat.common import Rendered, Turn
from kvfence.counting.chat.content import of_sglang
from kvfence.counting.chat.settings import Settings
from kvfence.counting.chat.tools import SglangTools, function_of
from kvfence.counting.model_files import ModelFiles
from kvfence.counting.template import UnwritableError
from kvfence.counting.template_bound import LinearBound, bound_of
from kvfence.knowledge.releases import Version

OLDEST: Final = Version.parse("0.5.18")
NEWEST: Final = Version.parse("0.5.23")
_PHASE: Final = Version.parse("0.5.20")
_ROOT: Final = Version.parse("0.5.23")

# An encoder in Python in place of the template: picked by the parser of tool calls, or by the model's class.
_ENCODED_PARSERS: Final = ("deepseekv41", "deepseekv4", "deepseekv32", "kimi_k3", "muse")
_ENCODED_CLASSES: Final = ("DeepseekV4", "KimiK3", "Inkling", "GlmMoeDsa", "Glm5Next")
_ENCODED_TYPES: Final = ("deepseek_v41", "minimax_m3_vl", "gpt_oss")

# A template built in, picked by a word in the model's path (`parser/conversation.py`).
_BUILT_IN: Final = (
    *("points", "moss", "internvl", "janus", "vicuna", "llava", "vl2", "minicpm", "phi-4-multimodal"),
    *("deepseek-ocr", "unlimited", "paddleocr", "whisper"),
)

_ROLES: Final = frozenset(("system", "assistant", "tool", "function", "developer", "latest_reminder"))
_TEXTS: Final = ("tool_call_id", "name", "phase", "reasoning_content")
_TO_THE_ENDPOINT: Final = ("reasoning_effort", "reasoning", "thinking", "task", "chat_template")


class SglangRenderer:
    """Renders for one server.

    Args:
        settings: of the server.
        model: its files.

    Raises:
        UncountableError: it is not known to write conversations by the template alone.

    """

    def __init__(self, settings: Settings, model: ModelFiles) -> None:
        version = _version(settings)
        common.require_plain_files(settings, model)
        _require_template_path(settings, model)
        self._template = common.compile_template(_source(settings, model), model)
        self._format = of_sglang(self._template)
        self._defaults = dict(settings.defaults)
        if "reasoning_effort" in self._defaults or common.RESERVED.intersection(self._defaults):
            raise UncountableError("the server's own variables hold one that is more than a variable")
        self._tools = SglangTools(version)
        self._roles = _ROLES | {"root"} if version >= _ROOT else _ROLES
        self._texts = _TEXTS if version >= _PHASE else tuple(name for name in _TEXTS if name != "phase")
        self._continues = version >= _ROOT
        self.bound: LinearBound | None = None if self._defaults else bound_of(self._template, model.named_tokens)
        self._steady = common.steadiness(self._template, model)

    def render(self, chat: Chat) -> Rendered:
        """Write a conversation; as `Renderer.render`."""
        if self._steady is not None:
            raise self._steady
        if chat.plain is not None:
            turns = self._last_is_the_users([self._plain(turn) for turn in chat.plain])
            return Rendered(self._write(turns, None, self._defaults), add_special_tokens=False)
        for name in _TO_THE_ENDPOINT:
            if common.decode(chat.fields, name, common.ANY) is not None:
                raise UncountableError(f"{name} changes more than the template's variables")
        if common.decode(chat.fields, "continue_final_message", common.FLAG):
            raise UncountableError("the engine encodes the beginning of the answer apart")
        variables = self._defaults | common.variables_of(chat.fields)
        if "reasoning_effort" in variables:
            raise UncountableError("chat_template_kwargs.reasoning_effort changes more than the template's variables")
        tools = self._tools.of(chat.fields)
        turns = self._last_is_the_users([self._turn(turn) for turn in common.turns_of(chat)])
        return Rendered(self._write_either_way(turns, tools, variables), add_special_tokens=False)

    def _write_either_way(self, turns: list[Turn], tools: list[Turn] | None, variables: dict[str, object]) -> str:
        """Write with tools as OpenAI has them or, if the template cannot, with the functions alone."""
        try:
            return self._write(turns, tools, variables)
        except UnwritableError:
            if tools is None:
                raise
            return self._write(turns, [function_of(tool) for tool in tools], variables)

    def _write(self, turns: list[Turn], tools: list[Turn] | None, variables: dict[str, object]) -> str:
        return self._template.render(turns, add_generation_prompt=True, tools=tools, variables=variables)

    def _plain(self, turn: dict[str, str]) -> Turn:
        return {"role": self._role(turn["role"]), "content": turn["content"]}

    def _role(self, role: object) -> str:
        """Give a role as the template sees it: all but the user's are told in any case of letters."""
        if role == "user":
            return "user"
        lower = role.lower() if isinstance(role, str) else ""
        if lower not in self._roles:
            raise BadRequestError("a message's role is none that the engine knows", "messages")
        return lower

    def _turn(self, turn: Turn) -> Turn:
        """Take from a message what SGLang takes, in its order."""
        role = self._role(turn.get("role"))
        content = turn.get("content")
        written: Turn = {"role": role, "content": self._content(role, content)}
        if role == "user":  # a user's message has nothing else; a name is dropped
            if content is None:
                raise BadRequestError("a user's message has no content", "messages")
            return written
        if turn.get("tools") is not None or (self._continues and turn.get("prefix") is not None):
            raise UncountableError("a message has tools of its own, or is to be continued")
        for name in self._texts:
            value = turn.get(name)
            if value is not None:
                if not isinstance(value, str):
                    raise BadRequestError(f"a message's {name} is no text", "messages")
                written[name] = value
        calls = turn.get("tool_calls")
        if calls is not None:
            written["tool_calls"] = self._tools.calls(calls, parse=role == "assistant")
        return written

    def _content(self, role: str, content: object) -> object:
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise BadRequestError("a message's content is neither text nor a list", "messages")
        texts = common.texts_of(content, common.CACHE_CONTROL)
        if self._format == "string" or role == "tool":
            return " ".join(texts)
        return [{"type": "text", "text": text} for text in texts]

    @staticmethod
    def _last_is_the_users(turns: list[Turn]) -> list[Turn]:
        """Make a last message of the assistant one of the user (`_handle_last_assistant_message`)."""
        last = turns[-1]
        if last["role"] == "assistant" and isinstance(last["content"], str):
            return [*turns[:-1], {"role": "user", "content": last["content"]}]
        return turns


def _version(settings: Settings) -> Version:
    try:
        version = Version.parse(settings.version or "")
    except ValueError:
        raise UncountableError("the engine's release is not known") from None
    if not OLDEST <= version <= NEWEST or version.pre or version.post:
        raise UncountableError(f"how SGLang {version} writes conversations is not known here")
    return version


def _require_template_path(settings: Settings, model: ModelFiles) -> None:
    """Look that nothing but a Jinja template writes the conversations of this model."""
    first = (model.architectures or ("",))[0]
    if settings.reasoning_parser == "hunyuan":
        raise UncountableError("the engine gives this model's template a variable of its own")
    if settings.tool_parser in _ENCODED_PARSERS or model.model_type in _ENCODED_TYPES:
        raise UncountableError("the engine encodes this model's conversations in Python")
    if any(word in first for word in _ENCODED_CLASSES):
        raise UncountableError(f"the engine encodes conversations of {first} in Python")
    if settings.named_template is not None:
        if not settings.named_template.endswith(".jinja"):
            raise UncountableError("the engine was started with a chat template that is built in")
        return
    if settings.model is None:
        raise UncountableError("the path that the engine loaded the model by is not known")
    if any(word in settings.model.lower() for word in _BUILT_IN):
        raise UncountableError("the engine may have a chat template built in for the model's path")


def _source(settings: Settings, model: ModelFiles) -> str:
    """Give the template that SGLang uses; of several in the model's files, the first unless one was named."""
    if settings.named_template is not None:
        if settings.template is None:
            raise UncountableError("the engine was started with a chat template that is not known here")
        return settings.template.strip("\n").replace("\\n", "\n")
    if not model.templates:
        raise UncountableError("the model has no chat template")
    if settings.template_of_several is None or len(model.templates) == 1:
        return next(iter(model.templates.values()))
    source = model.templates.get(settings.template_of_several)
    if source is None:
        raise UncountableError("the model has no chat template of the name that the engine was started with")
    return source
