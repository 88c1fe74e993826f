"""The rules, by id. A family is a module; importing it registers its rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from kvfence.audit.rule import RULES, Rule
from kvfence.audit.rules import capacity, integrity, release, roles, runtime, trust, version

FAMILIES = {
    "1": (capacity, "capacity"),
    "2": (version, "version"),
    "3": (release, "release and transfer"),
    "4": (integrity, "integrity"),
    "5": (roles, "roles"),
    "7": (trust, "trust"),
    "8": (runtime, "seen at run time"),
}


def all_rules() -> tuple[Rule, ...]:
    """List every rule in the order of ids."""
    return tuple(RULES[rule] for rule in sorted(RULES))


@dataclass(frozen=True)
class Page:
    """The page of a rule: what it looks for, an example, and the remedy."""

    rule: Rule
    text: str

    @property
    def summary(self) -> str:
        """The sentence under the title."""
        return self.text.split("\n\n")[1].replace("\n", " ")

    def examples(self) -> list[tuple[str, str, str]]:
        """List its examples: the status they lead to, the file's name and its content."""
        return re.findall(r"^```text (fail|pass|unknown) (\S+)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)


def page_of(rule: Rule) -> Page:
    """Read the page of a rule, which is shipped with it."""
    path = files("kvfence.audit").joinpath("pages").joinpath(f"{rule.id}.md")
    return Page(rule, path.read_text(encoding="utf-8"))
