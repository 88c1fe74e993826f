"""Cut shell text into words, operators, arrays and heredocs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\r?\n(?:[ \t]*#[^\n]*\\\r?\n)*)+")
_PLAIN = re.compile(r"(?:[^\s\\'\"$`;&|()<>]|\$\{[^{}\n]{0,400}\})+")
_DOUBLE = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BACKTICK = re.compile(r"`(?:[^`\\]|\\.)*`", re.DOTALL)
_REDIRECTION = re.compile(r"&>>?|\d*(?:>>|>\||>&|<&|<>|<<<|>|<)")
_HEREDOC = re.compile(r"\d*<<(-?)[ \t]*('[^'\n]*'|\"[^\"\n]*\"|[^\s;&|<>()]+)")
_OPERATOR = re.compile(r";;&?|;&|&&|\|\||\|&|[;&|()\n]")
_NESTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|[^'\"\\()]+|.", re.DOTALL)
_ARRAY_START = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True)
class Heredoc:
    """The body of a heredoc: it is text, and no commands of the script it stands in."""

    text: str
    line: int
    quoted: bool


@dataclass(frozen=True)
class Token:
    """A raw word, an operator, an array (`NAME=` and its raw words), or the body of a heredoc."""

    kind: str
    text: str
    line: int
    items: tuple[str, ...] = ()
    heredoc: Heredoc | None = None


class Lexer:
    """Cut shell text into tokens, in one pass; a quote that nothing closes is a letter like others."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._line = text, 0, 1
        self._unclosed: set[str] = set()
        self._waiting: list[tuple[str, str]] = []
        self._array: tuple[str, int, list[str]] | None = None

    def tokens(self) -> Iterator[Token]:
        """Go through the tokens."""
        while self._at < len(self._text):
            before = self._at
            if blank := _BLANK.match(self._text, self._at):
                self._move(blank.end())
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._move(end if end >= 0 else len(self._text))
            elif (here := _HEREDOC.match(self._text, self._at)) and not self._text.startswith("<<<", self._at):
                self._waiting.append((here[1], here[2]))
                self._move(here.end())
            elif (cut := _REDIRECTION.match(self._text, self._at)) and not self._text.startswith("(", cut.end()):
                self._move(cut.end())
                if blank := _BLANK.match(self._text, self._at):
                    self._move(blank.end())
                self._word()
            elif operator := _OPERATOR.match(self._text, self._at):
                yield from self._operator(operator)
            else:
                yield from self._whole_word()
            if self._at == before:  # a letter that begins nothing must not stop the reading
                self._move(before + 1)
        if self._array is not None:
            name, line, items = self._array
            yield Token("array", name, line, tuple(items))

    def _move(self, to: int) -> str:
        passed = self._text[self._at : to]
        self._line += passed.count("\n")
        self._at = to
        return passed

    def _operator(self, operator: re.Match[str]) -> Iterator[Token]:
        line = self._line
        text = self._move(operator.end())
        if self._array is not None:
            if text == ")":
                name, line, items = self._array
                self._array = None
                yield Token("array", name, line, tuple(items))
            return
        if text == "\n" and self._waiting:
            yield from self._bodies()
        yield Token("operator", text, line)

    def _whole_word(self) -> Iterator[Token]:
        line = self._line
        word = self._word()
        if self._array is not None:
            self._array[2].append(word)
        elif self._text.startswith("(", self._at) and _ARRAY_START.fullmatch(word):
            self._move(self._at + 1)
            self._array = (word, line, [])
        else:
            yield Token("word", word, line)

    def _word(self) -> str:
        start = self._at
        while self._at < len(self._text):
            end = self._part()
            if end is None:
                break
            self._move(end)
        return self._text[start : self._at]

    def _part(self) -> int | None:
        """Find the end of the next part of a word; `None` where the word ends."""
        text, at = self._text, self._at
        if plain := _PLAIN.match(text, at):
            return plain.end()
        letter = text[at]
        if letter == "\\":
            return None if text.startswith(("\\\n", "\\\r\n"), at) else min(at + 2, len(text))
        if letter in "'\"`":
            return self._closed(letter) or at + 1
        if text.startswith(("$(", "<(", ">("), at):
            return self._closed("(") or at + 1
        return at + 1 if letter == "$" else None

    def _closed(self, letter: str) -> int | None:
        """Find where what opens here is closed; looked for in vain once, it is not looked for again."""
        if letter in self._unclosed:
            return None
        if letter == "'":
            end = self._text.find("'", self._at + 1) + 1
        elif letter == "(":
            end = self._balanced(self._at + 1)
        else:
            found = (_DOUBLE if letter == '"' else _BACKTICK).match(self._text, self._at)
            end = found.end() if found else 0
        if not end:
            self._unclosed.add(letter)
        return end or None

    def _balanced(self, at: int) -> int:
        depth = 0
        for piece in _NESTED.finditer(self._text, at):
            depth += {"(": 1, ")": -1}.get(piece[0], 0)
            if depth == 0:
                return piece.end()
        return 0

    def _bodies(self) -> Iterator[Token]:
        """Take the heredocs that the line before asked for."""
        for dash, word in self._waiting:
            first, lines = self._line, []
            delimiter = word.replace("'", "").replace('"', "").replace("\\", "")
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                text = self._move(end + 1 if end >= 0 else len(self._text)).rstrip("\n")
                text = text.lstrip("\t") if dash else text
                if text == delimiter:
                    break
                lines.append(text)
            body = Heredoc("\n".join(lines), first, quoted=delimiter != word)
            yield Token("heredoc", "", first, heredoc=body)
        self._waiting = []
