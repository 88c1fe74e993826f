"""What the command exits with."""

from __future__ import annotations

FOUND = 1  # the thing looked for was found
UNUSABLE = 2  # the call or an input
UNKNOWN = 3  # nothing failed, but something required is unknown
INTERNAL = 70
INTERRUPTED = 130
CLOSED = 141  # whoever read the output has gone
