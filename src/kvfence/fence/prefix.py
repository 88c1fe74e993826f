"""The clean prefix cache: which verified pages may serve another request, and only one they were made for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kvfence.fence.mechanisms import Mechanisms
from kvfence.fence.state import State
from kvfence.fence.statement import Request

ROOT: Final = -1
"""What the first page of a prompt goes on from."""


class Prefix(NamedTuple):
    """What a cached page is of: its own tokens, the cached page it goes on from, and all else that shaped its KV."""

    kind: str
    before: int
    tokens: tuple[int, ...]
    content: str
    adapter: str
    scope: str


class PrefixIndex(State):
    """Whole pages of prompts as a tree, least recently used first. A page is never older than one that goes on from it.

    The index is a holder of each of its pages in the pool. The caller does the holding and the letting go, so that the
    pool stays the one place where a page changes state.
    """

    __slots__ = ("branches", "on", "page_tokens", "pages", "prefixes")
    SHARED = frozenset({"on", "page_tokens"})
    ORDERED = frozenset({"pages"})

    def __init__(self, on: Mechanisms, page_tokens: int) -> None:
        self.on = on
        self.page_tokens = page_tokens
        self.pages: dict[Prefix, int] = {}
        self.prefixes: dict[int, Prefix] = {}
        self.branches: dict[int, int] = {}  # how many pages go on from a page

    def match(self, request: Request, kind: str) -> tuple[int, ...]:
        """Give the cached pages of the longest prefix, which leaves at least the last token to compute."""
        found = [page for _, page in self._path(request, kind, request.length - 1)]
        self._refresh(found)
        return tuple(found)

    def insert(self, request: Request, kind: str, pages: Sequence[int | None]) -> tuple[int, ...]:
        """Enter the whole pages of a prompt, up to the first that is None, and give those that are new.

        Where a prefix has a page already, that one stays.
        """
        path: list[int] = []
        new: list[int] = []
        for index, page in enumerate(pages):
            prefix = self._prefix(request, kind, index, path[-1] if path else ROOT)
            known = self.pages.get(prefix)
            if known is None:
                if page is None:
                    break
                self._enter(prefix, page)
                new.append(page)
                known = page
            path.append(known)
        self._refresh(path)
        return tuple(new)

    def oldest(self) -> tuple[int, ...]:
        """Give the pages, least recently used first: each before the one it goes on from."""
        return tuple(self.pages.values())

    def remove(self, page: int) -> tuple[int, ...]:
        """Take a page out with all that goes on from it, and give them."""
        if page not in self.prefixes:
            return ()
        gone = {page: None}
        if self.branches.get(page):
            for prefix, cached in reversed(self.pages.items()):  # what a page goes on from comes before it
                if prefix.before in gone:
                    gone[cached] = None
        for cached in gone:
            self._leave(cached)
        return tuple(gone)

    def taint(self, request: Request, end: int) -> tuple[int, ...]:
        """Take out all that goes on from the first `end` tokens of a request, whose last page is bad; give those pages.

        The page there may be another than the bad one, which was not entered because its prefix had one. What was
        derived from the bad one goes on from that. Nothing goes on from a part of a page.
        """
        removed: list[int] = []
        for kind in dict.fromkeys(prefix.kind for prefix in self.pages):
            path = list(self._path(request, kind, end))
            if path and len(path) * self.page_tokens >= end:
                removed.extend(self.remove(path[-1][1]))
        return tuple(removed)

    def _path(self, request: Request, kind: str, end: int) -> Iterator[tuple[Prefix, int]]:
        """Walk the cached pages of a prompt that lie within its first `end` tokens."""
        before = ROOT
        for index in range(end // self.page_tokens):
            prefix = self._prefix(request, kind, index, before)
            page = self.pages.get(prefix)
            if page is None:
                return
            yield prefix, page
            before = page

    def _prefix(self, request: Request, kind: str, index: int, before: int) -> Prefix:
        """Name a page of a request, as this index compares them."""
        tokens = request.tokens[index * self.page_tokens : (index + 1) * self.page_tokens]
        content, adapter = (request.content, request.adapter) if self.on.clean_cache else ("", "")
        return Prefix(kind, before, tokens, content, adapter, request.scope if self.on.scope_salt else "")

    def _enter(self, prefix: Prefix, page: int) -> None:
        self.pages[prefix], self.prefixes[page] = page, prefix
        self.branches[prefix.before] = self.branches.get(prefix.before, 0) + 1

    def _leave(self, page: int) -> None:
        prefix = self.prefixes.pop(page)
        del self.pages[prefix]
        self.branches[prefix.before] -= 1
        if not self.branches[prefix.before]:
            del self.branches[prefix.before]

    def _refresh(self, path: list[int]) -> None:
        """Make a path the most recently used, its beginning most of all."""
        for page in reversed(path):
            prefix = self.prefixes[page]
            self.pages[prefix] = self.pages.pop(prefix)
