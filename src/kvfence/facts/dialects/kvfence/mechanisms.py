"""What the engine states of its mechanisms, in a document or in a line of its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvfence.facts import keys
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import Sighting
from kvfence.facts.redact import clean_id

SHOWN = 8  # of many names that are not known, so many are quoted


def put_mechanisms(
    sighting: Sighting, stated: Mapping[str, object], cite: Callable[[str], Evidence], place: str
) -> None:
    """Take which mechanisms are on; what is neither on nor off stays unknown.

    Args:
        sighting: takes the facts.
        stated: the mechanisms by name.
        cite: makes the evidence for a name.
        place: where they stand, for notes.

    """
    strange = sorted(name for name in stated if name not in keys.MECHANISMS)
    for name, value in stated.items():
        if name not in keys.MECHANISMS:
            continue
        if isinstance(value, bool):
            sighting.put(keys.MECHANISMS[name], Fact(value, (cite(name),)))
        else:
            sighting.notes.append(f"{place}: its mechanism {name} is neither on nor off")
    if strange:
        names = ", ".join(clean_id(name) or "''" for name in strange[:SHOWN])
        more = f" and {len(strange) - SHOWN} more" if len(strange) > SHOWN else ""
        sighting.put(keys.STRANGE_MECHANISMS, Fact(names + more, (cite(strange[0]),)))
        sighting.notes.append(f"{place}: it states mechanisms that are not known here: {names}{more}")
