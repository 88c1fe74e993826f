"""Where the tokens of a forward pass lie in the paged KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvfence.engine.model.linear import Floats


class Chunk(NamedTuple):
    """Consecutive tokens of one request, to be computed in one pass.

    Attributes:
        tokens: their ids, at least one.
        start: the position of the first.
        table: page numbers: positions [i * page tokens, (i + 1) * page tokens) of the request lie in page `table[i]`
            of the pool. It covers at least start + len(tokens) tokens.

    """

    tokens: tuple[int, ...]
    start: int
    table: tuple[int, ...]


class Span(NamedTuple):
    """A chunk in a pass: its rows there, the pages of all its tokens, and how many tokens these are."""

    rows: slice
    pages: NDArray[np.intp]
    length: int


class Plan(NamedTuple):
    """All chunks of a pass, one after the other.

    Attributes:
        tokens: [n] ids.
        positions: [n].
        pages: [n] the page where each token's KV belongs.
        places: [n] its place there.
        last: [chunks] the row of each chunk's last token.
        spans: one a chunk.

    """

    tokens: NDArray[np.intp]
    positions: NDArray[np.intp]
    pages: NDArray[np.intp]
    places: NDArray[np.intp]
    last: NDArray[np.intp]
    spans: tuple[Span, ...]


def plan(chunks: Sequence[Chunk], pages: int, page_tokens: int, vocab: int) -> Plan:
    """Lay out a pass over at least one chunk.

    Args:
        chunks: what to compute.
        pages: pages of the pool.
        page_tokens: tokens of a page.
        vocab: how many token ids there are.

    Raises:
        ValueError: a chunk has no tokens or a token that is none, starts before 0, or its table is too short or has
            a page that is not in the pool.

    """
    spans, positions, homes, tokens, row = [], [], [], [], 0
    for chunk in chunks:
        if not chunk.tokens or min(chunk.tokens) < 0 or max(chunk.tokens) >= vocab:
            raise ValueError(f"a chunk is of one or more token ids in [0, {vocab})")
        length = chunk.start + len(chunk.tokens)
        table = chunk.table[: -(-length // page_tokens)]
        if chunk.start < 0 or len(table) * page_tokens < length:
            raise ValueError(f"positions [{chunk.start}, {length}) are not covered by {len(chunk.table)} pages")
        if min(table) < 0 or max(table) >= pages:
            raise ValueError(f"a table has a page that is not in [0, {pages})")
        numbers = np.array(table, dtype=np.intp)
        positions.append(np.arange(chunk.start, length, dtype=np.intp))
        homes.append(numbers[positions[-1] // page_tokens])
        tokens.append(np.array(chunk.tokens, dtype=np.intp))
        spans.append(Span(slice(row, row + len(chunk.tokens)), numbers, length))
        row += len(chunk.tokens)
    where = np.concatenate(positions)
    return Plan(
        np.concatenate(tokens),
        where,
        np.concatenate(homes),
        where % page_tokens,
        np.array([span.rows.stop - 1 for span in spans], dtype=np.intp),
        tuple(spans),
    )


def gather(pool: Floats, span: Span) -> Floats:
    """Copy one layer's KV of all tokens of a chunk's request out of their pages, for this moment only: [length, width].

    Args:
        pool: [pages, page tokens, width]: the part of the pool that is one layer's; a view.
        span: the chunk.

    """
    kept: Floats = pool[span.pages]
    return kept.reshape(-1, kept.shape[2])[: span.length]
