"""A write that was not made."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818 (it is an answer, not an accident)
    """The receiver placed nothing of a write, and reads no more of it."""
