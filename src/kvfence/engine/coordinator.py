"""The coordinator: starts workers, and again; carries the fence's messages; pairs workers for requests."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar, Final, Self

from kvfence.engine import wire
from kvfence.engine.request import Job, Piece, RefusedError
from kvfence.engine.settings import ROLES, Plan, Role, Settings
from kvfence.engine.workers import Worker
from kvfence.engine.zygote import Zygote
from kvfence.fence.outcome import ABORTED, COMMITTED, LENGTH, RESTARTED, RETRIABLE, TIMED_OUT, UNREACHABLE, Outcome
from kvfence.fence.statement import Request, new_reference
from kvfence.fence.tags import KEY_BYTES

ATTEMPTS: Final = 3
"""How often a request is tried, under a new reference each time, if nothing of its answer has been sent."""
_TRIES: Final = {RESTARTED: 2}
"""Fewer for what a request may itself be the cause of."""
START_SECONDS: Final = 60.0
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0
"""Seconds before a worker is started again: doubled each time it dies soon after, up to the longest."""
SOON: Final = 10.0

DETAILS: Final[dict[Outcome, str]] = {
    LENGTH: "the prompt and the answer asked for are longer than this engine serves",
    UNREACHABLE: "no pair of workers is up",
    TIMED_OUT: "no answer came in time",
    ABORTED: "the request was let go",
}

Log = Callable[[str, str], None]
"""Takes a level, as `logging` names it in small letters, and a line."""


def _silent(level: str, text: str) -> None:
    del level, text


class Attempt:
    """One handoff of a request, as the coordinator sees it."""

    def __init__(self, ref: str, prefill: Worker, decode: Worker) -> None:
        self.ref = ref
        self.prefill = prefill
        self.decode = decode
        self.came: asyncio.Queue[Piece | Outcome] = asyncio.Queue()


@dataclass
class Notes:
    """In the lab: how each handoff ended, by worker and rank, and the isolation scope it was begun for.

    Where decode serves another scope under the same reference, that stands under REFERENCE@WORKER.
    """

    ends: dict[str, list[tuple[str, int, Outcome]]] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)


class Coordinator:
    """The engine. `start` it, `generate` answers, `stop` it; a `Backend` for whoever asks over HTTP."""

    def __init__(self, settings: Settings, log: Log | None = None, zygote: Zygote | None = None) -> None:
        """Plan the engine. A zygote that is given is used, and left running.

        Raises:
            InputError: see `settings.Plan`.

        """
        self.settings = settings
        self.plan = Plan(settings)
        key = secrets.token_bytes(KEY_BYTES)
        self.workers: dict[str, Worker] = {}
        for role in ROLES:
            for index in range(settings.prefill if role == "prefill" else settings.decode):
                name = f"{role}-{index}"
                self.workers[name] = Worker(name, role, self.plan, key)
        self.log = log or _silent
        self.on_trace: Callable[[Worker, int, wire.Trace], None] | None = None
        self.notes = Notes() if settings.lab else None
        self._attempts: dict[str, Attempt] = {}
        self._turns = count()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._failure = ""
        self._starting: asyncio.Task[None] | None = None
        self._zygote = zygote
        self._owns_zygote = zygote is None
        self.died: dict[str, int] = dict.fromkeys(self.workers, 0)
        self._pauses: dict[str, tuple[float, float]] = {}

    # Life

    async def start(self) -> None:
        """Start every worker, and wait until each prefill worker can speak to each decode worker.

        Raises:
            RefusedError: they do not come up.

        """
        self._starting = asyncio.current_task()
        try:
            if self._zygote is None:
                self._zygote = Zygote()
            for worker in self.workers.values():
                await worker.start(self._zygote, self._heard, self._lost)
            async with asyncio.timeout(START_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self.complete() or any(self.died.values()))
        except (TimeoutError, OSError) as error:
            self._failure = str(error) or f"the workers did not come up within {START_SECONDS:.0f} s"
        except BaseException:
            await self.stop()
            raise
        finally:
            self._starting = None
        if not self.complete():
            await self.stop()
            raise RefusedError(UNREACHABLE, self._failure or "a worker died while it started")
        for worker in self.workers.values():
            self.log("info", self.describe(worker))

    def complete(self) -> bool:
        """Say whether every worker is up and every pair can be used."""
        ups = all(worker.up for worker in self.workers.values())
        return ups and len(self.pairs()) == self.settings.prefill * self.settings.decode

    async def stop(self) -> None:
        """End every process, and wait until all have ended."""
        self._stopping = True
        tasks = [*self._tasks, *([self._starting] if self._starting not in {None, asyncio.current_task()} else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self.workers.values():
            await worker.kill()
        for attempt in list(self._attempts.values()):
            attempt.came.put_nowait(UNREACHABLE)
        if self._zygote is not None and self._owns_zygote:
            self._zygote.close()
            self._zygote = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def describe(self, worker: Worker) -> str:
        """Say what a worker was started with, in the one line that `kvfence audit` reads."""
        config, settings = worker.config, self.settings
        off = config.on.off
        with_ = f"without {', '.join(off)}" if off else "all mechanisms on"
        return (
            f"kvfence worker {worker.name}: context {config.context_length} tokens, "
            f"pool {self.plan.pool_tokens(worker.role)} tokens, page {settings.page_tokens} tokens, "
            f"limit {config.limit} tokens, tp {config.ranks}, transport {config.transport}, {with_}"
        )

    # What ranks say

    def _heard(self, worker: Worker, rank: int, frame: bytes) -> None:
        said = wire.decode_from_rank(frame)
        self._HEARD[type(said)](self, worker, rank, said)

    def _carry(self, _worker: Worker, _rank: int, said: wire.Carry) -> None:
        to = self.workers.get(said.worker)
        if to is not None and said.rank < len(to.links):
            to.links[said.rank].say(wire.Deliver(said.envelope))

    def _token(self, _worker: Worker, _rank: int, said: wire.Token) -> None:
        self._tell(said.ref, said.piece)

    def _answered(self, _worker: Worker, _rank: int, said: wire.Answered) -> None:
        self._tell(said.ref, said.outcome)

    def _met(self, worker: Worker, rank: int, said: wire.Met) -> None:
        worker.met.setdefault(rank, {})[said.worker] = said.incarnation
        self._notify()

    def _status(self, worker: Worker, rank: int, said: wire.Status) -> None:
        worker.status[rank] = said
        self._notify()

    def _ended(self, worker: Worker, rank: int, said: wire.EndedHere) -> None:
        if self.notes is not None:
            self.notes.ends.setdefault(said.ref, []).append((worker.name, rank, said.outcome))

    def _traced(self, worker: Worker, rank: int, said: wire.Trace) -> None:
        if self.on_trace is not None:
            self.on_trace(worker, rank, said)

    def _complaint(self, _worker: Worker, _rank: int, said: wire.Complaint) -> None:
        self._failure = said.text
        self.log(said.level, said.text)

    def _tell(self, ref: str, item: Piece | Outcome) -> None:
        attempt = self._attempts.get(ref)
        if attempt is not None:
            attempt.came.put_nowait(item)

    def _notify(self) -> None:
        """Wake whoever waits for something to have changed."""

        async def wake() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._run(wake())

    def _run(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ready(self, worker: Worker, rank: int, said: wire.Ready) -> None:
        """Tell who needs it where a rank takes writes in; introduce a worker once all of its ranks are there."""
        worker.take_pids(rank, said.pids)
        worker.places[rank] = said
        if worker.role == "decode":
            for other in self.of("prefill"):
                other.say(wire.Peer(worker.name, rank, said.engine, said.where))
        if worker.up or len(worker.places) < worker.config.ranks:
            return
        worker.up = True
        others = self.of("decode" if worker.role == "prefill" else "prefill")
        if worker.role == "prefill":
            for other in others:
                for number, place in other.places.items():
                    worker.say(wire.Peer(other.name, number, place.engine, place.where))
        worker.say(wire.Greet([other.name for other in others]))
        self._notify()

    _HEARD: ClassVar[dict[type, Callable[..., None]]] = {
        wire.Carry: _carry,
        wire.Token: _token,
        wire.Answered: _answered,
        wire.Ready: _ready,
        wire.Met: _met,
        wire.Status: _status,
        wire.EndedHere: _ended,
        wire.Trace: _traced,
        wire.Complaint: _complaint,
    }

    def of(self, role: Role) -> list[Worker]:
        """Give the workers of a role."""
        return [worker for worker in self.workers.values() if worker.role == role]

    # Death and another life

    def _lost(self, worker: Worker) -> None:
        """See to a worker of which a rank has gone: its ranks live and die together."""
        if self._stopping or worker.incarnation in {self.died[worker.name], 0}:
            return
        self.died[worker.name] = worker.incarnation
        worker.up = False
        self.log("warning", f"{worker.name} has died")
        self._notify()
        self._run(self._renew(worker))

    async def _renew(self, worker: Worker) -> None:
        """End what is left of a life, and begin another; again and again, until it begins."""
        begun = asyncio.get_running_loop().time()
        await worker.kill()
        for attempt in list(self._attempts.values()):
            if attempt.decode is worker:
                attempt.came.put_nowait(RESTARTED)
        last, pause = self._pauses.get(worker.name, (-SOON, FIRST_PAUSE))
        pause = min(LONGEST_PAUSE, 2 * pause) if begun - last < SOON else FIRST_PAUSE
        while self.settings.restart and self._zygote is not None:
            self._pauses[worker.name] = begun, pause
            await asyncio.sleep(pause)
            try:
                await worker.start(self._zygote, self._heard, self._lost)
            except OSError as error:
                self.log("error", f"{worker.name} cannot be started: {error}")
                pause = min(LONGEST_PAUSE, 2 * pause)
                self._replace_zygote()
            else:
                self.log("info", f"{worker.name} is started again, life {worker.incarnation}")
                return

    def _replace_zygote(self) -> None:
        """Start another process that forks, if the one there is cannot be used and is this engine's."""
        if self._zygote is not None and self._owns_zygote and not self._stopping:
            self._zygote.kill()
            self._zygote = Zygote()

    # Requests

    def pairs(self, through: Worker | None = None) -> list[tuple[Worker, Worker]]:
        """Give the pairs of workers that can serve a request now; those with one worker, if it is given."""
        return [
            (prefill, decode)
            for prefill in self.of("prefill")
            for decode in self.of("decode")
            if through in {None, prefill, decode}
            and prefill.up
            and decode.up
            and prefill.knows(decode)
            and decode.knows(prefill)
        ]

    def limit(self) -> int | None:
        """Give the shortest prompt that is refused, in tokens."""
        return self.plan.limit

    async def generate(self, job: Job, through: Worker | None = None) -> AsyncGenerator[Piece]:
        """Answer a job token by token; see `request.Backend`. `through` names a worker that is to take part.

        Raises:
            ValueError: a token is none of the model's.

        """
        vocabulary = self.plan.model.vocab
        if not all(0 <= token < vocabulary for token in job.tokens):
            raise ValueError(f"a token is not in [0, {vocabulary})")
        if self.settings.truncate and not self.settings.lab:  # both roles then see the same prompt
            job = self.cut(job)
        if self.settings.on.admission and not self.settings.truncate:
            self._judge(job)
        for tried in range(1, ATTEMPTS + 1):
            attempt = await self._attempt(job, through)
            sent = False
            async with aclosing(self.follow(attempt)) as items:
                async for item in items:
                    if isinstance(item, Piece):
                        sent = True
                        yield item
                    elif item == COMMITTED:
                        return
                    elif sent or item not in RETRIABLE or tried >= _TRIES.get(item, ATTEMPTS) or self._stopping:
                        raise RefusedError(item, DETAILS.get(item, "the handoff failed"))

    def cut(self, job: Job) -> Job:
        """Cut a prompt to the longest that every worker admits with the answer asked for."""
        most = min(self.plan.limit - 1, self.plan.context_length - job.sampling.max_tokens)
        return job._replace(tokens=job.tokens[: max(1, most)])

    def _judge(self, job: Job) -> None:
        """Refuse at the door what a worker would refuse."""
        context = self.plan.context_length
        if len(job.tokens) >= self.plan.limit or len(job.tokens) + job.sampling.max_tokens > context:
            raise RefusedError(LENGTH, DETAILS[LENGTH])

    async def _attempt(self, job: Job, through: Worker | None) -> Attempt:
        try:
            async with asyncio.timeout(self.settings.wait_seconds), self._changed:
                await self._changed.wait_for(lambda: self._stopping or bool(self.pairs(through)))
        except TimeoutError:
            raise RefusedError(UNREACHABLE, DETAILS[UNREACHABLE]) from None
        pairs = self.pairs(through)
        if not pairs:
            raise RefusedError(UNREACHABLE, DETAILS[UNREACHABLE])
        prefill, decode = pairs[next(self._turns) % len(pairs)]
        return self.begin(job, new_reference(), prefill, decode)

    def begin(
        self, job: Job, ref: str, prefill: Worker | None, decode: Worker | None, refuse: Outcome | None = None
    ) -> Attempt:
        """Give a request to a pair. In the lab one of the two may be left out, and `refuse` is what prefill finds."""
        first, second = prefill or self.of("prefill")[0], decode or self.of("decode")[0]
        attempt = Attempt(ref, first, second)
        if self.notes is not None:
            first_scope = self.notes.scopes.setdefault(ref, job.scope)
            if decode is not None and first_scope != job.scope:  # a reference in the hands of another
                self.notes.scopes[f"{ref}@{second.name}"] = job.scope
        if decode is not None:
            self._attempts[ref] = attempt
        request = Request(job.id, job.scope, job.tokens, self.plan.digest, steps=job.sampling.max_tokens)
        if prefill is not None:
            prefill.say(wire.Take(ref, request, second.name, job.sampling, refuse))
        if decode is not None:
            decode.say(wire.Take(ref, request, first.name, job.sampling))
        return attempt

    async def follow(self, attempt: Attempt) -> AsyncGenerator[Piece | Outcome]:
        """Give what comes of an attempt, its outcome last; let it go if nobody wants the rest."""
        over = False
        try:
            while not over:
                try:
                    async with asyncio.timeout(self.settings.answer_seconds):
                        item = await attempt.came.get()
                except TimeoutError:
                    yield TIMED_OUT
                    return
                over = not isinstance(item, Piece)
                yield item
        finally:
            self._attempts.pop(attempt.ref, None)
            if not over:
                self.let_go(attempt)

    def let_go(self, attempt: Attempt) -> None:
        """Abort an attempt on both sides."""
        attempt.prefill.say(wire.LetGo(attempt.ref))
        attempt.decode.say(wire.LetGo(attempt.ref))

    def fault(self, worker: Worker, fault: wire.Fault, *ranks: int) -> None:
        """In the lab: have ranks of a worker do a fault, all of them if none is named."""
        for rank in ranks or range(len(worker.links)):
            worker.links[rank].say(fault)

    # Looking at it

    async def change(self) -> None:
        """Wait until a worker has come up, died, or met another."""
        async with self._changed:
            await self._changed.wait()

    async def statuses(self, seconds: float = 1.0) -> dict[str, dict[int, wire.Status]]:
        """Ask every rank how it is; those that do not say so in time are left out."""
        asked = [worker for worker in self.workers.values() if worker.up]
        for worker in asked:
            worker.status = {}
            worker.say(wire.AskStatus())
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: all(len(one.status) == one.config.ranks for one in asked))
        except TimeoutError:
            pass
        return {worker.name: dict(worker.status) for worker in asked}
