"""Read a line of SGLang's request log (`--log-requests`): ids and lengths, never text.

Text form: `Finish: obj=GenerateReqInput(rid='…', …), out={'meta_info': {…}}`; JSON form: an object
with `"event": "request.finished"`.
"""

from __future__ import annotations

import re
from datetime import datetime

from kvfence.facts.fact import Evidence
from kvfence.facts.happenings import Finish
from kvfence.facts.redact import clean_id

# A string that is a value (and may be a prompt that imitates the rest) is passed over whole; what is left is the
# engine's own.
_PART = re.compile(
    r"""'(?:[^'\\]|\\.)*'(?!\s*:)|"(?:[^"\\]|\\.)*"(?!\s*:)"""
    r"""|\b(?P<name>rid|bootstrap_room|prompt_tokens|completion_tokens|type)['"]?\s*[=:]\s*\[?"""
    r"""(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<number>\d{1,20}))"""
)
LONGEST_COUNT = 15


def read_finish(rest: str, time: datetime | None, source: str, line: int | None) -> Finish | None:
    """Read what follows `Finish: obj=`, or a whole JSON entry; `None` if it names no request."""
    told: dict[str, list[str]] = {}
    for part in _PART.finditer(rest):
        if part["name"] is not None:
            value = next(text for text in (part["single"], part["double"], part["number"], "") if text is not None)
            told.setdefault(part["name"], []).append(value)
    if "rid" not in told:
        return None
    room = _only(told.get("bootstrap_room", []))
    prompt, completion = _count(told.get("prompt_tokens")), _count(told.get("completion_tokens"))
    own = clean_id(told["rid"][0]) or ""
    words = [f"rid={own}"]
    words += [f"bootstrap_room={room}"] if room is not None else []
    words += [f"prompt_tokens={prompt}"] if prompt is not None else []
    words += [f"completion_tokens={completion}"] if completion is not None else []
    return Finish(
        rid=own,
        room=room,
        prompt_tokens=prompt,
        completion_tokens=completion,
        aborted="abort" in told.get("type", []),
        time=time,
        evidence=Evidence(source, "Finish: " + ", ".join(words), line),
    )


def _only(values: list[str]) -> str | None:
    """Give the one value there is; several different ones are worth nothing."""
    return values[0] if len(set(values)) == 1 and values[0].isdecimal() else None


def _count(values: list[str] | None) -> int | None:
    last = values[-1] if values else ""
    return int(last) if last.isdecimal() and len(last) <= LONGEST_COUNT else None
