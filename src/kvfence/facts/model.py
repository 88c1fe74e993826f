"""The deployment model: workers, what is known of each, and what was seen to happen on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from kvfence.facts import keys
from kvfence.facts.fact import Evidence, Fact, Key
from kvfence.facts.happenings import Happenings

T = TypeVar("T")

SHOWN = 8  # of many ranks that say the same, so many are quoted

PREFILL, DECODE, UNIFIED, ROUTER = "prefill", "decode", "unified", "router"


class Seen(StrEnum):
    """How much of a process's environment was seen.

    Switches set there are in no log and no endpoint. Absence counts only where the place that would
    set them was read.
    """

    NOTHING = "nothing"
    LAUNCH = "the launch command"
    WHOLE = "the whole environment"


@dataclass
class Environment:
    """Environment variables of a worker, as far as they were seen.

    Args:
        seen: how much of it was seen.
        variables: switches and their values.
        unresolved: switches that are set to another variable, whose value was not seen.
        source: where it was seen.

    """

    seen: Seen = Seen.NOTHING
    variables: dict[str, Fact[str]] = field(default_factory=dict)
    unresolved: set[str] = field(default_factory=set)
    source: str = ""


@dataclass(frozen=True)
class Disagreement:
    """Two sources that state different values for one fact of one worker."""

    key: Key[Any]
    first: Fact[Any]
    second: Fact[Any]


class Kind(StrEnum):
    """The kind of a source. The order is the order of trust: a live answer before an old log."""

    SERVER_INFO = "server_info"
    METRICS = "metrics"
    LOG = "log"
    PROCESS = "process"
    LAUNCH = "launch command"
    STATED = "stated"


@dataclass
class Sighting:
    """What one source says of one worker.

    Args:
        source: the file or URL.
        kind: what kind of source it is.
        name: the worker's name, as far as the source tells one.
        group: sightings of one group and name speak of one worker (a directory, a URL).
        facts: by key name.
        stated_role: the role the user gave for the input, if any.
        began: for a log that holds a start, when the last one began.
        resized: whether an earlier start in it may have had another pool or context.

    """

    source: str
    kind: Kind
    name: str
    group: str = ""
    facts: dict[str, Fact[Any]] = field(default_factory=dict)
    environment: Environment = field(default_factory=Environment)
    happenings: Happenings = field(default_factory=Happenings)
    notes: list[str] = field(default_factory=list)
    secrets_shown: list[Fact[str]] = field(default_factory=list)
    may_show_secrets: bool = False
    stated_role: str | None = None
    began: datetime | None = None
    resized: bool = False

    def put(self, key: Key[T], fact: Fact[T]) -> None:
        """Take a fact; an equal value joins its evidence, a later different one replaces it."""
        old = self.facts.get(key.name)
        self.facts[key.name] = old.also(fact) if old is not None and old.value == fact.value else fact

    def get(self, key: Key[T]) -> Fact[T] | None:
        """Give the fact of a key, if the source told it."""
        return self.facts.get(key.name)

    def put_pools(self, pools: Iterable[tuple[int, Evidence]]) -> None:
        """Take the pool sizes of the data-parallel ranks, in tokens: each has a pool of its own."""
        ordered = sorted(pools, key=lambda item: item[0])
        self.facts[keys.POOL_TOKENS.name] = Fact(ordered[0][0], tuple(line for _, line in ordered[:SHOWN]))
        self.facts.pop(keys.LARGEST_POOL_TOKENS.name, None)
        if ordered[-1][0] != ordered[0][0]:
            self.facts[keys.LARGEST_POOL_TOKENS.name] = Fact(ordered[-1][0], (ordered[-1][1],))

    def value(self, key: Key[T]) -> T | None:
        """Give the value of a key, if the source told it."""
        fact = self.facts.get(key.name)
        return None if fact is None else fact.value


@dataclass
class Worker:
    """A worker, or a class of workers of which the same is known.

    Args:
        name: of the first member.
        members: the names of all members, sorted.
        facts: by key name.
        environment: what was seen of its environment variables.
        happenings: what its logs say happened.
        disagreements: values on which its sources differ.
        sources: the files and URLs that speak of it.
        began: when the start that is judged began, as far as its logs show it.
        resized: whether before that it may have had another pool or context, and so another limit.

    """

    name: str
    members: tuple[str, ...]
    facts: Mapping[str, Fact[Any]]
    environment: Environment
    happenings: Happenings
    disagreements: tuple[Disagreement, ...] = ()
    sources: tuple[str, ...] = ()
    secrets_shown: tuple[Fact[str], ...] = ()
    may_show_secrets: bool = False
    began: datetime | None = None
    resized: bool = False

    def get(self, key: Key[T]) -> Fact[T] | None:
        """Give the fact of a key, if any source told it."""
        return self.facts.get(key.name)

    def value(self, key: Key[T]) -> T | None:
        """Give the value of a key, if any source told it."""
        fact = self.facts.get(key.name)
        return None if fact is None else fact.value

    @property
    def pool_tokens(self) -> int | None:
        """The size of the KV pool as the worker states it, in tokens, if known."""
        pool = self.value(keys.POOL_TOKENS)
        return pool if pool is not None else self.value(keys.FULL_POOL_TOKENS)

    @property
    def role(self) -> str | None:
        """The role, if known."""
        return self.value(keys.ROLE)


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode worker that a router may combine."""

    prefill: Worker
    decode: Worker


