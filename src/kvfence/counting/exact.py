"""The exact number of tokens of a text, without keeping an event loop waiting.

A count by fastokens decides wherever a mistake of it could not matter. Near a limit the reference counts too, and its
count holds; if they differ, fastokens is not used again.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvfence.counting.errors import CounterFailedError, UncountableTextError
from kvfence.counting.fast import FastTokenizer
from kvfence.counting.reference import Reference

# Bytes of text that are counted at once, on the event loop: 50 microseconds for prose, under 3 ms for the worst text
# found (one letter again and again). A thread costs 100 microseconds to hand over to and back.
AT_ONCE_BYTES = 8192
_LONGEST_CHARACTER = 4  # bytes of UTF-8
_THREADS = 2

# A difference between two implementations that the test at the start does not show is rare in a text, and moves its
# count by a token or two where it occurs: it takes one every 64 tokens to move a count by a 64th.
_MARGIN_PART = 64
_MARGIN_LEAST = 16


@dataclass(frozen=True)
class Means:
    """What counts, for those who look after a gateway.

    Args:
        fast: fastokens counts, and the reference near a limit; otherwise the reference alone.
        why: why fastokens does not.
        confirmed: counts near a limit that the reference made too.
        disagreements: how many of them differed.

    """

    fast: bool
    why: str
    confirmed: int
    disagreements: int


def margin(limit: int) -> int:
    """Give how near to a limit, in tokens, the reference is asked."""
    return max(_MARGIN_LEAST, limit // _MARGIN_PART)


class ExactCounter:
    """Counts texts exactly.

    Args:
        reference: whose count is the right one.
        fast: fastokens, if it agrees with the reference.
        why: why not, otherwise.

    """

    def __init__(self, reference: Reference, fast: FastTokenizer | None, why: str = "") -> None:
        self._reference = reference
        self._fast = fast
        self._why = why
        self._confirmed = 0
        self._disagreements = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kvfence-count")

    @property
    def means(self) -> Means:
        """Tell what counts now."""
        return Means(self._fast is not None, self._why, self._confirmed, self._disagreements)

    async def count(self, text: str | bytes, *, add_special_tokens: bool, limit: int | None = None) -> int:
        """Give the number of tokens.

        Args:
            text: or its UTF-8.
            add_special_tokens: with those that the tokenizer puts round a text.
            limit: the number that the count will be compared with, if there is one; near it, the reference confirms.

        Raises:
            UncountableTextError: the text is no Unicode text, or the tokenizer refuses it.
            OverloadedError: too much text waits for the reference.
            CounterFailedError: the reference could not count.

        """
        found = await self._fast_count(text, add_special_tokens=add_special_tokens)
        if found is not None and (limit is None or abs(found - limit) > margin(limit)):
            return found
        exact = await self._reference.count(_utf8(text), add_special_tokens=add_special_tokens)
        if found is not None:
            self._confirmed += 1
            if exact != found:
                self._disagreements += 1
                self._fast, self._why = None, "fastokens disagreed with the reference near a limit"
        return exact

    async def close(self) -> None:
        """End the reference's process; counts that wait fail."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._reference.close()

    async def _fast_count(self, text: str | bytes, *, add_special_tokens: bool) -> int | None:
        """Give the count of fastokens, None where it is not used or gave up."""
        fast = self._fast
        if fast is None:
            return None

        def count() -> int | None:
            return fast.count(_string(text), add_special_tokens=add_special_tokens)

        ascii_alone = isinstance(text, bytes) or text.isascii()
        if len(text) * (1 if ascii_alone else _LONGEST_CHARACTER) <= AT_ONCE_BYTES:
            return count()
        try:
            running = self._pool.submit(count)
        except RuntimeError:
            raise CounterFailedError("the counter is closed") from None
        return await asyncio.wrap_future(running)


def _string(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise UncountableTextError("the text is no UTF-8") from None


def _utf8(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        _string(text)
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UncountableTextError("the text holds half of a surrogate pair") from None
