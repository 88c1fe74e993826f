"""Keep secrets out of everything that is printed.

Facts never hold a secret's value. What remains are words quoted as evidence, file names and URLs;
they all pass through `clean`.
"""

from __future__ import annotations

import re

REDACTED = "<redacted>"
ID_CHARS = 200
# Evidence is quoted in fewer characters than this; what follows them is not even looked at.
LONGEST = 1000

_WORDS = r"(?:api[_-]?key|secret|passw(?:or)?d|passwd|token|credential|authorization|auth[_-]?key)[\w-]*"
# Looked for from the start of a word on: from within one, a long word would be gone over again and again.
_NAME = rf"(?<![\w.-])[\w.-]*?{_WORDS}"
# Names that hold `token` and count them.
_COUNTS = re.compile(
    r"(?i)tokens?[_ -]|tokens\b|tokenizer|(?:new|cached|pending|replay|max|full|swa|num|#)[_-]?token\b|#token\b"
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

_VALUE = r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s,;)}\]&]+)"
_ASSIGNED = (
    re.compile(
        rf"(?i)(?P<head>(?P<quote>['\"]?)(?P<name>{_NAME})(?P=quote)\s*[=:]\s*(?:['\"]?(?:bearer|basic)\s+)?){_VALUE}"
    ),
    re.compile(rf"(?i)(?P<head>(?P<name>(?<![\w.-])--[\w.-]*?{_WORDS})\s+){_VALUE}"),
)
_SHAPES = re.compile(
    r"(?i:\bbearer\s+)[\w.~+/=-]{6,}"
    r"|\b(?:sk|pk|rk)-[\w-]{12,}"
    r"|\bhf_[A-Za-z0-9]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bAKIA[A-Z0-9]{16}\b"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
)
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")


def clean(text: str) -> str:
    """Blank out what looks like a secret, and control characters that could disturb a terminal.

    Text beyond `LONGEST` characters is cut off.
    """
    text = text[:LONGEST]
    text = _USERINFO.sub(f"{REDACTED}@", text)
    for form in _ASSIGNED:
        text = form.sub(_blank, text)
    text = _SHAPES.sub(REDACTED, text)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def clean_id(text: str | None) -> str | None:
    """Make an id that a client may have chosen fit to print: clean, and not endless."""
    return None if text is None else clean(text)[:ID_CHARS]


def is_scrubbed(value: str) -> bool:
    """Whether a secret's value was already blanked out by someone, or is a reference to a variable."""
    return re.fullmatch(r"(?i)[*x•#.-]+|[<\[({].*[>\])}]|\$.*|redacted|hidden|masked", value) is not None


def _blank(match: re.Match[str]) -> str:
    value = match["value"].strip("'\"")
    if value in ("", "None", "null", "False", "True", "false", "true", REDACTED):
        return match[0]
    if _COUNTS.search(match["name"]) or (_NUMBER.fullmatch(value) and match["name"].lower().endswith("token")):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "'\"" else ""
    return f"{match['head']}{quote}{REDACTED}{quote}"
