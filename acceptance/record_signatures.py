"""Record what the guards of the SGLang plugin rely on, out of the wheel of every release that has a plugin interface.

Usage: python -m acceptance.record_signatures [--wheels DIRECTORY] [--check]

Wheels are read, never imported. Those that the directory lacks are downloaded with pip, some 10 MB each.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from kvfence.knowledge.releases import Version, sglang_releases
from kvfence.plugin.sglang.arm import TARGETS
from kvfence.plugin.sglang.engine import NAMES

DATA = Path(__file__).parents[1] / "src/kvfence/plugin/sglang/data/signatures.json"
OLDEST = Version.parse("0.5.11")


class Wheel:
    """The Python source of one release, below `sglang/srt`."""

    def __init__(self, path: Path) -> None:
        self._files = zipfile.ZipFile(path)
        self._names = set(self._files.namelist())

    def module(self, dotted: str) -> ast.Module | None:
        """Parse a module, named below `sglang.srt`; `None` if there is none."""
        base = PurePosixPath("sglang/srt", *dotted.split("."))
        for name in (f"{base}.py", f"{base}/__init__.py"):
            if name in self._names:
                return ast.parse(self._files.read(name))
        return None

    def find(self, dotted: str) -> ast.AST | None:
        """Find the class, function or assignment that a dotted path names, in a base class if need be."""
        parts = dotted.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            module = self.module(".".join(parts[:cut]))
            if module is not None:
                return self._within(module, ".".join(parts[:cut]), parts[cut:])
        return None

    def _within(self, module: ast.Module, where: str, names: list[str]) -> ast.AST | None:
        found = _member(module, names[0])
        if found is None:
            source = _imported(module, names[0])
            return self.find(f"{source}.{'.'.join(names)}") if source else None
        if len(names) == 1:
            return found
        if not isinstance(found, ast.ClassDef):
            return None
        member = _member(found, names[1])
        if member is not None:
            return member
        bases = [base.id for base in found.bases if isinstance(base, ast.Name)]
        inherited = (self._within(module, where, [base, names[1]]) for base in bases)
        return next((found for found in inherited if found is not None), None)


def _member(body: ast.Module | ast.ClassDef, name: str) -> ast.AST | None:
    for node in body.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node
    return None


def _imported(module: ast.Module, name: str) -> str | None:
    for node in ast.walk(module):
        if not (isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sglang.srt.")):
            continue
        if any((alias.asname or alias.name) == name for alias in node.names):
            return node.module.removeprefix("sglang.srt.")
    return None


def signature(function: ast.FunctionDef) -> str:
    """Give a function's parameters as `kvfence.plugin.sglang.signatures.form_of` gives those of a live one."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    words = [argument.arg + ("" if place < required else "=") for place, argument in enumerate(positional)]
    if given.vararg:
        words.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        words.append("*")
    words += [
        argument.arg + ("" if default is None else "=")
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg:
        words.append(f"**{given.kwarg.arg}")
    return f"({', '.join(words)})"


def forms(wheels: dict[str, Wheel], target: str) -> Iterator[tuple[str, str]]:
    """Give the signature of a target in each release that has it."""
    for release, wheel in wheels.items():
        found = wheel.find(target)
        if isinstance(found, ast.FunctionDef):
            yield release, signature(found)


def record(wheels: dict[str, Wheel]) -> dict[str, object]:
    """Make the table: of each target its signatures, and of each name the releases that have it."""
    targets = {}
    for target in TARGETS:
        by_form: dict[str, list[str]] = {}
        for release, form in forms(wheels, target):
            by_form.setdefault(form, []).append(release)
        targets[target] = [{"signature": form, "releases": " ".join(found)} for form, found in by_form.items()]
    names = {
        name: " ".join(release for release, wheel in wheels.items() if wheel.find(name) is not None) for name in NAMES
    }
    return {"source": "python -m acceptance.record_signatures", "targets": targets, "names": names}


def wheel_of(release: str, directory: Path) -> Path:
    """Give the wheel of a release, downloaded if the directory lacks it."""
    pattern = f"sglang-{release}-*.whl"
    if not list(directory.rglob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"sglang=={release}"]
        subprocess.run([*command, "--dest", str(directory)], check=True)
    return next(iter(directory.rglob(pattern)))


def main(
    wheels: Annotated[Path | None, typer.Option(help="Where wheels lie, and are downloaded to.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare with the table instead of writing it.")] = False,
) -> None:
    """Record the signatures of every release from 0.5.11 on."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = wheels or Path(scratch)
        releases = [str(release) for release in sglang_releases() if release >= OLDEST]
        table = record({release: Wheel(wheel_of(release, directory)) for release in releases})
    text = json.dumps(table, indent=2) + "\n"
    if not check:
        DATA.write_text(text, encoding="utf-8")
    elif DATA.read_text(encoding="utf-8") != text:
        typer.echo(f"{DATA.name} is not what the wheels say", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
