"""The forward passes of one rank: what `Compute` and `Step` ask for, over the pages they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvfence.engine.guards import Chain, Guards
from kvfence.engine.memory import Memory, pack_row, unpack_row
from kvfence.engine.model.pages import Chunk
from kvfence.engine.model.runner import Runner
from kvfence.engine.model.sampling import choose
from kvfence.engine.passes import Exchange
from kvfence.engine.request import Piece, Sampling
from kvfence.fence.commands import Check, Compute, Step
from kvfence.fence.events import Computed, Stepped
from kvfence.fence.units import ROW, Unit

ROW_UNIT = Unit(ROW, 0)


class _Chosen(msgspec.Struct, array_like=True, frozen=True):
    """What rank 0 chose for each request of a pass, and which of them are done with it."""

    pieces: list[Piece]
    done: list[bool]


@dataclass
class Answer:
    """An answer as far as it has come. `tail` are the pages for it beyond those of the prompt."""

    chain: Chain
    chosen: list[int] = field(default_factory=list)
    tail: tuple[tuple[Unit, int], ...] = ()


class Passer:
    """Runs passes on one rank, and tells the machine what has been computed."""

    def __init__(
        self,
        runner: Runner,
        memory: Memory,
        guards: Guards | None,
        together: Exchange,
        feed: Callable[[Any], None],
        say: Callable[[str, Piece], None],
    ) -> None:
        """Take what a pass needs; `guards` is None where no canaries are made."""
        self._runner = runner
        self._memory = memory
        self._guards = guards
        self._together = together
        self._feed = feed
        self._say = say
        self.sampling: dict[str, Sampling] = {}
        self.answers: dict[str, Answer] = {}
        self.passed = {"prefill_tokens": 0.0, "decode_tokens": 0.0}

    def forget(self, ref: str) -> None:
        """Drop what is kept of a request that is over."""
        self.sampling.pop(ref, None)
        self.answers.pop(ref, None)

    # Prefill

    def compute(self, command: Compute, *, leads: bool) -> None:
        """Fill the pages of tokens [start, stop); with the last of them also the metadata row."""
        request, start, stop = command.request, command.start, command.stop
        pages = dict((*command.context, *command.pages))
        table = _table(pages.items())
        chunk = Chunk(request.tokens[start:stop], start, table)
        logits = self._runner.forward([chunk], self._memory.kv)
        chain = Chain(request.tokens)
        if self._guards is not None:
            self._guards.stamp(chain, start, stop, table)
        if stop == request.length:
            chosen = self._choose([(logits[0], self._sampling(command.ref), stop, command.ref)] if leads else [])
            row, _ = self._memory.row(pages[ROW_UNIT])
            row[:] = pack_row(chosen.pieces[0], request.length)
            if self._guards is not None:
                self._guards.stamp_row(chain, pages[ROW_UNIT])
        self.passed["prefill_tokens"] += stop - start
        self._feed(Computed(command.ref, stop))

    # Decode

    def check(self, command: Check) -> tuple[Unit, ...]:
        """Check the canaries of what a step reads, of the answer so far too, and give the units that failed."""
        assert self._guards is not None
        answer = self.answers.get(command.ref)
        if answer is None:
            return self._guards.bad(Chain(command.request.tokens), command.pages)
        size = self._memory.geometry.page_tokens
        filled = (item for item in answer.tail if item[0].index * size < len(answer.chain.tokens))
        return self._guards.bad(answer.chain, (*command.pages, *filled))

    def steps(self, commands: list[Step], *, leads: bool) -> None:
        """Take one step of each request: the first reads the metadata row, the others run the model as one batch."""
        begun: list[tuple[Step, Answer]] = []
        first: dict[str, Piece] = {}
        for command in commands:
            answer = self.answers.setdefault(command.ref, Answer(Chain(command.request.tokens)))
            answer.tail = tuple(item for item in command.tail if item[0].kind != ROW)
            if answer.chosen:
                begun.append((command, answer))
            else:
                row, _ = self._memory.row(dict(command.pages)[ROW_UNIT])
                first[command.ref] = unpack_row(row, self._runner.config.vocab)
        asked = self._forward(begun) if begun else []
        chosen = self._choose(asked if leads else [], first, [command.ref for command in commands])
        for command, piece, done in zip(commands, chosen.pieces, chosen.done, strict=True):
            self._stepped(command, piece, done=done, leads=leads)

    def _forward(self, begun: list[tuple[Step, Answer]]) -> list[tuple[Any, Sampling, int, str]]:
        chunks = []
        for command, answer in begun:
            start = len(answer.chain.tokens)
            chunks.append(Chunk((answer.chosen[-1],), start, _table((*command.pages, *command.tail))))
        logits = self._runner.forward(chunks, self._memory.kv)
        asked = []
        for (command, answer), chunk, row in zip(begun, chunks, logits, strict=True):
            answer.chain.push(answer.chosen[-1])
            if self._guards is not None:
                self._guards.stamp(answer.chain, chunk.start, chunk.start + 1, chunk.table)
            asked.append((row, self._sampling(command.ref), chunk.start + 1, command.ref))
        self.passed["decode_tokens"] += len(begun)
        return asked

    def _stepped(self, command: Step, piece: Piece, *, done: bool, leads: bool) -> None:
        self.answers[command.ref].chosen.append(piece.token)
        if leads and not done:  # what ends an answer is no part of it
            self._say(command.ref, piece)
        self._feed(Stepped(command.ref, done))

    # Choosing

    def _choose(
        self,
        asked: list[tuple[Any, Sampling, int, str]],
        first: dict[str, Piece] | None = None,
        order: list[str] | None = None,
    ) -> _Chosen:
        """Choose on rank 0, and tell the others. Pieces of `first` come from metadata rows, which rank 0 read too."""
        pieces = dict(first or {})
        for logits, sampling, position, ref in asked:
            pieces[ref] = choose(logits, sampling, position)
        refs = order if order is not None else list(pieces)
        done = [ref in pieces and pieces[ref].token in self._sampling(ref).stop_tokens for ref in refs]
        mine = _Chosen([pieces.get(ref, Piece(0, 0.0)) for ref in refs], done)
        words = self._together.exchange(msgspec.msgpack.encode(mine))
        return msgspec.msgpack.decode(words[0], type=_Chosen)

    def _sampling(self, ref: str) -> Sampling:
        return self.sampling.get(ref, Sampling())


def _table(pages: Iterable[tuple[Unit, int]]) -> tuple[int, ...]:
    """Give the page table: the numbers of the pages of tokens, in the order of the tokens."""
    paged = sorted((unit.index, page) for unit, page in pages if unit.kind != ROW)
    return tuple(page for _, page in paged)
