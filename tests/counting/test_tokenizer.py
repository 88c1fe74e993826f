from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kvfence.counting import CounterFailedError, TextCounter
from kvfence.errors import InputError
from tests.counting import real, small

GOOD = json.loads(real.sentence_piece())


def changed(**parts: Any) -> str:
    return json.dumps({**GOOD, **parts})


def with_counter(path: Path, do: Callable[[TextCounter], Awaitable[None]]) -> None:
    counter = TextCounter.open(path)

    async def run() -> None:
        try:
            await do(counter)
        finally:
            await counter.close()

    asyncio.run(run())


@pytest.mark.parametrize("directory", [True, False])
def test_a_file_or_its_directory_is_opened(tmp_path: Path, *, directory: bool) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(real.sentence_piece())

    async def do(counter: TextCounter) -> None:
        assert counter.means.fast
        assert counter.bounds.specials == 1
        assert (
            await counter.count("a b", add_special_tokens=True)
            == await counter.count(b"a b", add_special_tokens=False) + 1
        )

    with_counter(tmp_path if directory else file, do)


def test_without_fastokens_the_reference_counts(tmp_path: Path) -> None:
    content = json.dumps(small.document(small.BYTE_BPE, [{"type": "NFKC"}], [small.BYTE_LEVEL]))
    (tmp_path / "tokenizer.json").write_text(content)

    async def do(counter: TextCounter) -> None:
        assert "NFKC" in counter.means.why
        assert await counter.count("\ufdfa", add_special_tokens=True) == 33

    with_counter(tmp_path, do)


def test_the_length_decides_where_it_can(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(real.sentence_piece())

    async def do(counter: TextCounter) -> None:
        counter._exact.count = None  # type: ignore[assignment, method-assign]
        high = counter.bounds.high(100, add_special_tokens=True)
        assert high is not None
        assert not await counter.reaches("a" * 100, high + 1, add_special_tokens=True)
        assert not await counter.reaches("\u00e9" * 25, high + 1, add_special_tokens=True)
        low = counter.bounds.low(100, add_special_tokens=True)
        assert low > 1
        assert await counter.reaches(b"a" * 100, low, add_special_tokens=True)
        assert await counter.reaches("\u00e9" * 100, low, add_special_tokens=True)

    with_counter(tmp_path, do)


@pytest.mark.parametrize("away", [-2, -1, 0, 1, 2])
def test_the_count_decides_between_the_bounds(tmp_path: Path, away: int) -> None:
    (tmp_path / "tokenizer.json").write_bytes(real.sentence_piece())

    async def do(counter: TextCounter) -> None:
        for text in ("the quick brown fox " * 20, "\u00e9t\u00e9 \u4f60\u597d " * 30):
            number = await counter.count(text, add_special_tokens=True)
            assert await counter.reaches(text, number + away, add_special_tokens=True) == (away <= 0)

    with_counter(tmp_path, do)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is no JSON"),
        (changed()[:-1], "is no JSON"),
        ("\x00\x01", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no tokenizer"),
        ("{}", "is no tokenizer"),
        (changed(model=None), "is no tokenizer"),
        (changed(model={}), "cannot read it"),
        (changed(model={"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}), "cannot read it"),
        (changed(model={**GOOD["model"], "vocab": []}), "cannot read it"),
        (changed(model={**GOOD["model"], "vocab": {"a": 1 << 40}}), "model.vocab: has an id"),
        (changed(model={**GOOD["model"], "vocab": {"a": 1 << 31}}), "model.vocab: has an id"),
        (changed(model={**GOOD["model"], "vocab": {"a": -1}}), "model.vocab: has an id"),
        (changed(model={**GOOD["model"], "vocab": {"a": True}}), "model.vocab: has an id"),
        (changed(model={**GOOD["model"], "dropout": 0.1}), "model.dropout: merges at random"),
        (changed(added_tokens=7), "added_tokens: is no list"),
        (changed(added_tokens=[7]), "added_tokens: is no list"),
        (changed(added_tokens=[{"id": 1 << 31, "content": "x"}]), "added_tokens: has an id"),
        (changed(added_tokens=[{"content": "x"}]), "added_tokens: has an id"),
        (changed(normalizer={"type": "Sequence"}), "cannot read it"),
        (changed(normalizer={"type": "Unheard"}), "cannot read it"),
    ],
)
def test_what_is_no_tokenizer_is_told(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=problem):
        TextCounter.open(tmp_path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        TextCounter.open(tmp_path)


def test_closed_it_counts_no_more(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(real.sentence_piece())

    async def do(counter: TextCounter) -> None:
        await counter.close()
        with pytest.raises(CounterFailedError):
            await counter.count("a" * 100_000, add_special_tokens=True)

    with_counter(tmp_path, do)
