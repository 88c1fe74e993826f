"""Peel what collectors put in front of a log line: pod and container names, timestamps, JSON.

What names a worker becomes the line's stream, so that several workers in one file are kept apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"

# Each collector's form. `name` names the worker; `part` marks a piece of a line that was split.
_FORMS = (
    re.compile(r"\[pod/(?P<name>[\w.-]+/[\w.-]+)\] "),  # kubectl logs --prefix
    re.compile(r"(?P<name>[A-Za-z][\w.-]*?)\s+\| "),  # Compose
    re.compile(r"(?P<name>[A-Za-z][\w.-]*)> "),  # a mark of one's own, such as tee and sed are made to put
    re.compile(rf"(?P<time>{_ISO}) (?:stdout|stderr) (?P<part>[PF]) "),  # CRI
    re.compile(  # journald, short and short-iso; the process number changes with each start
        r"(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?)"
        r" (?P<name>[\w.-]+ [\w.@/-]+)(?:\[\d+\])?: "
    ),
    re.compile(rf"(?P<time>{_ISO}) (?=\[|\S)"),  # kubectl logs --timestamps
    re.compile(r"\((?P<name>[A-Za-z_]\w*) pid=\d+(?:, ip=(?P<host>[\w.:]+))?\) "),  # Ray
    re.compile(r"(?P<name>[\w./-]+\.(?:log|txt|out)):(?:\d+:)?"),  # grep over several files
    re.compile(  # stern, also with --timestamps
        rf"(?P<name>[A-Za-z][\w.-]*-[\w.-]*) (?P<host>[A-Za-z][\w.-]*) (?:(?P<time>{_ISO}) |(?=\[\d{{4}}-))"
    ),
    re.compile(r"(?P<name>\d{1,4}): (?=\[|\S)"),  # srun --label
)

_MESSAGE_FIELDS = ("log", "message", "msg", "MESSAGE", "textPayload", "body", "line", "text", "event")
_NAME_FIELDS = (
    ("kubernetes", "pod_name"),
    ("kubernetes", "pod", "name"),
    ("resource", "labels", "pod_name"),
    ("k8s.pod.name",),
    ("pod_name",),
    ("pod",),
    ("container_name",),
    ("CONTAINER_NAME",),
    ("_SYSTEMD_UNIT",),
    ("_HOSTNAME",),
    ("hostname",),
    ("host",),
    ("service",),
    ("attrs", "tag"),
)

_OWN_STAMP = re.compile(r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)(?P<ranks>(?: [A-Z_]{2,7}\d+)*)\] ?")
_ANY_STAMP = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[T ](?:\d\d:){2}\d\d(?:[.,]\d+)?")
_RANK = re.compile(r"(?<![\w.-])(DP|PP|ATTN_CP|MOE_DP|TP|EP)(\d+)(?![\w.-])")

# What a customised logging format puts before a message, and names no worker.
_NOT_A_NAME = re.compile(
    r"(?i)\b(?:trace|debug|info|notice|warn|warning|error|critical|fatal)\b"
    r"|\b(?:pid|tid|thread|process)[=: ]?\d+"
    rf"|{_ISO}"
    r"|(?<![\w./-])(?:sglang|uvicorn|root|__main__)(?:\.\w+)*(?![\w/-])"
    r"|\b\w+\.py(?::\d+)?"
    r"|\b(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+\b"
    r"|\d{4}[-/]\d\d[-/]\d\d|\d\d:\d\d:\d\d(?:[.,]\d+)?Z?"
    r"|(?<![\w.-])\d+(?![\w.-])"
)


# Rank tokens such as `("DP", 0)`.
Ranks = tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Peeled:
    """A log line taken apart.

    Args:
        stream: what names the worker, or empty.
        time: the time stamp as text, in the log's own clock, or empty.
        ranks: the ranks that logged it.
        message: what the engine wrote.
        stamped: whether the line has the engine's own stamp, so that `message` is what the engine wrote and no more.
        partial: whether the collector says that the line goes on in the next entry.

    """

    stream: str
    time: str
    ranks: Ranks
    message: str
    partial: bool = False
    stamped: bool = False


def peel(text: str) -> Peeled:
    """Take a line apart."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        text = _last_written(text)
    names: list[str] = []
    collected = ""
    text, partial = _unwrap_json(text, names) if text.startswith("{") else (text, False)
    while (form := _match_form(text)) is not None:
        groups = form.groupdict()
        names += [groups[g] for g in ("name", "host") if groups.get(g)]
        partial = partial or groups.get("part") == "P"
        collected = groups.get("time") or collected
        text = text[form.end() :]
        if text.startswith("{"):
            text, partial = _unwrap_json(text, names)
    own = _OWN_STAMP.search(text)
    if own is not None:
        names += _custom_name(text[: own.start()])
        ranks = tuple((kind, int(number)) for kind, number in _RANK.findall(own["ranks"]))
        return Peeled(" ".join(names), own["time"], ranks, text[own.end() :], partial, stamped=True)
    stamp = _ANY_STAMP.search(text, 0, 200)
    ranks = tuple((kind, int(number)) for kind, number in _RANK.findall(text[:120]))
    time = (stamp[0] if stamp else collected).replace("/", "-").replace("T", " ").replace(",", ".")
    return Peeled(" ".join(names), time, ranks, text, partial)


def _match_form(text: str) -> re.Match[str] | None:
    if text.startswith("[20"):  # the engine's own stamp: nothing is left to peel
        return None
    for form in _FORMS:
        match = form.match(text)
        if match is not None:
            return match
    return None


def _last_written(text: str) -> str:
    """Give what a progress bar left standing: the longest piece between carriage returns."""
    return max(text.split("\r"), key=len)


def _unwrap_json(text: str, names: list[str]) -> tuple[str, bool]:
    """Take the message out of a JSON log entry; an entry that is no JSON stays as it is."""
    try:
        entry = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text, False
    if not isinstance(entry, dict):
        return text, False
    for field in _MESSAGE_FIELDS:
        message = entry.get(field)
        if isinstance(message, str) and not (field == "event" and "rid" in entry):
            break
    else:
        return text, False
    for path in _NAME_FIELDS:
        value: object = entry
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            names.append(value)
            break
    # Docker splits an entry at 16 KiB and ends only the last piece with a line end.
    partial = field == "log" and not message.endswith("\n") and len(message) >= 8 << 10
    message = message.rstrip("\r\n")
    if "\x1b" in message:
        message = _ANSI.sub("", message)
    return message, partial


def _custom_name(prefix: str) -> list[str]:
    """Find the name in a prefix of someone's own making, if it holds one."""
    if len(prefix) >= 120 or "%" in prefix:  # a progress bar that was not ended
        return []
    words = re.findall(r"[\w./-]*[A-Za-z][\w./-]*", _NOT_A_NAME.sub(" ", prefix))
    return ["-".join(words)] if words else []
