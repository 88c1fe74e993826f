"""The life of one exchange, from the legs that were opened to the last byte for the client. No I/O, no clock.

Events go in as calls, commands come out as lists. A leg is a request to one worker: the *answer* leg's answer is for
the client (of decode, where prefill and decode are two), the *prefill* leg's is only judged.

What is promised with a prefill leg: no byte of the answer is let out before prefill has ended well and both roles have
said the same number of prompt tokens. On an engine that turns a refused prompt into a stub, prefill says 1
(SGLang to 0.5.19, `set_finish_with_abort`) and decode the prompt's length.

An exchange ends with exactly one of `Close`, `Break` and `Answer`, or with the client's leaving; each leg that runs
then is cancelled, once. Where the bytes of an answer were cut makes no difference.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kvfence.gateway import engine_error
from kvfence.gateway.commands import (
    ANSWER_AFTER_REFUSAL,
    COUNT_DIFFERS,
    LEGS_DIFFER,
    NO_USAGE,
    NOTHING_GENERATED,
    Answer,
    Break,
    Cancel,
    Close,
    Command,
    Forward,
    Kind,
    Leg,
    Open,
    Suspect,
)
from kvfence.gateway.events import DONE, EndlessError, OwnId, Splitter, content, without_usage
from kvfence.gateway.problem import CONTEXT_LENGTH, UPSTREAM_FAILED, UPSTREAM_TIMEOUT, WITHHELD, Problem
from kvfence.gateway.usage import Tally, Usage, read_usage

HELD_MOST: Final = 64 << 20
"""Bytes of an answer that are held back at most."""
PASSED_FROM: Final = 1 << 20
"""Bytes from which on a whole answer that need not be held back is let through as it comes."""
PREFILL_MOST: Final = 64 << 20
"""Bytes of prefill's answer, which nobody sees; the log probabilities of a long prompt make it as long as decode's."""

_PASSED: Final = frozenset((b"content-type", b"cache-control"))
_DONE_BEGINS: Final = b"data: [DONE]"
_CLOSE: Final = Close()
_RETRY_MOST: Final = 3600


class Terms(NamedTuple):
    """What an exchange is held to.

    Args:
        request_id: the gateway's own.
        param: the member of the body that holds the prompt.
        prefill: whether there is a prefill leg.
        withhold: whether suspicious answers are withheld.
        usage_added: whether the gateway asked for usage in every event.
        usage_total: whether the client asked for usage at the end.
        low: tokens of the prompts together, at least, by the gateway's own count.
        high: tokens of the prompts together, at most; nothing if that is not known.
        limit: length of the shortest prompt that a worker of this exchange refuses, where it is known.
        prompts: how many prompts the request has.
        samples: how many answers to each prompt it asks for (`n`).
        may_be_empty: whether it asks for no token at all, so that an answer without one is right.

    """

    request_id: bytes
    param: str | None
    prefill: bool
    withhold: bool = False
    usage_added: bool = False
    usage_total: bool = False
    low: int = 0
    high: int | None = None
    limit: int | None = None
    prompts: int = 1
    samples: int = 1
    may_be_empty: bool = False


class Exchange:
    """One exchange. When `over`, no event has an effect any more."""

    __slots__ = (
        "_answered", "_headers", "_held", "_id", "_passing", "_prefill", "_retry_after", "_running", "_said", "_status",
        "_stream", "_suspected", "_tally", "_terms", "_told_last", "_usage", "_withholding", "opened", "over",
    )  # fmt: skip

    def __init__(self, terms: Terms) -> None:
        self.over = False
        self.opened = False  # whether the client was sent a byte
        self._terms = terms
        self._withholding = terms.prefill or terms.withhold
        self._running = [Leg.ANSWER, Leg.PREFILL] if terms.prefill else [Leg.ANSWER]
        self._status = [0, 0]  # by leg
        self._headers: list[tuple[bytes, bytes]] = []
        self._retry_after: int | None = None
        self._id = OwnId(terms.request_id)
        self._stream: Splitter | None = None
        self._tally = Tally(terms.prompts, terms.samples)  # of a stream
        self._told_last = b""  # an event that may tell more, and was not read yet
        self._held = bytearray()
        self._passing = False  # whether the answer goes through as it comes
        self._said = bytearray()  # by prefill
        self._prefill: Usage | None = None  # once it has ended well
        self._usage: Usage | None = None  # of the answer
        self._answered = False
        self._suspected: set[Kind] = set()

    # Events

    def head(self, leg: Leg, status: int, headers: list[tuple[bytes, bytes]]) -> list[Command]:
        """Take the head of a leg's answer."""
        if self.over:
            return []
        self._status[leg] = status
        if leg is Leg.PREFILL:
            return []
        known = dict(headers)
        self._headers = [header for header in headers if header[0] in _PASSED]
        self._retry_after = _seconds(known.get(b"retry-after", b""))
        if known.get(b"content-encoding", b"identity").lower() != b"identity":
            return self._end(Problem(502, "the engine's answer is in an unknown coding", code=UPSTREAM_FAILED))
        if status == 200 and known.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            self._stream = Splitter()
        return []

    def data(self, leg: Leg, data: bytes) -> list[Command]:
        """Take a part of a leg's answer."""
        if self.over or not data:
            return []
        if leg is Leg.PREFILL:
            return self._prefill_says(data)
        self._answered = True
        if self._stream is None:
            return self._whole_says(data)
        try:
            events = self._stream.feed(data)
        except EndlessError:
            return self._end(Problem(502, "the engine sent an endless event", code=UPSTREAM_FAILED))
        return self._take(events)

    def ended(self, leg: Leg) -> list[Command]:
        """Take the end of a leg's answer."""
        self._ran(leg)
        if self.over:
            return []
        return self._prefill_ended() if leg is Leg.PREFILL else self._answer_ended()

    def failed(self, leg: Leg, why: str) -> list[Command]:
        """Take the failure of a leg: it could not be opened, broke off, or was no HTTP. `why` is for the log."""
        self._ran(leg)
        if self.over:
            return []
        del why
        role = "prefill" if leg is Leg.PREFILL else "decode" if self._terms.prefill else "engine"
        return self._end(Problem(502, f"the {role} worker did not finish the request", code=UPSTREAM_FAILED))

    def late(self, what: str) -> list[Command]:
        """Take the end of the client's, or the operator's, patience."""
        return [] if self.over else self._end(Problem(504, f"the engine took too long: {what}", code=UPSTREAM_TIMEOUT))

    def gone(self) -> list[Command]:
        """Take that the client has left."""
        if self.over:
            return []
        self.over = True
        return self._cancels()

    def stopped(self) -> list[Command]:
        """Take that the gateway must stop now."""
        return [] if self.over else self._end(Problem(503, "the gateway stops", code=UPSTREAM_FAILED, retry_after=1))

    # What prefill says

    def _prefill_says(self, data: bytes) -> list[Command]:
        self._said += data
        if len(self._said) > (PREFILL_MOST if self._status[Leg.PREFILL] == 200 else engine_error.READ_MOST):
            return self._end(Problem(502, "prefill's answer has no end", code=UPSTREAM_FAILED))
        return []

    def _prefill_ended(self) -> list[Command]:
        status = self._status[Leg.PREFILL]
        if status != 200:
            return self._prefill_refused(engine_error.translate(status, bytes(self._said), self._terms.param))
        if (problem := self._error_in(bytes(self._said))) is not None:
            return self._prefill_refused(problem)
        usage = read_usage(self._said, self._terms.samples)
        self._said.clear()
        if usage is None:
            return self._suspicious(NO_USAGE, "prefill told no usage")
        if usage.aborted:
            return self._prefill_refused(Problem(502, "the prefill worker gave the request up", code=UPSTREAM_FAILED))
        self._prefill = usage
        if Leg.ANSWER not in self._running:
            return self._settle()
        return [] if self._stream is None else self._settle_stream()

    def _prefill_refused(self, problem: Problem) -> list[Command]:
        suspicion: list[Command] = []
        if self._answered and self._status[Leg.ANSWER] == 200:
            detail = f"prefill said {self._status[Leg.PREFILL]}"
            suspicion.append(Suspect(ANSWER_AFTER_REFUSAL, detail, explained=problem.code == CONTEXT_LENGTH))
        return suspicion + self._end(problem)

    # What the answer says

    def _whole_says(self, data: bytes) -> list[Command]:
        """Take a part of an answer that is no stream."""
        if self._passing:
            return [Forward(data)]
        self._held += data
        if self._status[Leg.ANSWER] != 200:
            return self._failed() if len(self._held) > engine_error.READ_MOST else []
        if len(self._held) > PASSED_FROM and not self._withholding:
            return self._let_through(whole=False)
        return self._bounded()

    def _answer_ended(self) -> list[Command]:
        if self._status[Leg.ANSWER] != 200:
            return self._failed()
        commands: list[Command] = []
        if self._stream is not None:
            if rest := self._stream.rest():
                commands = self._take([rest])
        elif not self._passing and (problem := self._error_in(bytes(self._held))) is not None:
            return self._end(problem)
        return commands if self.over else commands + self._settle()

    def _take(self, events: list[bytes]) -> list[Command]:
        """Go through the events of a stream."""
        commands: list[Command] = []
        out: list[bytes] = []
        for whole in events:
            event = whole
            if _may_fail(event) and (problem := self._error_in(content(event))) is not None:
                return commands + _forward(out) + self._end(problem)
            if event.find(b'"prompt_tokens"') >= 0:
                self._note(event)
            event = self._id.put(event)
            if self._terms.usage_added:
                event = without_usage(event, keep_total=self._terms.usage_total)
            if self._passing:
                if self._withholding and event.startswith(_DONE_BEGINS):
                    commands += _forward(out) + self._last_word()
                    out = []
                    if self.over:
                        return commands
                out.append(event)
                continue
            self._held += event
            commands += self._bounded() or self._settle_stream()
            if self.over:
                return commands
        return commands + _forward(out) if commands else _forward(out)

    def _last_word(self) -> list[Command]:
        """Judge a stream before its last event goes out: behind that one, no error would be read."""
        self._usage = self._told()
        return self._judge(whole=True)

    def _note(self, event: bytes) -> None:
        """Keep what an event tells of tokens: of a stream that is let through only the last word counts."""
        if self._passing:
            self._told_last = event
        else:
            self._tally.add(content(event))

    def _settle_stream(self) -> list[Command]:
        """Begin to let a stream through, if that is due."""
        if self._withholding and (not self._held or self._tally.usage() is None):
            return []
        return self._settle()

    def _failed(self) -> list[Command]:
        """End with the error that the answer is."""
        status = self._status[Leg.ANSWER]
        return self._end(engine_error.translate(status, bytes(self._held), self._terms.param, self._retry_after))

    def _error_in(self, told: bytes) -> Problem | None:
        """Give the error that an answer of status 200, or an event, says."""
        return engine_error.in_answer(told, self._terms.param) if _may_fail(told) else None

    def _told(self) -> Usage | None:
        """Give what a stream has told so far."""
        if self._told_last:
            self._tally.add(content(self._told_last))
            self._told_last = b""
        return self._tally.usage()

    # What they come to

    def _settle(self) -> list[Command]:
        """Judge an answer that prefill, if there is one, has said its word on; and let it out."""
        if self._terms.prefill and self._prefill is None:
            return []
        whole = Leg.ANSWER not in self._running
        if self._stream is not None:
            self._usage = self._told()
        elif not self._passing:
            self._usage = read_usage(self._held, self._terms.samples)
        commands = self._judge(whole=whole)
        if self.over:
            return commands
        if not self._passing:
            commands += self._let_through(whole=whole)
        if whole:
            self.over = True
            commands += [*self._cancels(), _CLOSE]
        return commands

    def _judge(self, *, whole: bool) -> list[Command]:
        """Compare what is known of the prompt: by prefill, by decode, by the gateway."""
        usage, terms = self._usage, self._terms
        if usage is None:
            return self._suspicious(NO_USAGE, "the answer told no usage") if self._withholding and whole else []
        if self._prefill is not None and usage.prompt != self._prefill.prompt:
            return self._differ(usage.prompt, self._prefill.prompt)
        if usage.prompt < terms.low or (terms.high is not None and usage.prompt > terms.high):
            counted = str(terms.low) if terms.low == terms.high else f"{terms.low} to {terms.high or 'any number'}"
            return self._suspicious(COUNT_DIFFERS, f"the engine said {usage.prompt}, the gateway counted {counted}")
        if whole and usage.completion == 0 and not usage.aborted and not terms.may_be_empty:
            return self._suspicious(NOTHING_GENERATED, "the engine said 0 tokens")
        return []

    def _differ(self, decode: int, prefill: int) -> list[Command]:
        """Withhold an answer on whose prompt the roles do not agree; no choice of the operator lets it out."""
        limit = self._terms.limit if self._terms.prompts == 1 else None
        detail = f"prefill said {prefill}, decode {decode}"
        if limit is None or decode < limit:
            message = "prefill and decode do not agree on the prompt, and the answer is withheld"
            return [Suspect(LEGS_DIFFER, detail), *self._end(Problem(502, message, code=WITHHELD))]
        message = f"the prompt has {decode} tokens, and at most {limit - 1} fit"
        problem = Problem(400, message, param=self._terms.param, code=CONTEXT_LENGTH)
        return [Suspect(LEGS_DIFFER, detail, explained=True), *self._end(problem)]

    def _suspicious(self, kind: Kind, detail: str) -> list[Command]:
        told: list[Command] = [Suspect(kind, detail)] if kind not in self._suspected else []
        self._suspected.add(kind)
        if not self._withholding or (not self._terms.withhold and kind is not NO_USAGE):
            return told
        return told + self._end(Problem(502, f"the answer is withheld: {kind.meaning}", code=WITHHELD))

    # How it ends

    def _let_through(self, *, whole: bool) -> list[Command]:
        self._passing = self.opened = True
        held = bytes(self._held)
        self._held.clear()
        length = None
        if self._stream is None:
            held = self._id.put_whole(held)
            length = len(held) if whole else None
        return [Open(200, self._headers, length), *_forward([held])]

    def _end(self, problem: Problem) -> list[Command]:
        """End with an error: as the answer, or as the last event of a stream that had begun."""
        self.over = True
        self._held.clear()
        self._said.clear()
        cancels = self._cancels()
        if not self.opened:
            return [*cancels, Answer(problem)]
        if self._stream is not None:
            return [*cancels, Forward(problem.event() + DONE), _CLOSE]
        return [*cancels, Break()]

    def _cancels(self) -> list[Command]:
        running, self._running = self._running, []
        return [Cancel(leg) for leg in running]

    def _ran(self, leg: Leg) -> None:
        if leg in self._running:
            self._running.remove(leg)

    def _bounded(self) -> list[Command]:
        if len(self._held) <= HELD_MOST:
            return []
        return self._end(Problem(502, "the answer is too long to be held back", code=UPSTREAM_FAILED))


def _may_fail(told: bytes) -> bool:
    """Tell whether an answer, or an event, may say an error. On bytes, `in` takes thrice the time of `find`."""
    return told.find(b'"error"') >= 0 or told.find(b'"abort"') >= 0


def _forward(parts: list[bytes]) -> list[Command]:
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return [Forward(data)] if data else []


def _seconds(value: bytes) -> int | None:
    """Read a `Retry-After`; one that says a date is left out."""
    seconds = int(value) if value.isdigit() and len(value) <= 5 else None
    return min(seconds, _RETRY_MOST) if seconds is not None else None
