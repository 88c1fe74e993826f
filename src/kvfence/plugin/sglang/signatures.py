"""Signatures: each guarded function is what was recorded of it in this release, or the server does not start.

They are read out of the wheels of every release (`python -m acceptance.record_signatures`). A function of the same name
and parameters may still do something else in a release that was never read, so an unknown release is refused as well,
unless the operator says otherwise.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any, Final

from kvfence.errors import InputError
from kvfence.plugin.sglang.engine import resolve
from kvfence.plugin.sglang.settings import UnknownRelease

_DATA: Final = files("kvfence.plugin.sglang").joinpath("data/signatures.json")

_STARS: Final = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}

Recorded = dict[str, dict[str, str]]
"""Of each target, the signature in each release."""


def recorded() -> Recorded:
    """Read the recorded signatures."""
    table = json.loads(_DATA.read_text(encoding="utf-8"))
    return {
        target: {release: form["signature"] for form in forms for release in form["releases"].split()}
        for target, forms in table["targets"].items()
    }


def releases(table: Recorded) -> list[str]:
    """Give the recorded releases, oldest first."""
    return list(dict.fromkeys(release for forms in table.values() for release in forms))


def form_of(function: Callable[..., Any]) -> str:
    """Give the parameters of a function as the table has them: names, `=` where one may be left out, and the stars."""
    words, star = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            star = True
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        words.append(
            _STARS.get(parameter.kind.name, "")
            + parameter.name
            + ("=" if parameter.default is not inspect.Parameter.empty else "")
        )
    return f"({', '.join(words)})"


def demand_known(release: str, targets: Iterable[str], unknown: UnknownRelease) -> None:
    """Hold the functions of the installed engine to what was recorded of its release.

    Raises:
        InputError: the release is not recorded, or a function is absent or has other parameters.

    """
    table = recorded()
    base = release.partition("+")[0]
    known = releases(table)
    if base not in known and unknown is UnknownRelease.STOP:
        raise InputError(
            f"sglang {release}",
            f"the guards know {known[0]} to {known[-1]}. KVFENCE_SGLANG_UNKNOWN_RELEASE=try holds it to the signatures "
            f"of {known[-1]} instead",
        )
    for target in targets:
        expected = table[target].get(base if base in known else known[-1])
        found = _found(target)
        if found is None or expected is None or found != expected:
            raise InputError(
                f"sglang {release}", f"{target} is {found or 'absent'}, the guards know it as {expected or 'absent'}"
            )


def _found(target: str) -> str | None:
    try:
        function = resolve(target)
    except (ImportError, AttributeError):
        return None
    return form_of(getattr(function, "__func__", function))
