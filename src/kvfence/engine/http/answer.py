"""What has become of an answer so far: its text, what was used, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvfence.engine.http.stops import Stops
from kvfence.engine.http.text import Text
from kvfence.engine.request import Piece

# JSON has no infinity; OpenAI writes this for a probability of 0.
_LEAST_LOGPROB: Final = -9999.0


class Part(NamedTuple):
    """What a piece adds to an answer.

    Attributes:
        text: may be empty: half a character, or what may begin a stop string, comes with a later part or not at all.
        piece: the token; where log probabilities are listed, also one of a stop string is.
        offset: how many characters of the answer came before the token.

    """

    text: str
    piece: Piece
    offset: int


class Answer:
    """Reads an answer's pieces, one by one.

    Args:
        text: the model's.
        stops: strings that end the answer.
        max_tokens: most tokens of the answer.

    Attributes:
        tokens: how many pieces were read.
        stopped: whether a stop string was found: no piece should follow.

    """

    def __init__(self, text: Text, stops: Sequence[str], max_tokens: int) -> None:
        self.tokens = 0
        self._stream = text.stream()
        self._stops = Stops(stops)
        self._max_tokens = max_tokens
        self._characters = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stops.found

    @property
    def finish_reason(self) -> str:
        """Why an answer ended that has ended: `stop` or `length`."""
        return "length" if self.tokens >= self._max_tokens and not self.stopped else "stop"

    def push(self, piece: Piece) -> Part:
        """Take the next piece."""
        self.tokens += 1
        offset = self._characters
        text = self._stream.push(piece.token)
        self._characters += len(text)
        return Part(self._stops.push(text), piece, offset)

    def finish(self) -> str:
        """Give the text that was held back, when no more pieces come."""
        last = self._stops.push(self._stream.finish())
        return last + self._stops.finish()


def completion_logprobs(text: Text, parts: Sequence[Part]) -> dict[str, object]:
    """List log probabilities as /v1/completions does.

    A token that is not whole characters is written as its bytes; of two that are written alike, the likelier counts.
    """
    return {
        "tokens": [_name(text, part.piece.token) for part in parts],
        "token_logprobs": [_logprob(part.piece.logprob) for part in parts],
        "top_logprobs": [_alternatives(text, part.piece) for part in parts],
        "text_offset": [part.offset for part in parts],
    }


def chat_logprobs(text: Text, parts: Sequence[Part]) -> dict[str, object]:
    """List log probabilities as /v1/chat/completions does."""
    return {
        "content": [
            _entry(text, part.piece.token, part.piece.logprob)
            | {"top_logprobs": [_entry(text, token, logprob) for token, logprob in part.piece.top]}
            for part in parts
        ],
        "refusal": None,
    }


def _alternatives(text: Text, piece: Piece) -> dict[str, float]:
    found: dict[str, float] = {}
    for token, logprob in (*piece.top, (piece.token, piece.logprob)):
        found.setdefault(_name(text, token), _logprob(logprob))
    return found


def _entry(text: Text, token: int, logprob: float) -> dict[str, object]:
    return {"token": _name(text, token), "logprob": _logprob(logprob), "bytes": list(text.name(token))}


def _name(text: Text, token: int) -> str:
    """Write a token; OpenAI's `bytes:` form if it is not whole characters, its id if it is not of the vocabulary."""
    raw = text.name(token)
    try:
        return raw.decode() if raw else f"token_id:{token}"
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _logprob(value: float) -> float:
    return max(_LEAST_LOGPROB, value)  # in this order NaN, too, becomes a number
