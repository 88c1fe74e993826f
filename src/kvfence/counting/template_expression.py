"""What is known of the value of an expression of a template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from jinja2 import nodes

from kvfence.counting.template_size import (
    MISSING,
    NOTHING,
    UNKNOWN,
    Falsy,
    Known,
    LoopOf,
    Missing,
    Namespace,
    NotLinearError,
    Number,
    Pieces,
    Size,
    String,
    Truth,
    TurnOf,
    Turns,
    Value,
    is_number,
    is_opaque,
    is_string,
    is_sure,
    is_truth,
    joined,
    size_of,
    truth_of,
)
from kvfence.counting.template_state import State

# What a change between small and capital letters may do: "\u0390".upper() has three times the bytes.
_CASE: Final = {"upper": 3, "capitalize": 3, "title": 3, "lower": 2}
_SHORTENS: Final = frozenset(("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "trim"))
_SPLITS: Final = frozenset(("split", "rsplit", "partition", "rpartition", "splitlines"))
_ASKS: Final = frozenset(("startswith", "endswith", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"))
_COUNTS: Final = frozenset(("find", "rfind", "index", "count"))
_METHODS_OF_A_TURN: Final = frozenset(dir(dict))
_LOOP_NUMBERS: Final = frozenset(("index", "index0", "revindex", "revindex0", "length", "depth", "depth0"))
_JSON: Final = 6  # bytes of the longest escape of a character of one byte
_OF_A_TURN_IN_JSON: Final = 16  # spaces that json.dumps writes between two members, and more
_WRITTEN_TIME: Final = 32  # bytes of what one directive of strftime writes
_TIME: Final = re.compile(r"[^%]*(%-?[A-Za-z%][^%]*)*")


class Expressions:
    """Gives values of expressions.

    Attributes:
        first_pass: whether what is looked at happens in the first pass of a loop only.

    Args:
        state: the variables.
        role_bytes: the most bytes of a message's role.
        call_macro: goes through a macro of the template; gives None if there is no such.

    """

    def __init__(self, state: State, role_bytes: int, call_macro: Callable[[nodes.Call], Value | None]) -> None:
        self.first_pass = False
        self._state = state
        self._role = String(Size(role_bytes))
        self._call_macro = call_macro
        self._kinds: dict[type[nodes.Node], Callable[..., Value]] = {
            nodes.Const: lambda node: Known(node.value),
            nodes.Name: self._name,
            nodes.Getattr: lambda node: self._attribute(self.of(node.node), node.attr, node),
            nodes.Getitem: self._item,
            nodes.Add: self._add,
            nodes.Sub: self._number,
            nodes.FloorDiv: self._number,
            nodes.Mod: self._number,
            nodes.Concat: self._concat,
            nodes.And: self._and,
            nodes.Or: self._or,
            nodes.Not: self._not,
            nodes.Compare: self._compare,
            nodes.Test: self._test,
            nodes.CondExpr: self._conditional,
            nodes.Filter: self._filter,
            nodes.Call: self._call,
            nodes.List: self._list,
            nodes.Tuple: self._list,
            nodes.Neg: self._negative,
        }

    def of(self, node: nodes.Node) -> Value:
        """Give what is known of an expression's value."""
        kind = self._kinds.get(type(node))
        value = UNKNOWN if kind is None else kind(node)
        if self.first_pass:
            if isinstance(value, String):
                return String(value.size.in_first_pass(), value.sure)
            if isinstance(value, Pieces):
                return Pieces(value.size.in_first_pass())
        return value

    def _name(self, node: nodes.Name) -> Value:
        value = self._state.get(node.name)
        if not isinstance(value, Missing):
            return value
        known = any(node.name in scope for scope in self._state.scopes)
        # An unnamed special token may be set by the tokenizer's class; the rest are Jinja's own functions.
        return UNKNOWN if not known and (node.name.endswith("_token") or node.name in _FUNCTIONS) else MISSING

    def _attribute(self, of: Value, name: str, node: nodes.Node) -> Value:  # noqa: PLR0911 (one answer a kind)
        del node
        match of:
            case TurnOf(at):
                if name == "role":
                    return self._role
                if name == "content":
                    return String(Size(turn=1) if at else Size(total=1))
                return UNKNOWN if name in _METHODS_OF_A_TURN else MISSING
            case Namespace(key):
                return self._state.spaces[key].get(name, MISSING)
            case LoopOf():
                if name in _LOOP_NUMBERS:
                    return Number()
                return Truth() if name in ("first", "last") else UNKNOWN
            case Missing():
                return MISSING  # (it fails, and so does the request)
            case Known(None):
                return MISSING
            case _:
                return UNKNOWN

    def _item(self, node: nodes.Getitem) -> Value:
        of = self.of(node.node)
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            return self._attribute(of, node.arg.value, node)
        sliced = isinstance(node.arg, nodes.Slice)
        if isinstance(of, Turns):
            return of if sliced else TurnOf(at=False) if is_number(self.of(node.arg)) else UNKNOWN
        if isinstance(of, Pieces):
            return of if sliced else String(of.size, sure=False) if is_number(self.of(node.arg)) else UNKNOWN
        if is_string(of) and (sliced or is_number(self.of(node.arg))):
            return String(size_of(of), sure=sliced)
        return MISSING if isinstance(of, Missing) else UNKNOWN

    def _add(self, node: nodes.Add) -> Value:
        left, right = self.of(node.left), self.of(node.right)
        if is_number(left) and is_number(right):
            return Number()
        if (is_string(left) and (is_string(right) or isinstance(right, Missing))) or (
            is_string(right) and isinstance(left, Missing)
        ):
            return String(size_of(left) + size_of(right))
        return UNKNOWN

    def _number(self, node: nodes.BinExpr) -> Value:
        both = is_number(self.of(node.left)) and is_number(self.of(node.right))
        return Number() if both else UNKNOWN

    def _negative(self, node: nodes.Neg) -> Value:
        value = self.of(node.node)
        if isinstance(value, Known) and isinstance(value.value, int):
            return Known(-value.value)
        return Number() if is_number(value) else UNKNOWN

    def _concat(self, node: nodes.Concat) -> Value:
        try:
            return String(sum((size_of(self.of(part)) for part in node.nodes), start=NOTHING))
        except NotLinearError:
            return UNKNOWN

    def _and(self, node: nodes.And) -> Value:
        left = self.of(node.left)
        truth = truth_of(left)
        if truth is None:
            right = self.of(node.right)
            return Falsy() if truth_of(right) is False else joined(left, right)
        return self.of(node.right) if truth else left

    def _or(self, node: nodes.Or) -> Value:
        left = self.of(node.left)
        truth = truth_of(left)
        if truth is None:
            return joined(left, self.of(node.right))
        return left if truth else self.of(node.right)

    def _not(self, node: nodes.Not) -> Value:
        truth = truth_of(self.of(node.node))
        return Truth() if truth is None else Known(not truth)

    def _compare(self, node: nodes.Compare) -> Value:
        left = self.of(node.expr)
        if len(node.ops) == 1 and isinstance(left, Known):
            right = self.of(node.ops[0].expr)
            if isinstance(right, Known) and node.ops[0].op in ("eq", "ne"):
                return Known((left.value == right.value) is (node.ops[0].op == "eq"))
        return Truth()

    def _test(self, node: nodes.Test) -> Value:
        value = self.of(node.node)
        truth = _TESTS.get(node.name, _undecided)(value)
        return Truth() if truth is None else Known(truth)

    def _conditional(self, node: nodes.CondExpr) -> Value:
        truth = truth_of(self.of(node.test))
        other = self.of(node.expr2) if node.expr2 is not None else MISSING
        if truth is None:
            return joined(self.of(node.expr1), other)
        return self.of(node.expr1) if truth else other

    def _list(self, node: nodes.List | nodes.Tuple) -> Value:
        values = [self.of(item) for item in node.items]
        constants = [value.value for value in values if isinstance(value, Known)]
        return Known(constants) if len(constants) == len(values) else UNKNOWN

    def _filter(self, node: nodes.Filter) -> Value:  # noqa: PLR0911 (one answer a filter)
        if node.node is None or node.dyn_args or node.dyn_kwargs:
            return UNKNOWN
        value, name = self.of(node.node), node.name
        if name in ("default", "d"):
            other = self.of(node.args[0]) if node.args else Known("")
            if isinstance(value, Missing):
                return other
            there = _is_defined(value) is True and len(node.args) == 1 and not node.kwargs
            return value if there else joined(value, other)
        if name in ("length", "count"):
            return Number()
        if isinstance(value, Turns):
            return self._of_turns(value, name, node)
        if isinstance(value, Pieces):
            return String(value.size, sure=False) if name in ("first", "last") else UNKNOWN
        if name == "tojson":
            return _json(value, node)
        if is_string(value) or isinstance(value, Missing):
            if name in ("string", "first", "last"):
                return String(size_of(value), sure=name == "string")
            return self._of_string(size_of(value), name, node)
        return String(size_of(value)) if name == "string" and (is_number(value) or is_truth(value)) else UNKNOWN

    @staticmethod
    def _of_turns(value: Turns, name: str, node: nodes.Filter) -> Value:
        if name in ("list", "reverse", "selectattr", "rejectattr"):
            return value
        if name in ("first", "last"):
            return TurnOf(at=False)
        if name == "tojson" and not node.args and not node.kwargs:
            return String(Size(each=_OF_A_TURN_IN_JSON, total=1, const=2))
        return UNKNOWN

    def _of_string(self, size: Size, name: str, node: nodes.Call | nodes.Filter) -> Value:
        """Give what a filter or a method makes of a text."""
        if name in _SHORTENS:
            return String(size)
        if name in _CASE:
            return String(size.times(_CASE[name]))
        if name in _SPLITS:
            return Pieces(size) if isinstance(node, nodes.Call) else UNKNOWN
        if name in _ASKS:
            return Truth()
        if name in _COUNTS:
            return Number()
        return self._replaced(size, node) if name == "replace" else UNKNOWN

    def _replaced(self, size: Size, node: nodes.Call | nodes.Filter) -> Value:
        texts = [self.of(argument) for argument in node.args[:2]]
        old, new = (text.value if isinstance(text, Known) else None for text in (*texts, UNKNOWN, UNKNOWN)[:2])
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            return UNKNOWN
        longest = max(len(new.encode()), len(json.dumps(new, ensure_ascii=False).encode()))
        return String(size.times(max(1, -(-longest // len(old.encode())))))

    def _call(self, node: nodes.Call) -> Value:  # noqa: PLR0911 (one answer a function)
        made = self._call_macro(node)
        if made is not None:
            return made
        if node.dyn_args or node.dyn_kwargs:
            return UNKNOWN
        if isinstance(node.node, nodes.Name):
            return self._function(node.node.name, node)
        if not isinstance(node.node, nodes.Getattr):
            return UNKNOWN
        of, name = self.of(node.node.node), node.node.attr
        if isinstance(of, TurnOf) and name == "get" and node.args and isinstance(node.args[0], nodes.Const):
            value = self._attribute(of, str(node.args[0].value), node)
            if node.args[0].value not in ("role", "content"):  # not among the members of a plain message
                value = self.of(node.args[1]) if len(node.args) > 1 else Known(None)
            return value
        if is_string(of):
            return self._of_string(size_of(of), name, node)
        return MISSING if isinstance(of, Missing) else UNKNOWN

    def _function(self, name: str, node: nodes.Call) -> Value:
        if isinstance(self._state.get(name), Missing) and not any(name in scope for scope in self._state.scopes):
            if name == "namespace" and not node.args:
                return self._state.make_space({keyword.key: self.of(keyword.value) for keyword in node.kwargs})
            if name == "raise_exception":
                return MISSING
            if name == "strftime_now" and len(node.args) == 1:
                return _time(self.of(node.args[0]))
        return UNKNOWN


_FUNCTIONS: Final = frozenset(
    (
        *("range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now"),
        *("self", "super", "varargs", "kwargs", "caller"),
    )
)


def _json(value: Value, node: nodes.Filter) -> Value:
    """Give the JSON of a value: of a text that came in JSON, no longer than it came."""
    if node.args or node.kwargs:
        return UNKNOWN
    if isinstance(value, TurnOf):
        return String(Size(turn=1, const=_OF_A_TURN_IN_JSON) if value.at else Size(total=1, const=_OF_A_TURN_IN_JSON))
    if not is_string(value):
        return UNKNOWN
    size = size_of(value)
    if any(size.kept.values()):
        return UNKNOWN
    return String(size + Size(size.const * (_JSON - 1) + 2, each=size.each * (_JSON - 1)))


def _time(form: Value) -> Value:
    if not isinstance(form, Known) or not isinstance(form.value, str) or not _TIME.fullmatch(form.value):
        return UNKNOWN
    return String(Size(len(form.value.encode()) + _WRITTEN_TIME * form.value.count("%")))


def _undecided(value: Value) -> bool | None:
    del value
    return None


def _is_defined(value: Value) -> bool | None:
    if is_opaque(value) or value == TurnOf(at=False) or (isinstance(value, String) and not value.sure):
        return None
    return not isinstance(value, Missing)


def _is_none(value: Value) -> bool | None:
    if isinstance(value, Known):
        return value.value is None
    return None if is_opaque(value) or (is_string(value) and not is_sure(value)) else False


def _is_text(value: Value) -> bool | None:
    if is_opaque(value) or (is_string(value) and not is_sure(value)):
        return None
    return is_string(value)


def _is_mapping(value: Value) -> bool | None:
    if is_opaque(value) or value == TurnOf(at=False):
        return None
    return isinstance(value, TurnOf)


def _is_true(value: Value) -> bool | None:
    return value.value is True if isinstance(value, Known) else None


def _is_false(value: Value) -> bool | None:
    return value.value is False if isinstance(value, Known) else None


_TESTS: Final[dict[str, Callable[[Value], bool | None]]] = {
    "defined": _is_defined,
    "undefined": lambda value: None if (known := _is_defined(value)) is None else not known,
    "none": _is_none,
    "string": _is_text,
    "mapping": _is_mapping,
    "true": _is_true,
    "false": _is_false,
}
