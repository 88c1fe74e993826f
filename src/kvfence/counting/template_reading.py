"""Go through a template's syntax tree with bounds of lengths in place of texts.

Everything that is not understood ends it with NotLinearError, or makes a value of which nothing is known: one that may
be tested, since both ways are gone, and not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from jinja2 import nodes

from kvfence.counting.template_expression import Expressions
from kvfence.counting.template_size import (
    MISSING,
    NOTHING,
    UNKNOWN,
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
    is_string,
    is_sure,
    is_truth,
    joined,
    size_of,
    truth_of,
)
from kvfence.counting.template_state import State

_DEEPEST_MACRO: Final = 8

Attribute = tuple[int, str]


class Reading:
    """One way through a template.

    Args:
        variables: what the template is given, but for the messages.
        role_bytes: the most bytes of a role.

    """

    def __init__(self, variables: Mapping[str, Value], role_bytes: int) -> None:
        self._state = State(dict(variables) | {"messages": Turns()})
        self._in_turns = False
        self._depth = 0
        self._macros: dict[str, nodes.Macro] = {}
        self._values = Expressions(self._state, role_bytes, self._call_macro)
        self._statements: dict[type[nodes.Node], Callable[[nodes.Node], Size]] = {
            nodes.Output: self._output,
            nodes.If: self._if,
            nodes.For: self._for,
            nodes.Assign: self._assign,
            nodes.AssignBlock: self._assign_block,
            nodes.Macro: self._macro,
        }

    def size_of(self, template: nodes.Template) -> Size:
        """Bound what the template writes.

        Raises:
            NotLinearError: it cannot be shown to be linear in the conversation.

        """
        return self._body(template.body)

    def _body(self, body: Iterable[nodes.Node]) -> Size:
        size = NOTHING
        for node in body:
            handler = self._statements.get(type(node))
            if handler is None:
                raise NotLinearError
            size += handler(node)
        return size

    def _output(self, node: nodes.Node) -> Size:
        assert isinstance(node, nodes.Output)
        size = NOTHING
        for part in node.nodes:
            if isinstance(part, nodes.TemplateData):
                size += Size(len(part.data.encode()))
            else:
                size += size_of(self._values.of(part))
        return size

    def _if(self, node: nodes.Node) -> Size:
        assert isinstance(node, nodes.If)
        ways: list[tuple[nodes.Node | None, list[nodes.Node]]] = [(node.test, node.body)]
        ways += [(other.test, other.body) for other in node.elif_]
        ways.append((None, node.else_))
        return self._either(ways)

    def _either(self, ways: list[tuple[nodes.Node | None, list[nodes.Node]]]) -> Size:
        (test, body), rest = ways[0], ways[1:]
        if test is None:
            return self._body(body)
        truth = truth_of(self._values.of(test))
        if truth is not None:
            return self._body(body) if truth else self._either(rest)
        before = self._state.copy()
        size = self._guarded(test, body)
        after = self._state.copy()
        self._state.take(before)
        size |= self._either(rest)
        self._state.join(after)
        return size

    def _guarded(self, test: nodes.Node, body: list[nodes.Node]) -> Size:
        """Go through what only happens if a test is true; in a loop, that may be the first pass alone."""
        outer = self._values.first_pass
        at_a_loop = self._in_turns and isinstance(self._state.get("loop"), LoopOf)
        self._values.first_pass = outer or (at_a_loop and _says_first(test))
        try:
            return self._body(body)
        finally:
            self._values.first_pass = outer

    def _assign(self, node: nodes.Node) -> Size:
        assert isinstance(node, nodes.Assign)
        self._store(node.target, self._values.of(node.node))
        return NOTHING

    def _assign_block(self, node: nodes.Node) -> Size:
        assert isinstance(node, nodes.AssignBlock)
        if node.filter is not None:
            raise NotLinearError
        self._store(node.target, String(self._in_scope(node.body)))
        return NOTHING

    def _store(self, target: nodes.Node, value: Value) -> None:
        if isinstance(target, nodes.Name) and target.name not in self._macros:
            self._state.scopes[-1][target.name] = value
            return
        if isinstance(target, nodes.NSRef):
            space = self._state.get(target.name)
            if isinstance(space, Namespace):
                self._state.spaces[space.key][target.attr] = value
                return
        raise NotLinearError

    def _in_scope(self, body: Iterable[nodes.Node], **names: Value) -> Size:
        """Go through a body with names of its own."""
        self._state.scopes.append(dict(names))
        try:
            return self._body(body)
        finally:
            self._state.scopes.pop()

    def _macro(self, node: nodes.Node) -> Size:
        assert isinstance(node, nodes.Macro)
        if len(self._state.scopes) > 1 or node.name in self._macros:
            raise NotLinearError
        self._macros[node.name] = node
        self._state.scopes[0][node.name] = UNKNOWN
        return NOTHING

    def _call_macro(self, node: nodes.Call) -> Value | None:
        """Go through a macro that is called; None if it is none."""
        macro = self._macros.get(node.node.name) if isinstance(node.node, nodes.Name) else None
        if macro is None:
            return None
        names = [argument.name for argument in macro.args]
        strange = len(node.args) > len(names) or any(keyword.key not in names for keyword in node.kwargs)
        if strange or node.dyn_args or node.dyn_kwargs or self._depth >= _DEEPEST_MACRO:
            raise NotLinearError
        given: dict[str, Value] = dict.fromkeys(names, MISSING)
        defaults = zip(names[len(names) - len(macro.defaults) :], macro.defaults, strict=True)
        given |= {name: self._values.of(default) for name, default in defaults}
        given |= {name: self._values.of(value) for name, value in zip(names, node.args, strict=False)}
        given |= {keyword.key: self._values.of(keyword.value) for keyword in node.kwargs}
        inner, self._state.scopes = self._state.scopes, [self._state.scopes[0], given]
        self._depth += 1
        try:
            return String(self._body(macro.body))
        finally:
            self._depth -= 1
            self._state.scopes = inner

    def _for(self, node: nodes.Node) -> Size:
        assert isinstance(node, nodes.For)
        over = self._values.of(node.iter)
        if isinstance(over, Missing) or (isinstance(over, Known) and not over.value):
            return self._in_scope(node.else_)  # (over None it fails, and so does the request)
        if node.recursive or node.else_ or not isinstance(node.target, nodes.Name):
            raise NotLinearError
        return self._turns(node) if isinstance(over, Turns) and not self._in_turns else self._other_loop(node, over)

    def _turns(self, node: nodes.For) -> Size:
        """Go through a loop over the messages: once, for any of them."""
        before = self._state.copy()
        starts = {key: _general(key, self._state.spaces[key[0]].get(key[1], MISSING)) for key in self._changed(node)}
        while True:
            self._state.take(before.copy())
            for (space, name), start in starts.items():
                self._state.spaces[space][name] = start
            self._in_turns = True
            try:
                size = self._in_scope(node.body, **{_target(node): TurnOf(at=True), "loop": LoopOf()})
            finally:
                self._in_turns = False
            ends = {key: self._state.spaces[key[0]].get(key[1], MISSING) for key in starts}
            wrong = [key for key, start in starts.items() if start is not UNKNOWN and not _still(start, ends[key])]
            if not wrong:
                return self._after(size, before, ends)
            starts |= dict.fromkeys(wrong, UNKNOWN)

    def _after(self, size: Size, before: State, ends: Mapping[Attribute, Value]) -> Size:
        """Set the namespaces to what they are after a loop over the messages, and bound what it wrote."""
        steady = {}
        for (space, name), end in ends.items():
            entry = before.spaces[space].get(name, MISSING)
            value = _after_all(entry, end, (space, name))
            self._state.spaces[space][name] = value
            if isinstance(value, String) and value.size == Size(value.size.const):
                steady[space, name] = value.size
        written = Size(size.const, size.turn, size.each, size.total, size.once_each, size.once_total)
        for key, count in size.kept.items():
            if count:
                if key not in steady:
                    raise NotLinearError
                written += steady[key].times(count)
        return written.over_all_turns()

    def _other_loop(self, node: nodes.For, over: Value) -> Size:
        """Go through a loop of unknown length: it may write nothing, and change no namespace's text."""
        changed = self._changed(node)
        for space, name in changed:
            self._state.spaces[space][name] = UNKNOWN
        item = TurnOf(at=False) if isinstance(over, Turns) else UNKNOWN
        size = self._in_scope(node.body, **{_target(node): item, "loop": LoopOf()})
        for space, name in changed:
            self._state.spaces[space][name] = UNKNOWN
        if not size.none:
            raise NotLinearError
        return NOTHING

    def _changed(self, node: nodes.For) -> list[Attribute]:
        """Name what a loop, or a macro that it may call, sets in a namespace."""
        places = [node, *self._macros.values()]
        targets = [target for place in places for target in place.find_all(nodes.NSRef)]
        names = {target.attr for target in targets}
        return [(space, name) for space in self._state.spaces for name in sorted(names)]


