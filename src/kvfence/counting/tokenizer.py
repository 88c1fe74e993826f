"""Counts the tokens of texts, from the `tokenizer.json` of a model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from kvfence.counting.bounds import Bounds, ascii_bounds_of, bounds_of
from kvfence.counting.errors import CounterFailedError, UncountableTextError
from kvfence.counting.exact import ExactCounter, Means
from kvfence.counting.fast import FastTokenizer, UnsupportedError, require_agreement
from kvfence.counting.reference import Reference, UnreadableError
from kvfence.errors import InputError

NAME = "tokenizer.json"
_MOST_BYTES = 256 << 20
# Libraries reserve memory by the largest id. The largest vocabularies have a quarter of a million entries.
_MOST_ID = 1 << 24
_LONGEST_CHARACTER = 4  # bytes of UTF-8


class TextCounter:
    """Counts the tokens of texts as the engines do.

    Args:
        bounds: of every text.
        ascii_bounds: of every text of ASCII characters alone.
        exact: counts.

    """

    def __init__(self, bounds: Bounds, ascii_bounds: Bounds, exact: ExactCounter) -> None:
        self.bounds = bounds
        self.ascii_bounds = ascii_bounds
        self._exact = exact

    @classmethod
    def open(cls, path: str | Path) -> TextCounter:
        """Read a `tokenizer.json`, or the one in a directory, and test what will count; takes a second or two.

        Raises:
            InputError: there is none, or it cannot be read, or it does not always count the same.

        """
        file = Path(path) / NAME if Path(path).is_dir() else Path(path)
        content = _read(file)
        document = _checked(file, content)
        reference = Reference(content)
        try:
            exact = _exact(file, content, document, reference)
            return cls(bounds_of(document), ascii_bounds_of(document), exact)
        except BaseException:
            reference.close_now()
            raise

    @property
    def means(self) -> Means:
        """Tell what counts, and how often it was confirmed."""
        return self._exact.means

    async def count(self, text: str | bytes, *, add_special_tokens: bool, limit: int | None = None) -> int:
        """Give the exact number of tokens of a text, or of its UTF-8.

        Special tokens spelled out in the text count as such, as they do in the engines. Give `limit` where the count
        will be compared with one: near it, the reference confirms.

        Raises:
            UncountableTextError: the text is no Unicode text, or the tokenizer refuses it.
            OverloadedError: too much text waits to be counted.
            CounterFailedError: what counts failed.

        """
        return await self._exact.count(text, add_special_tokens=add_special_tokens, limit=limit)

    async def reaches(self, text: str | bytes, limit: int, *, add_special_tokens: bool) -> bool:
        """Tell whether a text has `limit` tokens or more.

        Where its length alone decides nothing else is looked at, also not whether a tokenizer could be given it.

        Raises:
            UncountableTextError, OverloadedError, CounterFailedError: as `count`.

        """
        bounds = self.ascii_bounds if text.isascii() else self.bounds
        most = len(text) if isinstance(text, bytes) or text.isascii() else _LONGEST_CHARACTER * len(text)
        high = bounds.high(most, add_special_tokens=add_special_tokens)
        if high is not None and high < limit:
            return False
        if bounds.low(len(text), add_special_tokens=add_special_tokens) >= limit:
            return True
        return await self.count(text, add_special_tokens=add_special_tokens, limit=limit) >= limit

    async def close(self) -> None:
        """End what counts; counts that wait fail."""
        await self._exact.close()


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(str(file), f"cannot be read: {error.strerror or error}") from None
    if len(content) > _MOST_BYTES:
        raise InputError(str(file), f"is larger than {_MOST_BYTES >> 20} MiB")
    return content


def _checked(file: Path, content: bytes) -> dict[str, Any]:
    """Give the content as JSON, if it is what a tokenizer may be made from."""
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        raise InputError(str(file), "is no JSON") from None
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise InputError(str(file), "is no tokenizer", field="model")
    model, added = document["model"], document.get("added_tokens") or []
    if model.get("dropout"):
        raise InputError(str(file), "merges at random: its counts differ from time to time", field="model.dropout")
    if isinstance(model.get("vocab"), dict):
        _require_ids(file, "model.vocab", list(model["vocab"].values()))
    if not isinstance(added, list) or not all(isinstance(one, dict) for one in added):
        raise InputError(str(file), "is no list of tokens", field="added_tokens")
    _require_ids(file, "added_tokens", [one.get("id") for one in added])
    return document


def _require_ids(file: Path, field: str, ids: list[Any]) -> None:
    if not all(type(one) is int and 0 <= one < _MOST_ID for one in ids):
        raise InputError(str(file), f"has an id that is no number below {_MOST_ID}", field=field)


def _exact(file: Path, content: bytes, document: dict[str, Any], reference: Reference) -> ExactCounter:
    """Give what counts: the reference alone, if fastokens does not agree with it."""
    try:
        with ThreadPoolExecutor(1) as pool:
            # Its process reads the tokenizer while fastokens reads it here.
            started = pool.submit(reference.check, [b""], add_special_tokens=False)
            try:
                fast = FastTokenizer(content.decode())
            except UnsupportedError as error:
                started.result()
                return ExactCounter(reference, None, str(error))
            started.result()
        require_agreement(fast, reference, [str(one.get("content")) for one in document.get("added_tokens") or []])
    except UnreadableError as error:
        raise InputError(str(file), f"Hugging Face tokenizers cannot read it ({error})") from None
    except CounterFailedError as error:
        raise InputError(str(file), f"Hugging Face tokenizers cannot count with it: {error}") from None
    except UnsupportedError as error:
        return ExactCounter(reference, None, str(error))
    except UncountableTextError:
        return ExactCounter(reference, None, "the reference refuses texts of the test")
    return ExactCounter(reference, fast)
