"""The errors a caller may expect: each names the place in the input that is to blame."""

from __future__ import annotations


class KvfenceError(Exception):
    """Base of every error that kvfence raises on purpose."""


class InputError(KvfenceError):
    """An input cannot be used.

    The command line turns it into one line on standard error and exit code 2.

    Args:
        source: the file, URL or option that is to blame.
        problem: what is wrong with it, without its content (it may hold secrets).
        line: the line number, counted from 1, where there is one.
        field: the field, key or JSON pointer, where there is one.

    """

    def __init__(self, source: str, problem: str, *, line: int | None = None, field: str | None = None) -> None:
        self.source = source
        self.problem = problem
        self.line = line
        self.field = field
        super().__init__(str(self))

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        where = "" if self.field is None else f" {self.field}:"
        return f"{place}:{where} {self.problem}"
