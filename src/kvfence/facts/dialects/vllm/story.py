"""Read vLLM's log lines as what one or more servers say of themselves, start by start.

The processes of a server (the API server, its engine cores, their workers) write into one log and are one worker; a
collector's prefix tells several servers apart. The last start is judged. What happened to requests is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvfence.facts import keys
from kvfence.facts.dialects.vllm import arguments, lines
from kvfence.facts.dialects.vllm.lines import Form, Says
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import Kind, Sighting
from kvfence.facts.prefix import peel
from kvfence.facts.redact import clean, clean_id
from kvfence.facts.scan import Line
from kvfence.knowledge.releases import Version, VersionRange


@dataclass
class _Start:
    """One start of a server.

    Args:
        sighting: takes what its lines say.
        given: its arguments, as the line prints them.
        pools: the pool of each engine core, by the name of its process.

    """

    sighting: Sighting
    given: str = ""
    pools: dict[str, tuple[int, Evidence]] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it came to its end: another line of arguments is another start."""
        return any(self.sighting.get(key) is not None for key in (keys.STARTED, keys.START_REFUSED))


class VllmLog:
    """Takes the interesting lines of one log file, and gives what they say of each server.

    Args:
        source: the file's name.
        name: the server's name if the lines name none.
        group: where to look for other sources of the same server.

    """

    def __init__(self, source: str, name: str, group: str) -> None:
        self._source, self._name, self._group = source, name, group
        self._starts: dict[str, list[_Start]] = {}

    def take(self, line: Line, forms: Iterable[Form]) -> bool:
        """Take a line; tell whether it is one of vLLM's.

        Args:
            line: the line.
            forms: what its needles may stand for.

        """
        peeled = peel(line.text)
        process = lines.PROCESSES.search(peeled.stream)
        stream = peeled.stream[: process.start()] if process is not None else peeled.stream
        for form in forms:
            head = form.head.match(peeled.message)
            match = form.shape.match(peeled.message, head.end()) if head is not None else None
            if head is None or match is None or (form.says is Says.READY and stream not in self._starts):
                continue
            evidence = Evidence(self._source, clean(match[0].strip()), line.number)
            who = process[0].strip() if process is not None else (head.groupdict().get("process") or "")
            self._read(stream, form.says, match.groupdict(), evidence, who)
            return True
        return False

    def finish(self) -> list[Sighting]:
        """Give what was seen of each server."""
        told = []
        for stream, starts in self._starts.items():
            last = starts[-1]
            if last.pools:
                last.sighting.put_pools(last.pools.values())
            last.sighting.name = clean_id(stream) or self._name
            last.sighting.environment.source = self._source
            if len(starts) > 1:
                last.sighting.resized = True
                last.sighting.notes.append(
                    f"{self._source}: {len(starts)} starts of {last.sighting.name}; the last one is judged"
                )
            told.append(last.sighting)
        return told

    def _read(self, stream: str, says: Says, found: Mapping[str, str | None], evidence: Evidence, process: str) -> None:
        starts = self._starts.setdefault(stream, [self._new()])
        if says in _BEGINS and (starts[-1].ended or (says is Says.ARGUMENTS and self._other(starts[-1], found))):
            starts.append(self._new())
        start = starts[-1]
        arguments.mark_engine(start.sighting, evidence)
        if says is Says.POOL:
            start.pools[process] = (int((found["pool"] or "").replace(",", "")), evidence)
        elif says is Says.ARGUMENTS:
            start.given = found["given"] or ""
            self._arguments(start, evidence)
        else:
            _HANDLERS[says](start.sighting, found, evidence)

    @staticmethod
    def _other(start: _Start, found: Mapping[str, str | None]) -> bool:
        """Whether arguments are those of another start: several API servers of one print the same."""
        return start.given not in ("", found["given"])

    def _new(self) -> _Start:
        return _Start(Sighting(self._source, Kind.LOG, self._name, self._group))

    def _arguments(self, start: _Start, evidence: Evidence) -> None:
        read = arguments.read_line(start.given)

        def cite(name: str, value: object) -> Evidence:
            told = value if name == arguments.TRANSFER else repr(value)
            return Evidence(self._source, clean(f"non-default args: {name}={told}"), evidence.line)

        arguments.put_fields(start.sighting, read.fields, cite, whole=read.whole)
        if not read.whole:
            start.sighting.notes.append(
                f"{evidence.place}: the line of arguments is cut off; what it lacks says nothing"
            )


