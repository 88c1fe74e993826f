"""A command as shell text or a process gives it: its words, and the variables it gets."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

# Values and the lines that set them. What may or may not have happened leaves a variable open: its value is then
# a reference to itself, which holds a `$`.
Variables = dict[str, tuple[str, int]]


@dataclass
class Command:
    """A command of a script.

    Args:
        line: where it starts, counted from 1.
        words: its words, variables put in where the text sets them.
        variables: what the script sets in its environment, with the line of each.
        whole: whether the text shows all that sets its environment; not so after a file was loaded into it.
        around: the words of the commands that it was given to, such as a container's.

    """

    line: int
    words: list[str]
    variables: Variables = field(default_factory=dict)
    whole: bool = True
    around: list[str] = field(default_factory=list)


def split_command(text: str) -> list[str]:
    """Split one command into words; a broken quote does not stop it."""
    try:
        return shlex.split(text, comments=False)
    except ValueError:
        return text.split()


def is_open(text: str) -> bool:
    """Whether a word holds what only a running shell can put in."""
    return "$" in text or "`" in text
