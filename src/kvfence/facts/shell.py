"""Split shell text into the commands it runs, with the variables it sets for them.

Enough of the shell to read launch scripts. Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from kvfence.facts.command import Command, Variables, is_open
from kvfence.facts.launchers import PASSING, SHELLS, STARTERS, behind_env, hand_on, script_in, tool_of
from kvfence.facts.tokens import Heredoc, Lexer, Token

LONGEST_VALUE = 64 << 10
# Characters put in for variables, and variables handed on, in one script; beyond it nothing is known of any.
MOST_WORK = 2 << 20
DEEPEST = 4

_SET = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^{}]{0,400}))?\}|\{(\w+)\[([@*]|\d{1,6})\]\}|(\w+))")
_WHOLE_ARRAY = re.compile(r"\$\{(\w+)\[@\]\}")
_PIECE = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\$\{[^{}\n]{0,400}\}|\$\w+|\\.|[^'\"\\$]+|.", re.DOTALL)
_ESCAPE = re.compile(r"\\([\"\\$`])|\\\n")

_OPENERS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_CLOSERS = frozenset(_OPENERS.values())


@dataclass(frozen=True)
class Variable:
    """What is known of a variable; `items` if it is an array."""

    value: str
    line: int
    exported: bool = False
    items: tuple[str, ...] | None = None


@dataclass
class Block:
    """A part of a script that may not run, or runs apart.

    Args:
        kind: the word that ends it.
        before: what its present branch changed, as it was before.
        touched: what any of its branches changed, and whether that is exported.
        pattern: whether a pattern of a `case` is being read.
        outside: the variables outside of a function, which runs when it is called and not where it stands.

    """

    kind: str
    before: dict[str, Variable | None] = field(default_factory=dict)
    touched: dict[str, bool] = field(default_factory=dict)
    pattern: bool = False
    outside: Outside | None = None


@dataclass
class Outside:
    """What was known outside of a function, while its body is read."""

    name: str
    variables: dict[str, Variable]
    whole: bool
    loads: int


def read_script(text: str) -> Iterator[Command]:
    """Go through the commands of shell text, in order."""
    return _Shell(0).read(text.replace("\r\n", "\n"), 1, moving=True)


class _Shell:
    """Follow the commands of a script, and what is known of its variables."""

    def __init__(self, depth: int, given: Variables | None = None, *, whole: bool = True) -> None:
        self._depth, self._whole, self._work = depth, whole, MOST_WORK
        self._variables = {n: Variable(v, line, exported=True) for n, (v, line) in (given or {}).items()}
        self._blocks: list[Block] = []
        self._exports_all, self._parentheses, self._loads = False, False, 0
        self._function: str | None = None
        self._functions: dict[str, tuple[dict[str, bool], bool]] = {}

    def read(self, text: str, first: int, *, moving: bool) -> Iterator[Command]:
        """Read text that starts at a line; `moving` if its further lines count."""
        statement: list[Token] = []
        heredocs: list[Heredoc] = []
        for token in chain(Lexer(text).tokens(), [Token("operator", "\n", 1)]):
            line = first + token.line - 1 if moving else first
            if token.heredoc is not None:
                heredocs.append(replace(token.heredoc, line=line))
            elif token.kind != "operator":
                statement.append(replace(token, line=line))
            elif not self._in_pattern(token.text, statement):
                yield from self._end(token.text, self._keywords(statement), heredocs)
                statement, heredocs = [], []

    def _end(self, operator: str, statement: list[Token], heredocs: list[Heredoc]) -> Iterator[Command]:
        """Run a statement that an operator ends, and open and close what that begins or ends."""
        if operator == "(" and [token.kind for token in statement] == ["word"]:
            self._function, self._parentheses = statement[0].text, True
            return
        if operator == ")" and self._parentheses:
            self._parentheses = False
            return
        yield from self._run(statement, heredocs)
        top = self._blocks[-1] if self._blocks else None
        if operator in ("&&", "||"):
            self._chain(operator, sure=bool(statement) and _always_succeeds(statement[0]))
        elif operator not in ("|", "|&"):
            if top is not None and top.kind == "&&":
                self._close("&&")
            if operator == "(":
                self._open(")")
            elif operator == ")":
                self._close(")")
            elif operator in (";;", ";;&", ";&") and self._blocks and self._blocks[-1].kind == "esac":
                self._next_branch(self._blocks[-1])
                self._blocks[-1].pattern = True

    def _chain(self, operator: str, *, sure: bool) -> None:
        """Treat what follows `&&` or `||` as a block: it may not run."""
        top = self._blocks[-1] if self._blocks else None
        if top is not None and top.kind == "&&":
            if operator == "&&" and not top.pattern:
                return
            self._close("&&")
        elif sure and operator == "&&":
            return
        self._open("&&", pattern=operator == "||")

    def _in_pattern(self, operator: str, statement: list[Token]) -> bool:
        """Pass over a pattern of a `case`."""
        block = self._blocks[-1] if self._blocks else None
        if block is None or not block.pattern or block.kind != "esac":
            return False
        if statement and statement[0].text == "esac":
            return False
        block.pattern = operator != ")"
        statement.clear()
        return True

    def _keywords(self, statement: list[Token]) -> list[Token]:
        """Take the words in front that open and close blocks; give the command behind them."""
        position = 0
        while position < len(statement):
            token = statement[position]
            word = token.text if token.kind == "word" else ""
            if word in ("for", "select"):
                self._open("done")
                for named in statement[position + 1 : position + 2]:
                    self._leave_open(named.text)
                return []
            if word == "case":
                self._open("esac", pattern=True)
                # A pattern may stand on the same line; its `)` then ended this statement.
                self._blocks[-1].pattern = len(statement) <= position + 3
                return []
            if word == "function" and position + 1 < len(statement):
                position += 1
                self._function = statement[position].text
            elif word in _OPENERS:
                self._open(_OPENERS[word])
            elif word in ("else", "elif") and self._blocks and self._blocks[-1].kind == "fi":
                self._next_branch(self._blocks[-1])
            elif word in _CLOSERS:
                self._close(word)
            elif word not in ("then", "do", "else", "elif", *STARTERS):
                break
            position += 1
        return statement[position:]

    def _open(self, kind: str, *, pattern: bool = False) -> None:
        block = Block(kind, pattern=pattern)
        if self._function is not None and kind in ("}", ")"):
            block.outside = Outside(self._function, self._variables, self._whole, self._loads)
            self._variables, self._whole, self._function = {}, False, None
        self._blocks.append(block)

    def _close(self, kind: str) -> None:
        """Close a block: what it may have changed is open from here on."""
        if kind != "&&" and self._blocks and self._blocks[-1].kind == "&&":
            self._close("&&")
        if not self._blocks or self._blocks[-1].kind != kind:
            return
        block = self._blocks.pop()
        if block.outside is not None:
            block.touched = {name: one.exported for name, one in self._variables.items()}
            loads = self._loads > block.outside.loads
            self._functions[block.outside.name] = (block.touched, loads)
            self._variables, self._whole = block.outside.variables, block.outside.whole
            if loads:
                self._load()
        elif kind == "}":
            self._spend(len(block.before))
            for name, old in block.before.items():
                if self._blocks:
                    self._blocks[-1].before.setdefault(name, old)
            return
        else:
            self._next_branch(block)
            if kind == ")":
                return
        for name, exported in block.touched.items():
            self._leave_open(name, exported=exported)

    def _next_branch(self, block: Block) -> None:
        for name, old in block.before.items():
            now = self._variables.get(name)
            exported = any(one is not None and one.exported for one in (now, old))
            block.touched[name] = exported or block.touched.get(name, False)
            if old is None:
                self._variables.pop(name, None)
            else:
                self._variables[name] = old
        block.before.clear()

    def _set(self, name: str, variable: Variable | None) -> None:
        if not self._spend(1):
            return
        if self._blocks:
            self._blocks[-1].before.setdefault(name, self._variables.get(name))
        if variable is None:
            self._variables.pop(name, None)
        else:
            self._variables[name] = variable

    def _leave_open(self, name: str, *, exported: bool = False) -> None:
        known = self._variables.get(name)
        line = known.line if known is not None else 1
        exported = exported or (known is not None and known.exported)
        self._set(name, Variable(f"${name}", line, exported=exported))

    def _spend(self, work: int) -> bool:
        """Count work; a script that needs too much of it is one whose variables are not known."""
        self._work -= work
        if self._work < 0:
            self._variables, self._whole = {}, False
        return self._work >= 0

    def _load(self) -> None:
        """Something outside of the text sets variables from here on, and may set those again that are known."""
        self._whole = False
        self._loads += 1
        for name in list(self._variables):
            self._leave_open(name)

    def _run(self, statement: list[Token], heredocs: list[Heredoc]) -> Iterator[Command]:
        """Run a statement: set what it sets, and give the command that it is."""
        if not statement:
            return
        self._function = None
        line, own = statement[0].line, {}
        position = 0
        while position < len(statement) and (one := self._assigned(statement[position])) is not None:
            own[one[0]] = one[1]
            position += 1
        if position == len(statement):
            for name, variable in own.items():
                known = self._variables.get(name)
                exported = self._exports_all or (known is not None and known.exported)
                self._set(name, replace(variable, exported=exported))
            return
        words = [word for token in statement[position:] for word in self._words(token)]
        if not words or self._builtin(words, statement[position:]):
            return
        variables = {name: (one.value, one.line) for name, one in own.items()}
        yield from self._launch(Command(line, words, {**self._environment(), **variables}), variables, heredocs)

    def _environment(self) -> Variables:
        if not self._spend(len(self._variables)):
            return {}
        return {name: (one.value, one.line) for name, one in self._variables.items() if one.exported}

    def _assigned(self, token: Token) -> tuple[str, Variable] | None:
        """Read an assignment as the shell would; `None` if it is none."""
        match = _SET.fullmatch(token.text)
        if match is None:
            return None
        name, index, more, raw = match.groups()
        known = self._variables.get(name)
        if index or (more and (known is None or (is_open(known.value) and known.items is None))):
            # Of what is added to, or of the other elements, nothing is known.
            return name, Variable(f"${name}", token.line)
        old = (known.items or (known.value,)) if known is not None and more else ()
        if token.kind == "array":
            items = (*old, *(word for raw in token.items for word in self._expand(raw)))
            if not self._spend(len(items)) or sum(map(len, items)) > LONGEST_VALUE:
                return name, Variable(f"${name}", token.line)
            return name, Variable(items[0] if items else "", token.line, items=items)
        value = (old[0] if old else "") + " ".join(self._expand(raw, split=False))
        self._spend(len(value) if more else 0)
        if len(value) > LONGEST_VALUE:
            value = f"${name}"
        return name, Variable(value, token.line, items=(value, *old[1:]) if known and more and known.items else None)

    def _builtin(self, words: list[str], statement: list[Token]) -> bool:  # noqa: C901, PLR0912 (one branch a builtin)
        """Do what a command changes in the shell itself; whether it was one that only does so."""
        first = words[0]
        options = "".join(word for word in words[1:] if word.startswith("-"))
        if first in ("export", "declare", "readonly", "local", "typeset"):
            exports = (first == "export" or "x" in options) and not (first == "export" and "n" in options)
            for token in statement[1:]:
                one = self._assigned(token)
                known = self._variables.get(token.text)
                if one is not None:
                    self._set(one[0], replace(one[1], exported=exports or self._exports_all))
                elif known is not None and first == "export":
                    self._set(token.text, replace(known, exported=exports))
        elif first == "unset":
            for name in words[1:]:
                self._set(name, None)
        elif first == "set":
            if "-a" in words or "allexport" in words:
                self._exports_all = "+a" not in words and "+o" not in words
            elif "+a" in words:
                self._exports_all = False
        elif first in ("read", "mapfile", "readarray", "printf", "getopts", "let"):
            for name in words[1:]:
                if name in self._variables:
                    self._leave_open(name)
            return first != "printf"
        elif first in ("source", ".") and words[1:2] and words[1].endswith("/bin/activate"):
            pass  # a virtual environment sets paths, and no switch
        elif first in ("source", ".", "eval", "module", "ml", "conda", "mamba", "spack"):
            self._load()
        else:
            if first in self._functions:
                touched, loads = self._functions[first]
                for name, exported in touched.items():
                    self._leave_open(name, exported=exported)
                if loads:
                    self._load()
            return False
        return True

    def _words(self, token: Token) -> list[str]:
        return [] if token.kind == "array" else self._expand(token.text)

    def _expand(self, raw: str, *, split: bool = True) -> list[str]:  # noqa: C901 (one branch a kind of quote)
        """Take the quotes off a word and put variables in; outside of quotes one may become several words."""
        if raw.isalnum():
            return [raw]
        words: list[str] = []
        current: str | None = None
        for match in _PIECE.finditer(raw):
            piece = match[0]
            if (array := _WHOLE_ARRAY.fullmatch(piece.strip('"'))) and (items := self._items(array[1])) is not None:
                parts = list(items)
            elif piece[0] == "'" and len(piece) > 1:
                parts = [piece[1:-1]]
            elif piece[0] == '"' and len(piece) > 1:
                parts = [_ESCAPE.sub(r"\1", self._put_in(piece[1:-1], quoted=True))]
            elif piece[0] == "\\":
                parts = [piece[1:]]
            elif "$" in piece and split:
                text = self._put_in(piece, quoted=False)
                parts = text.split()
                if current is not None and text[:1].isspace():
                    words.append(current)
                    current = None
            else:
                parts = [self._put_in(piece, quoted=False)]
            for number, part in enumerate(parts):
                if number and current is not None:
                    words.append(current)
                    current = None
                current = (current or "") + part
        return words if current is None else [*words, current]

    def _items(self, name: str) -> tuple[str, ...] | None:
        known = self._variables.get(name)
        if known is None or known.items is None or not self._spend(sum(map(len, known.items)) + len(known.items)):
            return None
        return known.items

    def _put_in(self, text: str, *, quoted: bool) -> str:
        return _REFERENCE.sub(lambda match: self._value(match, quoted=quoted), text) if "$" in text else text

    def _value(self, match: re.Match[str], *, quoted: bool) -> str:
        """Give what a reference stands for; itself if that is not known."""
        known = self._variables.get(match[1] or match[3] or match[5])
        if known is None:
            # What the text does not set, a file that was loaded may have set: the default says nothing then.
            value = match[2].replace('"', "") if match[2] is not None and self._whole else match[0]
        elif match[4] in ("@", "*"):
            value = " ".join(known.items or (known.value,))
        elif match[4]:
            items = known.items or (known.value,)
            value = items[int(match[4])] if int(match[4]) < len(items) else ""
        else:
            value = known.value
        if not self._spend(len(value)) or len(value) > LONGEST_VALUE:
            return match[0]
        return value.replace("\\", "\\\\").replace('"', '\\"') if quoted else value

    def _launch(self, command: Command, own: Variables, heredocs: list[Heredoc]) -> Iterator[Command]:
        """Give a command with the environment that it gets, or those of the script that it is given."""
        command.whole = self._whole and self._work >= 0
        if self._work < 0:
            command.variables = dict(own)
        words = command.words
        position = next((i for i, word in enumerate(words[:8]) if tool_of(word) in PASSING), None)
        while position is not None:
            hand_on(command, tool_of(words[position]), position, own)
            ahead = (i for i, word in enumerate(words[:64]) if i > position and tool_of(word) in PASSING)
            position = next(ahead, None)
        script = script_in(command.words)
        if script is None and heredocs and (tool_of(words[0]) in SHELLS or tool_of(words[0]) == "ssh"):
            body = heredocs[-1]
            yield from self._inside(command, body.text, body.line, moving=True)
        elif script is None or self._depth >= DEEPEST:
            command.whole = command.whole and script is None
            yield replace(command, words=behind_env(words))
        else:
            yield from list(self._inside(command, script, command.line, moving=False)) or [command]

    def _inside(self, command: Command, text: str, line: int, *, moving: bool) -> Iterator[Command]:
        """Read the script that a command is given."""
        inner = _Shell(self._depth + 1, command.variables, whole=command.whole)
        inner._work = self._work
        for nested in inner.read(text, line, moving=moving):
            nested.around = [*command.words, *nested.around]
            yield nested
        self._work = inner._work


def _always_succeeds(token: Token) -> bool:
    return token.text == "export" or _SET.fullmatch(token.text) is not None
