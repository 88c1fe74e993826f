"""Read what kvfence's SGLang plugin says of its guards: in the log, and in `/server_info`."""

from __future__ import annotations

import re
from typing import Any, Final

from kvfence.facts import keys
from kvfence.facts.dialects.documents import Cite, Document
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import Sighting
from kvfence.facts.redact import clean

NEEDLE: Final = " guards "
SHAPE: Final = re.compile(
    r"kvfence \S{1,40} guards (?P<role>prefill|decode) of sglang \S{1,40}: (?P<guards>[a-z, ]{1,200});"
    r" batch (?P<batch>\d{1,15}) bytes, silent peer (?P<silent>deny|allow),"
    r" prefill limit (?:learned|\d{1,15} tokens), accepted untried: (?P<accepted>[a-z, -]{1,400})"
)
SCHEMA: Final = "kvfence.sglang-plugin/1"


def put_from_line(sighting: Sighting, match: re.Match[str], evidence: Evidence) -> None:
    """Take the line by which the plugin says, in each scheduler, that its guards are armed."""
    sighting.put(keys.ROLE, Fact(match["role"], (evidence,)))
    accepted = "" if match["accepted"] == "none" else match["accepted"]
    _put(sighting, _names(match["guards"].split(",")), match["silent"], int(match["batch"]), accepted, evidence)


def put_from_states(sighting: Sighting, document: Document, cite: Cite) -> None:
    """Take what each data-parallel rank says in `/server_info`: a guard counts that stands in all of them."""
    states = document.get("internal_states")
    if not isinstance(states, list) or not states or not all(isinstance(state, dict) for state in states):
        return
    told = [state.get("kvfence") for state in states]
    absent = next((rank for rank, part in enumerate(told) if not _is_ours(part)), None)
    if absent is not None:
        pointer = f"/internal_states/{absent}/kvfence"
        sighting.put(keys.GUARDS, Fact("", (cite(pointer, None),)))
        return
    parts: list[dict[str, Any]] = [part for part in told if isinstance(part, dict)]
    everywhere = set.intersection(*(set(part["guards"]) for part in parts))
    weakest = max(parts, key=lambda part: (part["silent_peer"] != "deny", part["batch_bytes"]))
    evidence = cite("/internal_states/0/kvfence/guards", parts[0]["guards"])
    accepted = sorted({name for part in parts for name in part["accepted_untried"]})
    _put(sighting, _names(everywhere), weakest["silent_peer"], weakest["batch_bytes"], _names(accepted), evidence)


def turns_away(sighting: Sighting) -> bool:
    """Whether what is refused is turned away at the door, and decode told of it."""
    return "door" in (sighting.value(keys.GUARDS) or "").split(", ")


def _is_ours(part: object) -> bool:
    return (
        isinstance(part, dict)
        and part.get("schema") == SCHEMA
        and isinstance(part.get("batch_bytes"), int)
        and part.get("silent_peer") in ("deny", "allow")
        and all(
            isinstance(part.get(name), list) and all(isinstance(word, str) for word in part[name])
            for name in ("guards", "accepted_untried")
        )
    )


def _put(sighting: Sighting, guards: str, silent: str, batch: int, accepted: str, evidence: Evidence) -> None:
    sighting.put(keys.GUARDS, Fact(guards, (evidence,)))
    sighting.put(keys.GUARDS_SILENT_PEER, Fact(silent, (evidence,)))
    sighting.put(keys.GUARDS_BATCH_BYTES, Fact(batch, (evidence,)))
    sighting.put(keys.GUARDS_UNTRIED, Fact(accepted, (evidence,)))


def _names(words: Any) -> str:
    return ", ".join(sorted(clean(word.strip()) for word in words))
