"""fastokens, where it is shown to agree with the reference.

It is ten to a hundred times as fast as Hugging Face `tokenizers` and lets go of the interpreter's lock, but it is
another implementation: it is used for a tokenizer only after it gave the same tokens for texts on which they differ.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import fastokens  # type: ignore[import-untyped]

from kvfence.counting import nasty
from kvfence.counting.errors import UncountableTextError
from kvfence.counting.reference import Reference, Tokens

# Enough that each kind of text, and each pair of neighbouring kinds, is met several times; 0.1 s with the reference.
TEXTS = 500
_SEED = 20261201
_SPECIALS = 64
_ID_BYTES = 4


class UnsupportedError(Exception):
    """fastokens is not to be used for this tokenizer; says why."""


class FastTokenizer:
    """Counts with fastokens.

    Args:
        tokenizer: the content of a `tokenizer.json`.

    Raises:
        UnsupportedError: fastokens cannot read it.

    """

    def __init__(self, tokenizer: str) -> None:
        try:
            self._tokenizer = fastokens.Tokenizer.from_json_str(tokenizer)
        except BaseException as error:  # noqa: BLE001 (a panic in the library is no Exception)
            _reraise_own(error)
            raise UnsupportedError(f"fastokens cannot read the tokenizer: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str, *, add_special_tokens: bool) -> int | None:
        """Give the number of tokens, None if fastokens gives up on the text.

        Raises:
            UncountableTextError: the text holds half of a surrogate pair.

        """
        ids = self._ids(text, add_special_tokens=add_special_tokens)
        return None if ids is None else len(ids) // _ID_BYTES

    def tokens(self, text: str, *, add_special_tokens: bool) -> Tokens | None:
        """Give the tokens as the reference tells them, None if fastokens gives up on the text."""
        ids = self._ids(text, add_special_tokens=add_special_tokens)
        return None if ids is None else Tokens(len(ids) // _ID_BYTES, zlib.crc32(ids))

    def _ids(self, text: str, *, add_special_tokens: bool) -> bytes | None:
        try:
            # Half the time of its `encode`, and of the time for which it holds the interpreter's lock.
            ids, _ = self._tokenizer.encode_batch_flat([text], add_special_tokens=add_special_tokens)
        except UnicodeError:
            raise UncountableTextError("the text holds half of a surrogate pair") from None
        except BaseException as error:  # noqa: BLE001 (a panic in the library is no Exception)
            _reraise_own(error)
            return None
        return bytes(ids)


def _reraise_own(error: BaseException) -> None:
    """Let through what does not come from the library."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error


def require_agreement(fast: FastTokenizer, reference: Reference, specials: Sequence[str]) -> None:
    """Compare the tokens of the texts that nearly every difference between implementations shows in.

    Args:
        fast: to be tried.
        reference: to be agreed with.
        specials: the texts of all added tokens.

    Raises:
        UnsupportedError: they differ.
        UnreadableError: the reference cannot read the tokenizer.

    """
    some = random.Random(_SEED).sample(sorted(specials), min(len(specials), _SPECIALS))  # noqa: S311 (repeatable)
    short = list(nasty.texts(_SEED, TEXTS, some))
    # A long text is cut in parts that are counted in parallel.
    texts = [*short, "".join(short), " x ".join(specials), "".join(specials)]
    for add_special_tokens in (True, False):
        told = reference.check([text.encode() for text in texts], add_special_tokens=add_special_tokens)
        for nth, (text, expected) in enumerate(zip(texts, told, strict=True)):
            if fast.tokens(text, add_special_tokens=add_special_tokens) != expected:
                raise UnsupportedError(f"fastokens disagrees with the reference on text {nth} of its test")
