"""What an environment switch of a worker is set to, as far as can be known.

Logs and endpoints show no environment. A release's default is taken only where the place that would
set the switch was read; otherwise the setting is unknown, whatever the default.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvfence.audit.rule import lack, lack_switch
from kvfence.facts import keys
from kvfence.facts.fact import Evidence, Fact, Standing
from kvfence.facts.model import Seen, Worker
from kvfence.findings import Missing
from kvfence.knowledge import switches
from kvfence.knowledge.switches import Setting


@dataclass(frozen=True)
class Known:
    """A setting: `value` is `None` if the release has no such switch."""

    value: Setting | None
    evidence: tuple[Evidence, ...]
    standing: Standing


@dataclass(frozen=True)
class Unseen:
    """A setting that cannot be told.

    Args:
        missing: what would tell it.
        default: what it is unless something sets it, if the release is known.

    """

    missing: tuple[Missing, ...]
    default: Setting | None


def setting(worker: Worker, name: str) -> Known | Unseen:  # noqa: PLR0911 (one answer a way to know)
    """Find out what a switch is set to."""
    given = worker.environment.variables.get(name)
    if given is not None:
        value = switches.parse(name, given.value)
        if value is not None:
            return Known(value, given.evidence, given.standing)
        # The engine warns and takes the default when it cannot read a value.
    if name in worker.environment.unresolved:
        return Unseen((lack_switch(worker, name),), None)
    release = worker.value(keys.VERSION)
    if release is None:
        return Unseen(tuple(lack(worker, keys.VERSION)), None)
    defaults = {switches.default_of(name, version) for version in release.known()}
    if len(defaults) != 1 or release.decide(lambda _: True) is None:
        return Unseen(tuple(lack(worker, keys.VERSION)), None)
    default = defaults.pop()
    if default is None:
        return Known(None, _release(worker), Standing.RELEASE_DEFAULT)
    if given is None and worker.environment.seen is Seen.NOTHING:
        return Unseen((lack_switch(worker, name),), default)
    text = f"{name} is set to nothing the engine can read" if given is not None else f"{name} is not set"
    line = Evidence(worker.environment.source, f"{text}; the default of {release} is {_word(default)}")
    return Known(default, (line, *_release(worker)), Standing.RELEASE_DEFAULT)


def _release(worker: Worker) -> tuple[Evidence, ...]:
    fact: Fact[object] | None = worker.facts.get(keys.VERSION.name)
    return fact.evidence[:1] if fact is not None else ()


def _word(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
