"""Tools and calls of tools, as the engines hand them to a template: in a known order, with nulls where they write them.

A template that writes a whole tool with `tojson` shows each field, so that what an engine adds or drops counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from kvfence.counting.asked import BadRequestError, Fields, UncountableError
from kvfence.counting.chat import common
from kvfence.counting.chat.common import Turn
from kvfence.knowledge.releases import Version

_KEEPS_ORDER: Final = Version.parse("0.5.23")
_TYPES: Final = frozenset(("string", "number", "integer", "boolean", "array", "object", "null"))
_WORD: Final = 1 << 64
_DEEPEST: Final = 64


def function_of(tool: Turn) -> Turn:
    """Give a tool's function, which some templates take in place of the tool."""
    function = tool["function"]
    return function if isinstance(function, dict) else tool


class SglangTools:
    """As SGLang hands them on (`Tool`, `Function` and `ToolCall` of `entrypoints/openai/protocol.py`).

    Args:
        version: of the engine: from 0.5.23 on a function keeps the order of its fields.

    """

    def __init__(self, version: Version) -> None:
        self._keeps_order = version >= _KEEPS_ORDER

    def of(self, fields: Fields) -> list[Turn] | None:
        """Give the tools of a body, or None where the template gets none.

        Raises:
            UncountableError: one has something that is not followed here.
            BadRequestError: the engine would not take the choice.

        """
        tools = common.decode(fields, "tools", common.OBJECTS)
        choice = common.decode(fields, "tool_choice", common.ANY)
        if not tools or choice == "none":
            return None
        if choice is None or choice in ("auto", "required"):
            return [self._tool(tool) for tool in tools]
        name = _named(choice)
        return [self._tool(tool) for tool in tools if _name_of(tool) == name] or None

    def _tool(self, tool: Mapping[str, object]) -> Turn:
        kind, function = tool.get("type", "function"), tool.get("function")
        if not isinstance(kind, str) or not isinstance(function, dict) or tool.get("defer_loading") is not None:
            raise UncountableError("a tool is more than a function")
        return {"type": kind, "function": self._function(function), "defer_loading": None}

    def _function(self, given: Mapping[str, object]) -> Turn:
        description, name, parameters = given.get("description"), given.get("name"), given.get("parameters")
        strict = given.get("strict")
        if not isinstance(name, str) or not isinstance(description, str | None) or given.get("defer_loading"):
            raise UncountableError("a tool's function is not followed here")
        if not isinstance(parameters, dict | None) or not isinstance(strict, bool | None):
            raise UncountableError("a tool's parameters are no JSON schema")
        _require_standard(parameters)
        function: Turn = {"description": description, "name": name, "parameters": parameters}
        if not self._keeps_order:
            return function | {"strict": bool(strict)}
        if strict is not None:
            function["strict"] = strict
        order = [key for key in given if key in function]
        return {key: function[key] for key in (*order, *(key for key in function if key not in order))}

    @staticmethod
    def calls(value: object, *, parse: bool) -> list[Turn]:
        """Give a message's calls.

        Args:
            value: the field.
            parse: whether the arguments become an object, as they do in a message of the assistant.

        Raises:
            UncountableError: one has something that is not followed here.
            BadRequestError: the engine takes no such arguments.

        """
        if not isinstance(value, list):
            raise BadRequestError("a message's tool_calls are no list", "messages")
        return [_call(call, parse=parse) for call in value]


