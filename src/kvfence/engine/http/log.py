"""What the HTTP server has to say, as lines of the engine's log.

A line holds the kind of an error and never its words, which may quote a client's headers or prompt. That a client sent
something malformed is told to the client, and not logged.
"""

from __future__ import annotations

import logging
import os
import traceback

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from kvfence.engine.coordinator import Log


class _Forward(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of an error by its kind."""
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno < logging.WARNING or isinstance(error, HttpProcessingError | RequestPayloadError):
            return
        kind = type(error).__name__ if error is not None else "see KVFENCE_DEBUG=1"
        self._log("error", f"HTTP: a request failed: {kind}")
        if os.environ.get("KVFENCE_DEBUG"):
            self._log("error", record.getMessage())
            self._log("error", "".join(traceback.format_exception(error)) if error is not None else "")


def logger(log: Log) -> logging.Logger:
    """Make a logger for aiohttp that nothing else hears of."""
    made = logging.Logger("kvfence.engine.http")  # noqa: LOG001 (not registered on purpose)
    made.addHandler(_Forward(log))
    return made
