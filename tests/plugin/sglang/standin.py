"""A stand-in for SGLang: a package of its name, of a chosen release, with exactly the recorded signatures."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvfence.knowledge.releases import Version
from kvfence.plugin.sglang.signatures import recorded, releases
from tests.plugin.sglang.texts import TREE

RECORDED = recorded()
RELEASES = releases(RECORDED)
NEWEST = RELEASES[-1]

_MARKER = re.compile(r"@([\w.]+)@")
_BOUND = re.compile(r"\b(since|before) (\d+\.\d+\.\d+)\b")


def parameters(form: str) -> str:
    """Give a recorded signature as Python has it: what may be left out is `None` then."""
    return re.sub(r"(?<=\w)=", "=None", form)


@dataclass(frozen=True)
class Build:
    """What to make: a release, and what is different in it from what was recorded."""

    release: str = NEWEST
    called: str = ""
    """What the installed distribution says of its release, where it is not the plain number."""
    forms: dict[str, str] = field(default_factory=dict)
    """Targets with other parameters."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Targets with another name."""
    absent: tuple[str, ...] = ()
    """Targets and names that are not there."""

    def write(self, directory: Path) -> None:
        """Write the package and its distribution's metadata."""
        for name, text in TREE.items():
            path = directory / "sglang/srt" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._text(name, text), encoding="utf-8")
        about = directory / "sglang-0.dist-info/METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {self.called or self.release}\n", "utf-8")

    def _text(self, name: str, text: str) -> str:
        kept = "\n".join(line for line in text.splitlines() if self._has(line))
        filled = re.sub(r"def (\w+)@([\w.]+)@", self._head, kept)
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        gone = [one.removeprefix(module + ".") for one in self.absent if one.startswith(module + ".")]
        return "\n".join([filled, *(f"del {one}" for one in gone), ""])

    def _head(self, found: re.Match[str]) -> str:
        name, target = found.groups()
        form = self.forms.get(target, RECORDED[target][self.release])
        return f"def {self.renamed.get(target, name)}{parameters(form)}"

    def _has(self, line: str) -> bool:
        mine = Version.parse(self.release)
        return all(
            (mine >= Version.parse(bound)) == (word == "since")
            for word, bound in _BOUND.findall(line.partition("  # ")[2])
        )


@dataclass(frozen=True)
class Sglang:
    """A stand-in that can be imported."""

    release: str

    def module(self, below: str) -> Any:
        """Import a module, named below `sglang.srt`."""
        return importlib.import_module("sglang.srt." + below)

    def since(self, release: str) -> bool:
        """Say whether this release is a given one or a later one."""
        return Version.parse(self.release) >= Version.parse(release)

    def load(self, register: Any) -> None:
        """Load a plugin as the engine does in each of its processes."""
        self.module("plugins").load(register)