def _version(sighting: Sighting, found: Mapping[str, str | None], evidence: Evidence) -> None:
    try:
        version = Version.parse(found["version"] or "")
    except ValueError:
        return
    sighting.put(keys.VERSION, Fact(VersionRange.exactly(version), (evidence,)))


def _engine(sighting: Sighting, found: Mapping[str, str | None], evidence: Evidence) -> None:
    """Read the configuration that an engine core prints: sizes as resolved, and the types of numbers."""
    _version(sighting, found, evidence)
    config = {match["name"]: match["value"] for match in lines.CONFIG.finditer(found["config"] or "")}

    def cite(name: str, value: object) -> Evidence:
        return Evidence(evidence.source, clean(f"{name}={value}"), evidence.line)

    for name, value in config.items():
        if name in arguments.FIELDS:
            key, convert = arguments.FIELDS[name]
            fact = convert({"True": True, "False": False}.get(value, value))
            if fact is not None:
                sighting.put(key, Fact(fact, (cite(name, value),)))
    # What is `auto` is the model's own type, unless its checkpoint is quantised (0.32.0, config/cache.py).
    if config.get("kv_cache_dtype") == "auto" and config.get("quantization") == "None" and "dtype" in config:
        told = config["dtype"].removeprefix("torch.")
        sighting.put(keys.POOL_DTYPE, Fact(told, (cite("dtype", f"torch.{told}, kv_cache_dtype=auto"),)))
    if "device_config" in config:
        sighting.put(keys.DEVICE, Fact(config["device_config"], (cite("device_config", config["device_config"]),)))


def _architecture(sighting: Sighting, found: Mapping[str, str | None], evidence: Evidence) -> None:
    if sighting.get(keys.ARCHITECTURE) is None:  # the first is the model, a second its draft
        sighting.put(keys.ARCHITECTURE, Fact(found["type"] or "", (evidence,)))


def _context(sighting: Sighting, found: Mapping[str, str | None], evidence: Evidence) -> None:
    sighting.put(keys.CONTEXT_LEN, Fact(int(found["context"] or 0), (evidence,)))


def _listening(sighting: Sighting, found: Mapping[str, str | None], evidence: Evidence) -> None:
    sighting.put(keys.HOST, Fact(clean(found["host"] or ""), (evidence,)))
    sighting.put(keys.PORT, Fact(int(found["port"] or 0), (evidence,)))


def _ready(sighting: Sighting, _found: Mapping[str, str | None], evidence: Evidence) -> None:
    sighting.put(keys.STARTED, Fact(True, (evidence,)))


def _refused(sighting: Sighting, found: Mapping[str, str | None], evidence: Evidence) -> None:
    sighting.put(keys.CONTEXT_LEN, Fact(int(found["context"] or 0), (evidence,)))
    wanted, fitting = (int(found[name] or 0) for name in ("context", "fits"))
    why = f"a context of {wanted:,} tokens does not fit its KV cache, which holds one of {fitting:,}"
    sighting.put(keys.START_REFUSED, Fact(why, (evidence,)))


def _usage(sighting: Sighting, found: Mapping[str, str | None], evidence: Evidence) -> None:
    usage, known = float(found["usage"] or 0) / 100, sighting.get(keys.PEAK_USAGE)
    if known is None or usage > known.value:
        sighting.facts[keys.PEAK_USAGE.name] = Fact(usage, (evidence,))


_BEGINS = frozenset({Says.ARGUMENTS, Says.VERSION})

_HANDLERS: dict[Says, Callable[[Sighting, Mapping[str, str | None], Evidence], None]] = {
    Says.VERSION: _version,
    Says.ENGINE: _engine,
    Says.ARCHITECTURE: _architecture,
    Says.CONTEXT: _context,
    Says.FITTED: _context,
    Says.LISTENING: _listening,
    Says.READY: _ready,
    Says.REFUSED_START: _refused,
    Says.USAGE: _usage,
}