def _call(call: object, *, parse: bool) -> Turn:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise BadRequestError("a message's tool call has no function", "messages")
    key, index, name = call.get("id"), call.get("index"), function.get("name")
    known = isinstance(key, str | None) and isinstance(name, str | None) and isinstance(index, int | None)
    if not known or isinstance(index, bool) or call.get("type", "function") != "function":
        raise UncountableError("a message's tool call is not followed here")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and parse:
        arguments = _arguments(arguments)
    elif not isinstance(arguments, str | dict | None):
        raise BadRequestError("the arguments of a tool call are no object", "messages")
    return {"id": key, "index": index, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(text: str) -> dict[str, object]:
    """Decode the arguments of a call, as orjson does for SGLang."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadRequestError("the arguments of a tool call are no JSON object", "messages") from None
    if not isinstance(value, dict):
        raise BadRequestError("the arguments of a tool call are no JSON object", "messages")
    _require_small(value)
    return value


def vllm_tools(tools: list[dict[str, object]]) -> list[Turn]:
    """Give tools as vLLM hands them on (`ChatCompletionToolsParam`, `FunctionDefinition` of 0.32.0).

    Raises:
        UncountableError: one has something that is not followed here.

    """
    return [_vllm_tool(tool) for tool in tools]


def _vllm_tool(tool: Mapping[str, object]) -> Turn:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise UncountableError("a tool is more than a function")
    name, description, parameters = function.get("name"), function.get("description"), function.get("parameters")
    strict = function.get("strict")
    if not isinstance(name, str) or not isinstance(description, str | None) or not isinstance(strict, bool | None):
        raise UncountableError("a tool's function is not followed here")
    if not isinstance(parameters, dict | None):
        raise UncountableError("a tool's parameters are no JSON schema")
    if tool.get("defer_loading") is not None or function.get("defer_loading") is not None:
        raise UncountableError("a tool is loaded later")
    written: Turn = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": written if strict is None else written | {"strict": strict}}


def vllm_calls(value: object) -> list[Turn]:
    """Give a message's calls as vLLM hands them on: arguments that are no JSON object become an empty one.

    Raises:
        UncountableError: one has not just the fields of OpenAI's.

    """
    if not isinstance(value, list):
        raise UncountableError("a message's tool_calls are no list")
    return [_vllm_call(call) for call in value]


def _vllm_call(call: object) -> Turn:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type") != "function":
        raise UncountableError("a message's tool call is not followed here")
    if call.keys() != {"id", "type", "function"} or function.keys() != {"name", "arguments"}:
        raise UncountableError("a message's tool call has a field that is not followed here")
    key, name, arguments = call["id"], function["name"], function["arguments"]
    if not isinstance(key, str) or not isinstance(name, str) or not isinstance(arguments, str):
        raise UncountableError("a message's tool call is not followed here")
    try:
        parsed = json.loads(arguments) if arguments else {}
    except ValueError:
        parsed = {}
    except RecursionError:
        raise UncountableError("the arguments of a tool call are nested too deeply") from None
    written = {"arguments": parsed if isinstance(parsed, dict) else {}, "name": name}
    return {"id": key, "function": written, "type": "function"}


def _named(choice: object) -> object:
    """Give the name of the one tool that is to be called."""
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise BadRequestError("tool_choice names no tool", "tool_choice")
    return name


def _name_of(tool: Mapping[str, object]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _require_standard(schema: object, depth: int = 0) -> None:
    """Look that a schema names standard types only: SGLang rewrites others before the template sees them."""
    if depth > _DEEPEST:
        raise UncountableError("a tool's parameters are nested too deeply")
    if isinstance(schema, dict):
        kind = schema.get("type", "string")
        kinds = kind if isinstance(kind, list) else [kind]
        if any(isinstance(one, str) and one not in _TYPES for one in kinds) or len(kinds) != len(set(map(str, kinds))):
            raise UncountableError("a tool's parameters have a type that the engine rewrites")
        for value in schema.values():
            _require_standard(value, depth + 1)
    elif isinstance(schema, list):
        for value in schema:
            _require_standard(value, depth + 1)
    else:
        _require_small(schema)


def _require_small(value: object, depth: int = 0) -> None:
    """Look that all whole numbers have 64 bits: orjson makes others floating-point numbers."""
    if depth > _DEEPEST:
        raise UncountableError("an object is nested too deeply")
    if isinstance(value, dict):
        for each in value.values():
            _require_small(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            _require_small(each, depth + 1)
    elif isinstance(value, int) and not -_WORD // 2 <= value < _WORD:
        raise UncountableError("a whole number has more than 64 bits")