def _target(node: nodes.For) -> str:
    assert isinstance(node.target, nodes.Name)
    return node.target.name


def _general(key: Attribute, entry: Value) -> Value:
    """Give what is taken of a namespace's variable at the beginning of any pass."""
    if is_string(entry):
        return String(Size(kept={key: 1}), sure=False)
    if is_number(entry):
        return Number()
    return Truth() if is_truth(entry) else UNKNOWN


def _still(start: Value, end: Value) -> bool:
    """Whether what was taken at the beginning of a pass holds at its end."""
    return is_string(end) if isinstance(start, String) else joined(start, end) == start


def _after_all(entry: Value, end: Value, key: Attribute) -> Value:
    """Give a namespace's variable after a loop: replaced in some pass, or added to in each."""
    if not is_string(entry) or not is_string(end):
        if isinstance(end, String):
            end = String(_alone(end.size).of_any_turn(), sure=end.sure)
        # What belongs to a loop is nothing after it.
        return UNKNOWN if isinstance(end, TurnOf | Pieces | LoopOf) else joined(entry, end)
    size = size_of(end)
    if any(count for other, count in size.kept.items() if other != key):
        return UNKNOWN
    own = size.kept.get(key, 0)
    if own > 1:
        return UNKNOWN
    alone = Size(size.const, size.turn, size.each, size.total, size.once_each, size.once_total)
    try:
        after = size_of(entry) + alone.over_all_turns() if own else size_of(entry) | alone.of_any_turn()
        return String(after, sure=is_sure(entry) and is_sure(end))
    except NotLinearError:
        return UNKNOWN


def _alone(size: Size) -> Size:
    if any(size.kept.values()):
        raise NotLinearError
    return size


def _says_first(test: nodes.Node) -> bool:
    """Whether a test can be true in the first pass of a loop only."""
    if isinstance(test, nodes.And):
        return _says_first(test.left) or _says_first(test.right)
    if isinstance(test, nodes.Compare):
        (operand,) = test.ops if len(test.ops) == 1 else (None,)
        if operand is None or operand.op != "eq" or not isinstance(operand.expr, nodes.Const):
            return False
        wanted = operand.expr.value
        return (_of_loop(test.expr, "index0") and wanted == 0) or (_of_loop(test.expr, "index") and wanted == 1)
    return _of_loop(test, "first")


def _of_loop(node: nodes.Node, name: str) -> bool:
    attribute = isinstance(node, nodes.Getattr) and node.attr == name
    return attribute and isinstance(node.node, nodes.Name) and node.node.name == "loop"  # type: ignore[attr-defined]
