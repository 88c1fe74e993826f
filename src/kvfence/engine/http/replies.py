"""The documents with which OpenAI's endpoints answer: whole, or chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvfence.engine.http.answer import Part, chat_logprobs, completion_logprobs
from kvfence.engine.http.text import Text

Document = dict[str, object]


class Usage(NamedTuple):
    """How many tokens a request took."""

    prompt_tokens: int
    completion_tokens: int

    def document(self) -> Document:
        """Give OpenAI's `usage`."""
        return {**self._asdict(), "total_tokens": self.prompt_tokens + self.completion_tokens}


class Replies:
    """Writes the documents of one request.

    Args:
        text: the model's, for the names of tokens.
        chat: whether the request is a conversation.
        request_id: of the request, as the client sees it.
        model: the name of the model.
        created: when, in seconds of the Unix epoch.
        logprobs: whether to list log probabilities.
        include_usage: whether a stream ends with what was used, and says so in every chunk.

    """

    def __init__(
        self, text: Text, *, chat: bool, request_id: str, model: str, created: int, logprobs: bool, include_usage: bool
    ) -> None:
        self._text = text
        self._chat = chat
        self._id = request_id
        self._model = model
        self._created = created
        self._logprobs = logprobs
        self._include_usage = include_usage

    def whole(self, content: str, parts: Sequence[Part], finish_reason: str, usage: Usage) -> Document:
        """Write a whole answer."""
        said: Document = (
            {"message": {"role": "assistant", "content": content, "refusal": None}} if self._chat else {"text": content}
        )
        choice = {"index": 0, **said, "logprobs": self._listed(parts), "finish_reason": finish_reason}
        kind = "chat.completion" if self._chat else "text_completion"
        return self._document(kind, [choice]) | {"usage": usage.document()}

    def first(self) -> Document | None:
        """Write the chunk that says who speaks; None where nobody is named."""
        return self._chunk({"role": "assistant", "content": ""}) if self._chat else None

    def part(self, text: str, parts: Sequence[Part]) -> Document:
        """Write a chunk of an answer."""
        return self._chunk({"content": text} if self._chat else {"text": text}, parts)

    def last(self, finish_reason: str) -> Document:
        """Write the chunk that says why the answer ended."""
        return self._chunk({} if self._chat else {"text": ""}, finish_reason=finish_reason)

    def used(self, usage: Usage) -> Document | None:
        """Write the chunk that says what was used; None where nobody asked."""
        if not self._include_usage:
            return None
        return self._document(self._chunk_kind, []) | {"usage": usage.document()}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, said: Document, parts: Sequence[Part] = (), finish_reason: str | None = None) -> Document:
        said = {"delta": said} if self._chat else said
        listed = self._listed(parts) if parts else None
        document = self._document(
            self._chunk_kind, [{"index": 0, **said, "logprobs": listed, "finish_reason": finish_reason}]
        )
        return document | {"usage": None} if self._include_usage else document

    def _document(self, kind: str, choices: list[Document]) -> Document:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _listed(self, parts: Sequence[Part]) -> Document | None:
        if not self._logprobs:
            return None
        return chat_logprobs(self._text, parts) if self._chat else completion_logprobs(self._text, parts)
