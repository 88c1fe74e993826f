from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from kvfence.counting.errors import CounterFailedError, UncountableTextError
from kvfence.counting.exact import AT_ONCE_BYTES, ExactCounter, margin
from kvfence.counting.fast import FastTokenizer
from kvfence.counting.reference import Reference
from tests.counting import real

TEXT = "a b " * 500  # far more tokens than the least margin
LONG = "the quick brown fox, " * 50_000


class Off(FastTokenizer):
    """Counts some tokens too many, or gives up."""

    def __init__(self, tokenizer: str, by: int | None) -> None:
        super().__init__(tokenizer)
        self.by = by

    def count(self, text: str, *, add_special_tokens: bool) -> int | None:
        found = super().count(text, add_special_tokens=add_special_tokens)
        return None if found is None or self.by is None else found + self.by


def run(do: Callable[[ExactCounter], Awaitable[None]], *, by: int | None = 0, fast: bool = True) -> None:
    content = real.sentence_piece()

    async def main() -> None:
        exact = ExactCounter(Reference(content), Off(content.decode(), by) if fast else None)
        try:
            await do(exact)
        finally:
            await exact.close()

    asyncio.run(main())


def expected(text: str) -> int:
    number = FastTokenizer(real.sentence_piece().decode()).count(text, add_special_tokens=True)
    assert number is not None
    return number


def test_far_from_the_limit_or_without_one_the_reference_is_not_asked() -> None:
    async def do(exact: ExactCounter) -> None:
        number = expected(TEXT)
        assert await exact.count(TEXT, add_special_tokens=True) == number
        for limit in (1, 2 * number):
            assert await exact.count(TEXT, add_special_tokens=True, limit=limit) == number
        assert exact.means.confirmed == 0
        assert exact._reference._process is None

    run(do)


@pytest.mark.parametrize("text", [TEXT, LONG], ids=["at once", "in a thread"])
@pytest.mark.parametrize("away", [-2, -1, 0, 1, 2])
def test_near_the_limit_the_reference_confirms(text: str, away: int) -> None:
    async def do(exact: ExactCounter) -> None:
        number = expected(text)
        assert await exact.count(text.encode(), add_special_tokens=True, limit=number + away) == number
        assert exact.means.confirmed == 1
        assert exact.means.disagreements == 0
        assert exact.means.fast

    run(do)


def test_on_a_disagreement_the_reference_holds_and_fastokens_is_not_used_again() -> None:
    async def do(exact: ExactCounter) -> None:
        number = expected(TEXT)
        assert await exact.count(TEXT, add_special_tokens=True, limit=number + 1) == number
        assert exact.means.disagreements == 1
        assert not exact.means.fast
        assert "disagreed" in exact.means.why
        assert await exact.count(TEXT, add_special_tokens=True) == number

    run(do, by=1)


@pytest.mark.parametrize("by", [None, 0])
@pytest.mark.parametrize("fast", [True, False])
def test_the_reference_counts_what_fastokens_does_not(by: int | None, *, fast: bool) -> None:
    async def do(exact: ExactCounter) -> None:
        assert await exact.count(TEXT, add_special_tokens=True) == expected(TEXT)

    run(do, by=by, fast=fast)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "text", ["\ud800", "a" * AT_ONCE_BYTES + "\udfff", b"\xff", b"a" * AT_ONCE_BYTES + b"\xed\xa0\x80"]
)
def test_what_is_no_text_is_refused(text: str | bytes, *, fast: bool) -> None:
    async def do(exact: ExactCounter) -> None:
        with pytest.raises(UncountableTextError):
            await exact.count(text, add_special_tokens=True)

    run(do, fast=fast)


def test_the_margin_grows_with_the_limit() -> None:
    assert margin(100) == 16
    assert margin(1_000_000) == 15_625


@pytest.mark.parametrize("fast", [True, False])
def test_the_event_loop_goes_on_while_a_long_text_is_counted(*, fast: bool) -> None:
    async def do(exact: ExactCounter) -> None:
        await exact.count("a", add_special_tokens=True)
        counting = asyncio.create_task(exact.count(LONG, add_special_tokens=True))
        pauses = []
        while not counting.done():
            began = time.perf_counter()
            await asyncio.sleep(0.0005)
            pauses.append(time.perf_counter() - began)
        assert await counting == expected(LONG)
        assert sorted(pauses)[len(pauses) // 2] < 0.005  # of one pause in a busy test run nothing can be said

    run(do, fast=fast)


def test_counting_ends_with_close() -> None:
    async def do(exact: ExactCounter) -> None:
        await exact.close()
        with pytest.raises(CounterFailedError):
            await exact.count(LONG, add_special_tokens=True)

    run(do)
