"""How old the tables are: an engine's next release is not in them."""

from __future__ import annotations

from datetime import date

from kvfence.knowledge.releases import newest

READ_ON = date(2026, 11, 30)
STALE_DAYS = 60


def age_note(today: date) -> str | None:
    """Say that the tables are old, if they are; newer releases than they know are judged `unknown`."""
    days = (today - READ_ON).days
    if days < STALE_DAYS:
        return None
    return (
        f"the release tables are {days} days old (up to SGLang {newest()}, read on {READ_ON}); "
        "newer releases are unknown to them: update kvfence"
    )