@dataclass
class Deployment:
    """Everything that was seen.

    Args:
        workers: the worker classes.
        notes: on the reading: what was passed over, cut off or ambiguous.
        previous: the settings of an earlier audit, by the names of all members.
        guards_required: whether every worker must run the guards of kvfence's SGLang plugin.

    """

    workers: tuple[Worker, ...]
    notes: tuple[str, ...] = ()
    previous: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    guards_required: bool = False

    def of_role(self, role: str) -> Iterator[Worker]:
        """Go through the workers of a role."""
        return (worker for worker in self.workers if worker.role == role)

    def pairs(self) -> Iterator[Pair]:
        """Go through every prefill and decode worker that may serve the same model."""
        prefill, decode = list(self.of_role(PREFILL)), list(self.of_role(DECODE))
        sure = [Pair(p, d) for p in prefill for d in decode if not serve_different_models(p, d)]
        yield from sure
        # Paths are spelled differently on every host: those left over may well serve one model.
        left = without_partner(decode, sure)
        for one in without_partner(prefill, sure):
            for other in left:
                if not _told_apart(one, other):
                    yield Pair(one, other)


def without_partner(workers: Iterable[Worker], pairs: Iterable[Pair]) -> list[Worker]:
    """List the workers that are in none of the pairs."""
    paired = {id(worker) for pair in pairs for worker in (pair.prefill, pair.decode)}
    return [worker for worker in workers if id(worker) not in paired]


def serve_different_models(one: Worker, other: Worker) -> bool:
    """Whether two workers seem to serve different models: by class, name, or the last part of the path."""
    if _told_apart(one, other):
        return True
    names = [worker.value(keys.SERVED_NAME) or worker.value(keys.MODEL_PATH) for worker in (one, other)]
    if None not in names and names[0] == names[1]:
        return False
    models = [_last_part(worker.value(keys.MODEL_PATH)) for worker in (one, other)]
    return None not in models and models[0] != models[1]


def _told_apart(one: Worker, other: Worker) -> bool:
    """Whether two workers state different model classes, or different names that were given to them."""
    for told in ([w.value(keys.ARCHITECTURE) for w in (one, other)], [_given_name(w) for w in (one, other)]):
        if None not in told and told[0] != told[1]:
            return True
    return False


def _given_name(worker: Worker) -> str | None:
    """Give the name clients ask for, unless it is just the path."""
    name = worker.value(keys.SERVED_NAME)
    return name if name != worker.value(keys.MODEL_PATH) else None


def _last_part(path: str | None) -> str | None:
    """Give the model of a path or repository, also of one in a download cache."""
    if path is None:
        return None
    cached = re.search(r"models--[\w.-]+?--([\w.-]+)/snapshots/", path)
    return cached[1] if cached is not None else path.rstrip("/").rpartition("/")[2]
