"""Read the line by which each worker of the engine begins its log: one file may hold those of several workers."""

from __future__ import annotations

import re
from datetime import datetime

from kvfence.facts import keys
from kvfence.facts.dialects.kvfence import ENGINE
from kvfence.facts.dialects.kvfence.mechanisms import put_mechanisms
from kvfence.facts.fact import Evidence, Fact, Key
from kvfence.facts.model import Kind, Sighting
from kvfence.facts.prefix import peel
from kvfence.facts.redact import clean, clean_id
from kvfence.facts.scan import Line
from kvfence.fence.mechanisms import SWITCHES

NEEDLE = b"kvfence worker "

_SHAPE = re.compile(
    r"kvfence worker (?P<name>(?:(?P<role>prefill|decode)-)?\w[\w.-]{0,79}): context (?P<context>\d{1,15}) tokens,"
    r" pool (?P<pool>\d{1,15}) tokens, page (?P<page>\d{1,15}) tokens, limit (?P<limit>\d{1,15}) tokens,"
    r" tp (?P<tp>\d{1,15}), transport (?P<transport>[\w.-]{1,40})(?:, (?P<mechanisms>.*))?$",
    re.DOTALL,
)
_WITHOUT = re.compile(r"without (?P<off>[\w-]{1,80}(?:, [\w-]{1,80}){0,63})\s*")
_SIZES: dict[str, Key[int]] = {
    "context": keys.CONTEXT_LEN,
    "pool": keys.POOL_TOKENS,
    "page": keys.PAGE_SIZE,
    "limit": keys.MAX_INPUT_LEN,
    "tp": keys.TP,
}
# What may stand before the words of a line: a time, a level, the name of a logger; no text with a prompt in it.
_BEFORE = 120


class WorkerStarts:
    """Takes the start lines of one log file, and gives what the last one of each worker says.

    Args:
        source: the file's name.
        group: where to look for other sources of the same workers.

    """

    def __init__(self, source: str, group: str) -> None:
        self._source, self._group = source, group
        self._last: dict[tuple[str, str], Sighting] = {}
        self._starts: dict[tuple[str, str], int] = {}

    def take(self, line: Line) -> bool:
        """Take a line; tell whether it is a start of the engine."""
        peeled = peel(line.text)
        match = _SHAPE.search(peeled.message)
        if match is None or _quoted(peeled.message[: match.start()]):
            return False
        evidence = Evidence(self._source, clean(match[0].rstrip()), line.number)
        mark = (clean_id(peeled.stream) or "", match["name"])
        before = self._last.get(mark)
        self._last[mark] = sighting = _read(match, evidence, self._group)
        sighting.began = _time(peeled.time)
        self._starts[mark] = self._starts.get(mark, 0) + 1
        if before is not None:
            sighting.resized = before.resized or any(
                before.value(key) != sighting.value(key) for key in (keys.POOL_TOKENS, keys.CONTEXT_LEN)
            )
        return True

    def finish(self) -> list[Sighting]:
        """Give what was seen of each worker."""
        names = [name for _, name in self._last]
        for mark, sighting in self._last.items():
            stream, name = mark
            sighting.name = name if names.count(name) == 1 else f"{stream} {name}".strip()
            if self._starts[mark] > 1:
                sighting.notes.append(
                    f"{self._source}: {self._starts[mark]} starts of {sighting.name}; the last one is judged"
                )
        return list(self._last.values())


def _read(match: re.Match[str], evidence: Evidence, group: str) -> Sighting:
    sighting = Sighting(evidence.source, Kind.LOG, match["name"], group)
    sighting.put(keys.ENGINE, Fact(ENGINE, (evidence,)))
    if match["role"] is not None:
        sighting.put(keys.ROLE, Fact(match["role"], (evidence,)))
    sighting.put(keys.BACKEND, Fact(match["transport"], (evidence,)))
    for field, key in _SIZES.items():
        if int(match[field]) > 0:
            sighting.put(key, Fact(int(match[field]), (evidence,)))
    stated = _mechanisms(match["mechanisms"] or "")
    if stated is None:
        sighting.notes.append(f"{evidence.place}: the line is cut off before its mechanisms")
    else:
        put_mechanisms(sighting, stated, lambda _: evidence, evidence.place)
    sighting.environment.source = evidence.source
    return sighting


def _mechanisms(words: str) -> dict[str, bool] | None:
    """Read the end of the line; `None` if it is not whole."""
    if words.strip() == "all mechanisms on":
        return dict.fromkeys(SWITCHES, True)
    match = _WITHOUT.fullmatch(words)
    return None if match is None else dict.fromkeys(SWITCHES, True) | dict.fromkeys(match["off"].split(", "), False)


def _quoted(before: str) -> bool:
    """Whether the words stand inside of something else, such as a prompt in a request log."""
    return len(before) > _BEFORE or any(mark in before for mark in "'\"{")


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None) if text else None
    except ValueError:
        return None
