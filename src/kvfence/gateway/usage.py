"""What an answer says of itself: how many tokens the engine saw, and how many it gave.

A stream says it in two ways. An event with a choice tells the tokens of that choice's prompt alone; the last event,
which has no choice, tells the total of all prompts (SGLang 0.5.23 `serving_completions.py`, vLLM 0.32.0
`completion/serving.py`). So a request of several prompts is known only when each of them, or the total, was seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

_ABORT: Final = "abort"


class Usage(NamedTuple):
    """Tokens, over all prompts of the request.

    Attributes:
        prompt: tokens of the prompts.
        completion: tokens of the answers; nothing if it is not told.
        aborted: whether the engine says that it gave up.

    """

    prompt: int
    completion: int | None
    aborted: bool = False


class _Finish(msgspec.Struct):
    type: str | None = None


class _Told(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: _Finish | str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    index: int = 0


class _Answer(msgspec.Struct):
    """Of OpenAI's endpoints (`usage`, `choices`) or of SGLang's own (`meta_info`, and `index` in a stream)."""

    usage: _Told | None = None
    meta_info: _Told | None = None
    choices: list[_Choice] | None = None
    index: int = 0


_whole = msgspec.json.Decoder(_Answer | list[_Answer])
_one = msgspec.json.Decoder(_Answer)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_usage(body: bytes | bytearray, samples: int = 1) -> Usage | None:
    """Read a whole answer; nothing if it does not say.

    Args:
        body: of the answer.
        samples: answers that were asked for to each prompt (`n`). SGLang's own endpoint gives a list with as many
            entries for a prompt, and each says the tokens of the prompt again.

    """
    try:
        document = _whole.decode(body)
    except _UNREADABLE:
        return None
    if not isinstance(document, list):
        return _usage(document)
    known = [usage for usage in map(_usage, document) if usage is not None]
    if not known or len(known) != len(document):
        return None
    return Usage(
        sum(usage.prompt for usage in known[::samples]),
        _sum(usage.completion for usage in known),
        any(usage.aborted for usage in known),
    )


class Tally:
    """What the events of a stream have told so far.

    Args:
        prompts: how many the request has.
        samples: answers that were asked for to each prompt (`n`).

    """

    __slots__ = ("_parts", "_prompts", "_samples", "_total")

    def __init__(self, prompts: int = 1, samples: int = 1) -> None:
        self._prompts = prompts
        self._samples = samples
        self._parts: dict[int, Usage] = {}  # by choice
        self._total: Usage | None = None

    def add(self, data: bytes) -> None:
        """Read the data of an event."""
        try:
            event = _one.decode(data)
        except _UNREADABLE:
            return
        usage = _usage(event)
        if usage is None:
            return
        if event.choices == []:
            self._total = usage
            return
        choice = event.choices[0].index if event.choices else event.index
        if 0 <= choice < self._prompts * self._samples:  # a hostile engine may name any
            self._parts[choice] = usage

    def usage(self) -> Usage | None:
        """Give what is known of all prompts; nothing as long as one of them is missing."""
        if self._total is not None:
            return self._total
        prompts = {choice // self._samples: usage.prompt for choice, usage in self._parts.items()}
        if len(prompts) < self._prompts:
            return None
        whole = len(self._parts) == self._prompts * self._samples
        return Usage(
            sum(prompts.values()),
            _sum(usage.completion for usage in self._parts.values()) if whole else None,
            any(usage.aborted for usage in self._parts.values()),
        )


def _sum(counts: Iterable[int | None]) -> int | None:
    """Add, if all are known."""
    known = list(counts)
    return sum(count for count in known if count is not None) if None not in known else None


def _usage(answer: _Answer) -> Usage | None:
    told = answer.usage or answer.meta_info
    if told is None or told.prompt_tokens is None or told.prompt_tokens < 0:
        return None
    finish = told.finish_reason
    aborted = (finish.type if isinstance(finish, _Finish) else finish) == _ABORT
    aborted = aborted or any(choice.finish_reason == _ABORT for choice in answer.choices or ())
    return Usage(told.prompt_tokens, told.completion_tokens, aborted)
