"""What may go wrong without being a fault of the rig."""

from __future__ import annotations


class UnavailableError(Exception):
    """A release cannot be run here. The message says why, and what would make it run."""


class StartError(Exception):
    """An engine did not come up. The message holds the end of its log."""
