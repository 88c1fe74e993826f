"""One start of a server, as its log tells it: what it was given, and what it came to hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from kvfence.facts import keys
from kvfence.facts.dialects.sglang import ENGINE, release
from kvfence.facts.dialects.sglang.arguments import Dump
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import SHOWN, Kind, Sighting
from kvfence.facts.prefix import Ranks
from kvfence.knowledge.releases import VersionRange

GIB = 1 << 30


@dataclass
class Pool:
    """One allocated sub-pool of one rank."""

    tokens: int
    gibibytes: float
    evidence: Evidence


@dataclass
class Start:
    """What was read of one start.

    Args:
        sighting: takes what the lines say directly.
        summaries: the final pool size a data-parallel rank printed, with the line.
        sliding: full and sliding-window sizes a rank printed.
        pools: the sub-pools each rank allocated, in order.
        wordings: rows of `log_wording.tsv` that its lines prove.
        first: the time of its first line, `last` of its last.
        serving: whether it was seen to serve requests, `stopped` whether it was seen to end.

    """

    sighting: Sighting
    dump: Dump | None = None
    dump_line: Evidence | None = None
    command: Evidence | None = None
    summaries: dict[Ranks, tuple[int, Evidence]] = field(default_factory=dict)
    sliding: dict[Ranks, tuple[int | None, int, Evidence]] = field(default_factory=dict)
    pools: dict[Ranks, list[Pool]] = field(default_factory=dict)
    wordings: dict[str, Evidence] = field(default_factory=dict)
    first: datetime | None = None
    last: datetime | None = None
    serving: bool = False
    stopped: bool = False

    @property
    def begun(self) -> bool:
        """Whether this start has anything that a start prints once."""
        return self.dump is not None or bool(self.summaries or self.pools)

    def finish(self) -> Sighting:
        """Draw the facts together."""
        self._versions()
        self._pool()
        self._bytes()
        self.sighting.environment.source = self.sighting.source
        return self.sighting

    def version(self) -> Fact[VersionRange] | None:
        """Give the release, or the range it lies in."""
        return self.sighting.get(keys.VERSION)

    def _versions(self) -> None:
        bounds: list[tuple[VersionRange, Evidence]] = []
        told = self.sighting.get(keys.VERSION)
        if told is not None and told.value.exact:
            return
        if self.dump is not None:
            found = release.from_dump(self.dump.fields, complete=self.dump.complete, mapping=self.dump.mapping)
            if found is None:
                source = self.sighting.source
                self.sighting.notes.append(
                    f"{source}: its server arguments are those of no known release (a newer one, or a fork)"
                )
                if not release.all_known(self.dump.fields):
                    return  # how a newer one words its lines is not known either
            elif self.dump_line is not None:
                text = f"server_args= has the fields of {found}"
                bounds.append((found, _reworded(self.dump_line, text)))
        bounds += [(release.from_wording(name), line) for name, line in self.wordings.items()]
        if not bounds:
            return
        joined, used = bounds[0][0], [bounds[0][1]]
        for bound, line in bounds[1:]:
            both = joined & bound
            if both is None:
                self.sighting.notes.append(
                    f"{line.place}: this wording belongs to other releases than the lines before; "
                    "is this the log of one worker?"
                )
                continue
            if both != joined:
                joined = both
                used.append(line)
        self.sighting.put(keys.VERSION, Fact(joined, tuple(used)))

    def _pool(self) -> None:
        if self.summaries:
            self.sighting.put_pools(self.summaries.values())
        if self.sliding:
            full = [(n, line) for n, _, line in self.sliding.values() if n is not None]
            if full:
                self.sighting.put(keys.FULL_POOL_TOKENS, _smallest(full))
            self.sighting.put(keys.SWA_POOL_TOKENS, _smallest((n, line) for _, n, line in self.sliding.values()))
        if not self.summaries and not self.sliding and self.pools and keys.POOL_TOKENS.name not in self.sighting.facts:
            lines = [(pool.tokens, pool.evidence) for pools in self.pools.values() for pool in pools]
            if len({tokens for tokens, _ in lines}) == 1:
                self.sighting.put(keys.POOL_TOKENS, _smallest(lines))

    def _bytes(self) -> None:
        for pools in self.pools.values():
            tokens = pools[0].tokens
            same = [pool for pool in pools if pool.tokens == tokens]
            size = sum(pool.gibibytes for pool in same)
            # Printed with two decimals: below a tenth of a GiB the rounding says more than the number.
            if tokens and size >= 0.1:
                lines = tuple(pool.evidence for pool in same)
                self.sighting.put(keys.RANK_POOL_TOKENS, Fact(tokens, lines))
                self.sighting.put(keys.RANK_POOL_BYTES, Fact(round(size * GIB), lines))
            return


def new_start(source: str, name: str, group: str) -> Start:
    """Begin a start of which nothing is known yet."""
    return Start(Sighting(source, Kind.LOG, name, group))


def mark_engine(start: Start, evidence: Evidence) -> None:
    """Note that the log is SGLang's."""
    if start.sighting.get(keys.ENGINE) is None:
        start.sighting.put(keys.ENGINE, Fact(ENGINE, (evidence,)))


def _smallest(lines: Iterable[tuple[int, Evidence]]) -> Fact[int]:
    ordered = sorted(lines, key=lambda item: item[0])
    return Fact(ordered[0][0], tuple(line for _, line in ordered[:SHOWN]))


def _reworded(evidence: Evidence, text: str) -> Evidence:
    return Evidence(evidence.source, text, evidence.line, evidence.pointer)
