"""What a client is told when its request is not answered, in OpenAI's shape."""

from __future__ import annotations

from typing import Final

from kvfence.engine.request import RefusedError
from kvfence.fence import outcome as outcomes

CONTEXT_LENGTH: Final = "context_length_exceeded"
MODEL_NOT_FOUND: Final = "model_not_found"
LIMIT_UNKNOWN: Final = "limit-unknown"

_TYPES: Final = {500: "server_error", 503: "service_unavailable"}
_QUOTED: Final = 64


class ApiError(Exception):
    """A request is not answered.

    Args:
        message: a sentence for the client.
        param: the field of the body that is to blame, where there is one.
        code: a word for programs, where there is one.
        status: of the HTTP response.

    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        super().__init__(message)

    def body(self) -> dict[str, object]:
        """Give the JSON document of the response, or of the event that ends a stream."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def from_refusal(error: RefusedError, param: str) -> ApiError:
    """Tell a client how the engine ended its request; `param` is the field that holds the prompt."""
    status = outcomes.http_status(error.outcome)
    if status == 499:
        status = 503  # No client reads 499, and this one is still there.
    if error.outcome == outcomes.LENGTH:
        return ApiError(error.detail, param=param, code=CONTEXT_LENGTH, status=status)
    return ApiError(error.detail, code=error.outcome, status=status)


def quoted(text: str) -> str:
    """Put something a client sent into a message: short, in quotes, and without characters that nobody can print."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}...")
