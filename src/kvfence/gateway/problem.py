"""What a client is told when its request is not answered, in OpenAI's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

CONTEXT_LENGTH: Final = "context_length_exceeded"
LIMIT_UNKNOWN: Final = "limit_unknown"
UNCOUNTED: Final = "prompt_not_countable"
NO_WORKER: Final = "no_worker"
OVERLOADED: Final = "overloaded"
UPSTREAM_FAILED: Final = "upstream_failed"
UPSTREAM_TIMEOUT: Final = "upstream_timeout"
WITHHELD: Final = "answer_withheld"
FIELD_REFUSED: Final = "field_refused"

_TYPES: Final = {404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable"}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error answer.

    Args:
        status: of HTTP.
        message: a sentence for the client; names no worker.
        param: the member of the body that is to blame, where there is one.
        code: a word for programs, where there is one.
        retry_after: seconds after which it may go better, where that is so.
        allow: the methods that the path takes, where another was used.

    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None
    allow: str | None = None

    def body(self) -> bytes:
        """Give the JSON document."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        )

    def event(self) -> bytes:
        """Give the last event of a stream that had begun."""
        return b"data: " + self.body() + b"\n\n"
