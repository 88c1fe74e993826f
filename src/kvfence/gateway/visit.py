"""One request at the door: cleaned, judged, and given to workers; or refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

import msgspec

from kvfence.counting.asked import Asked, BadRequestError, read
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.gateway import orders
from kvfence.gateway.backends import Choice
from kvfence.gateway.commands import Leg, Suspect
from kvfence.gateway.exchange import Terms
from kvfence.gateway.fleet.choose import Lack
from kvfence.gateway.http.client import Client
from kvfence.gateway.http.request import Request
from kvfence.gateway.hygiene import RefusedFieldError
from kvfence.gateway.judgement import PARAMS, UNKNOWN, Go, Length, Refuse, judge, limit_unknown, over_length
from kvfence.gateway.problem import CONTEXT_LENGTH, NO_WORKER, Problem
from kvfence.gateway.relay import Attempt, Relay

if TYPE_CHECKING:
    from kvfence.gateway.door import Door

_ATTEMPTS: Final = 3
_LARGE: Final = 256 << 10  # bytes of a body above which others get a turn between the steps: each takes 1 ms a megabyte
_WAIT: Final = 0.5  # seconds that a request waits for a worker that is being read again
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Visit:
    """A request, from the moment that it is whole to its end. It is in the door's `visits` as long."""

    def __init__(self, door: Door, client: Client, request: Request, path: str, engine: str) -> None:
        self.id = orders.new_id()
        self._door = door
        self._client = client
        self._request = request
        self._path = path
        self._engine = engine
        self._pd = door.settings.pd
        self._began = time.monotonic()
        self._relay: Relay | None = None
        self._task: asyncio.Task[None] | None = None
        self._choice: Choice | None = None
        self._asked: Asked | None = None
        self._fields: dict[str, msgspec.Raw] = {}
        self._length = UNKNOWN
        self._standing = door.standing()
        self._adds_usage = False  # whether the engine is asked for more usage than the client
        self._tried = 0

    # From the body to a decision

    def begin(self) -> None:
        """Judge the request as far as that goes at once, and go on by itself where it does not."""
        self._door.visits.add(self)
        if len(self._request.body) > _LARGE:
            self._run(self._begin_in_turns)
            return
        try:
            for step in self._steps:
                step()
        except Exception as error:  # noqa: BLE001 (as `_guarded`)
            self._fail(error)

    async def _begin_in_turns(self) -> None:
        """Do the same with a large body, and let others have their turn in between."""
        for step in self._steps:
            step()
            await asyncio.sleep(0)

    @property
    def _steps(self) -> tuple[Callable[[], None], ...]:
        return self._decode, self._clean, self._understand, self._bound

    def _decode(self) -> None:
        """Read the members of the body, each undecoded."""
        for name, value in self._request.headers:
            if name == b"content-encoding" and value.lower() != b"identity":
                raise MalformedBodyError(415, "a body in a content coding is not taken")
        try:
            self._fields = _fields.decode(self._request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise MalformedBodyError(400, "the body must be a JSON object") from None

    def _clean(self) -> None:
        """Leave out what a client may not say."""
        cleaned = self._door.hygiene(self._engine).clean(self._fields, tenant=self._tenant(), pd=self._pd)
        for name in cleaned.stripped:
            self._door.tally.add("stripped", name)
        self._fields = cleaned.fields

    def _understand(self) -> None:
        """Read what is asked for."""
        self._asked = asked = read(self._engine, self._path, self._fields)
        held = self._pd or self._door.settings.on_suspicion == "refuse"
        if len(asked.prompts) > 1 and asked.stream and held:
            raise BadRequestError("several prompts are not answered in one stream here", PARAMS.get(self._path))
        self._adds_usage = orders.adds_usage(asked, self._fields, held=held)

    def _bound(self) -> None:
        if self._standing.budget.limit is None and not self._standing.passes_unknown:
            self._run(self._wait_for_limit)
        else:
            self._judge(self._door.counter.bound(self._given), counted=False)

    async def _wait_for_limit(self) -> None:
        """Wait a moment for a limit: a worker whose connection broke is being read again."""
        end = time.monotonic() + _WAIT
        while self._door.standing().budget.limit is None and (left := end - time.monotonic()) > 0:
            await self._door.backends.changed(left)
        self._standing = self._door.standing()
        if self in self._door.visits:
            self._judge(self._door.counter.bound(self._given), counted=False)

    def _tenant(self) -> str | None:
        header = self._door.settings.tenant_header
        if header is None:
            return None
        name = header.lower().encode()
        values = [value for known, value in self._request.headers if known == name]
        if len(values) > 1:
            raise MalformedBodyError(400, f"the header {header} comes more than once")
        return values[0].decode("latin-1") if values else None

    def _judge(self, length: Length, *, counted: bool) -> None:
        """Decide, or have the prompt counted."""
        self._length = length
        verdict = judge(self._given, length, self._standing, counted=counted)
        if isinstance(verdict, Go):
            self._go(verdict.tokens)
        elif isinstance(verdict, Refuse):
            if verdict.problem.code == CONTEXT_LENGTH:
                self._door.tally.add("over_length")
            self._refuse(verdict.problem)
        else:
            self._run(self._count)

    async def _count(self) -> None:
        length = await self._door.counter.exact(self._given, self._standing.budget.limit or 0)
        if self in self._door.visits:
            self._judge(length, counted=True)

    def _run(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Go on in a task; what nobody expected is answered, and told, as any other end."""
        self._task = asyncio.get_running_loop().create_task(self._guarded(work))

    async def _guarded(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()  # made here: a task that is cancelled before it begins leaves none behind
        except Exception as error:  # noqa: BLE001 (a client must not wait for ever for what failed here)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Answer what the client did wrong, or a fault of the gateway's own."""
        if isinstance(error, BadRequestError | RefusedFieldError | MalformedBodyError):
            self._refuse(_problem(error))
            return
        self._door.log("error", f"{self.id}: internal error: {type(error).__name__}")
        if self not in self._door.visits:
            return
        if self._relay is None:
            self._refuse(Problem(500, "the gateway failed; this is a fault of kvfence"))
        else:
            self._relay.stop()

    # From the decision to the workers

    def _go(self, tokens: int | None) -> None:
        """Send the request to workers that can hold a number of tokens."""
        door = self._door
        door.tally.add("decisions", self._length.how)
        door.tally.took("decision_seconds", time.monotonic() - self._began)
        attempt = self._attempt(tokens)
        if attempt is None:
            self._run(lambda: self._wait(tokens))
            return
        self._send(attempt, tokens)

    async def _wait(self, tokens: int | None) -> None:
        """Wait a moment for a worker that is being read again."""
        end = time.monotonic() + _WAIT
        while (left := end - time.monotonic()) > 0 and self in self._door.visits:
            lack = self._door.backends.lack(tokens)
            if lack in (Lack.TOO_LONG, Lack.QUARANTINED) or not await self._door.backends.changed(left):
                break
            attempt = self._attempt(tokens)
            if attempt is not None:
                self._send(attempt, tokens)
                return
        if self in self._door.visits:
            self._refuse(self._lacking(tokens))

    def _lacking(self, tokens: int | None) -> Problem:
        lack = self._door.backends.lack(tokens)
        limit = self._door.backends.limit()
        if lack is Lack.TOO_LONG and limit is not None and self._length.low >= limit:
            return over_length(self._given, self._length, limit)
        if lack is Lack.LIMIT_UNKNOWN:
            return limit_unknown(None)
        return Problem(503, str(lack or Lack.DOWN), code=NO_WORKER, retry_after=1)

    def _send(self, attempt: Attempt, tokens: int | None) -> None:
        settings, asked, length = self._door.settings, self._given, self._length
        terms = Terms(
            self.id.encode(),
            PARAMS.get(self._path),
            prefill=self._pd,
            withhold=settings.on_suspicion == "refuse",
            usage_added=self._adds_usage,
            usage_total=asked.include_usage,
            low=length.total_low,
            high=length.total_high,
            limit=self._standing.budget.limit,
            prompts=len(asked.prompts),
            samples=asked.n,
            may_be_empty=asked.answer_tokens == 0,
        )
        self._relay = Relay(self._client, terms, self, idle=settings.idle, total=settings.total)
        if self._client.blocked:
            self._relay.pause()
        if not self._relay.start(attempt):
            waiting: list[Attempt] = [attempt]
            self._relay.open(lambda: waiting.pop() if waiting else self._attempt(tokens))

    @property
    def _given(self) -> Asked:
        assert self._asked is not None  # it was read first
        return self._asked

    def _attempt(self, tokens: int | None) -> Attempt | None:
        """Choose workers, and write what each is sent."""
        if self._tried == _ATTEMPTS:
            return None
        choice = self._door.backends.choose(tokens)
        self._take(choice)
        if choice is None:
            return None
        self._tried += 1
        headers = self._door.hygiene(self._engine).headers(self._request.headers, self.id.encode())
        single = len(self._given.prompts) == 1
        own = {"rid": self.id} if self._engine == SGLANG and single else {}
        bodies = self._bodies(choice, own)
        return choice.attempt(self._path.encode(), headers, bodies)

    def _bodies(self, choice: Choice, own: dict[str, str]) -> dict[Leg, list[bytes]]:
        asked = self._given
        if choice.prefill is None:
            return {Leg.ANSWER: orders.plain_body(self._fields, own, usage=self._adds_usage)}
        handoff = orders.new_handoff(choice.prefill.spec.host, choice.prefill.bootstrap_port, len(asked.prompts) or 1)
        prefill, answer = orders.pair_bodies(
            self._fields, own, handoff, batch=len(asked.prompts) > 1, stream=asked.stream, usage=self._adds_usage
        )
        return {Leg.PREFILL: prefill, Leg.ANSWER: answer}

    def _take(self, choice: Choice | None) -> None:
        """Count what runs on the workers."""
        if self._choice is not None:
            self._choice.ended()
        self._choice = choice
        if choice is not None:
            choice.began()

    # What the relay tells

    def suspect(self, suspicion: Suspect) -> None:
        """Count, log, and take out of service what is under suspicion."""
        door, kind = self._door, suspicion.kind
        name = self._choice.name if self._choice is not None else "?"
        door.tally.add("suspicions", kind.name, "yes" if suspicion.explained else "no")
        door.log("warning", f"{self.id}: {kind.name} on {name}: {kind.meaning} ({suspicion.detail})")
        if not suspicion.explained and door.settings.on_suspicion == "refuse" and self._choice is not None:
            door.backends.quarantine(self._choice, f"{kind.name}: {suspicion.detail}")

    def cancelled(self, leg: Leg) -> None:
        """Tell a worker that its leg was ended."""
        if self._choice is None:
            return
        worker = self._choice.worker(leg)
        self._door.tally.add("cancelled", worker.name)
        if self._engine == SGLANG and len(self._given.prompts) == 1:
            self._door.backends.abort(worker, self.id)

    def broke(self, leg: Leg, why: str) -> None:
        """Note that a worker failed."""
        if self._choice is None:
            return
        worker = self._choice.worker(leg)
        worker.failures += 1
        self._door.tally.add("leg_failures", worker.name)
        self._door.log("warning", f"{self.id}: {worker.name}: {why}")
        self._door.backends.lost(worker)

    def opened(self) -> None:
        """Note how long the first byte took."""
        self._door.tally.took("first_byte_seconds", time.monotonic() - self._began)

    def over(self, status: int, code: str | None) -> None:
        """Note the end; a worker that does not know the path may have become another."""
        if status == 404 and self._choice is not None:
            self._door.backends.suspect(self._choice.answer)
        self._ended(status, code)

    # What the client's connection and the server call

    def gone(self) -> None:
        """Take that the client has left."""
        if self._relay is not None:
            self._relay.gone()
        else:
            self._ended(499, None)

    def pause(self) -> None:
        """Take that the client does not read for now."""
        if self._relay is not None:
            self._relay.pause()

    def resume(self) -> None:
        """Take that it reads again."""
        if self._relay is not None:
            self._relay.resume()

    def sweep(self, now: float) -> None:
        """Keep time."""
        if self._relay is not None:
            self._relay.sweep(now)

    def stop(self) -> None:
        """End it now."""
        if self._relay is not None:
            self._relay.stop()
        else:
            self._refuse(Problem(503, "the gateway stops", code=NO_WORKER, retry_after=1))

    # How it ends

    def _refuse(self, problem: Problem) -> None:
        if problem.code == "field_refused" and problem.param is not None:
            self._door.tally.add("field_refused", problem.param)
        self._ended(problem.status, problem.code)
        self._client.refuse(problem, self.id.encode())

    def _ended(self, status: int, code: str | None) -> None:
        self._door.visits.discard(self)
        self._take(None)
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._door.tally.add("requests", self._path, str(status), code or "")


class MalformedBodyError(Exception):
    """A body, or a header that goes with it, cannot be taken at all."""

    def __init__(self, status: int, message: str) -> None:
        self.problem = Problem(status, message)
        super().__init__(message)


def _problem(error: BadRequestError | RefusedFieldError | MalformedBodyError) -> Problem:
    if isinstance(error, MalformedBodyError):
        return error.problem
    if isinstance(error, RefusedFieldError):
        return error.problem()
    return Problem(400, error.message, param=error.param)
