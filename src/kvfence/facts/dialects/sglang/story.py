"""Read SGLang's log lines as the story of one or more workers, start by start.

A file may hold several workers (told apart by what a collector put before each line), and each may
have started several times. The last start is judged; what happened to requests in any start counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from kvfence.facts import keys
from kvfence.facts.command import split_command
from kvfence.facts.dialects.sglang import arguments, guards, lines, starts
from kvfence.facts.dialects.sglang.answers import FOLLOWED_LINES, AnswerSearch
from kvfence.facts.dialects.sglang.finish import read_finish
from kvfence.facts.dialects.sglang.lines import FORMS, Form, Says
from kvfence.facts.dialects.sglang.start import Pool, Start, mark_engine, new_start
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.happenings import Refusal, Truncation, Wait
from kvfence.facts.model import DECODE, PREFILL, Sighting
from kvfence.facts.prefix import Peeled, Ranks, peel
from kvfence.facts.redact import clean, clean_id
from kvfence.facts.scan import Line

OPENING_LINES = 400
PARTIAL_BYTES = 256 << 10


class LogStory:
    """Takes the interesting lines of one log file, and gives what they say of each worker.

    Args:
        source: the file's name.
        name: the worker's name if the lines name none.
        group: where to look for other sources of the same worker.
        follow: asks for the lines after the current one.

    """

    def __init__(self, source: str, name: str, group: str, follow: Callable[[int], None]) -> None:
        self._source, self._name, self._group, self._follow = source, name, group, follow
        self._streams: dict[str, _Stream] = {}
        self._partial: dict[str, tuple[int, Peeled, str]] = {}
        # Lines without a needle are looked at up to here: batches after a start, what may answer a refusal.
        self._sampled_until = OPENING_LINES
        self._placeholder_until = 0
        follow(OPENING_LINES)

    def feed(self, line: Line) -> None:
        """Take a line."""
        peeled = peel(line.text)
        number, joined = line.number, False
        if peeled.stream in self._partial:
            number, first, text = self._partial.pop(peeled.stream)
            partial, rest = peeled.partial, peeled.message
            peeled = replace(first, message=(text + rest)[:PARTIAL_BYTES], partial=partial)
            joined = True
        if peeled.partial:
            self._partial[peeled.stream] = (number, peeled, peeled.message)
            self._follow(FOLLOWED_LINES)
            return
        stream = self._streams.get(peeled.stream)
        if stream is None:
            stream = self._streams[peeled.stream] = _Stream(
                self._source, clean_id(peeled.stream) or self._name, self._group, self._follow
            )
        forms = FORMS if joined else [FORMS[index] for index in line.needles]
        if any(form.says is Says.READY for form in forms):
            self._sampled_until = number + OPENING_LINES
        stream.take(number, peeled, forms)

    def wants(self, number: int, line: bytes) -> bool:
        """Tell by a glance whether a line that was only asked for can matter: most of a busy log cannot."""
        if self._partial:
            return True
        if number <= self._sampled_until:
            return b" batch" in line or b"POST /" in line
        sizes = lines.BATCH_SIZES.search(line)
        if sizes is not None:
            placeholder = int(sizes[2]) <= int(sizes[1])
            if placeholder:
                self._placeholder_until = number + FOLLOWED_LINES
            return placeholder
        return number <= self._placeholder_until and b"POST /" in line

    def finish(self) -> list[Sighting]:
        """Give what was seen of each worker."""
        if len(self._streams) > 1 and "" in self._streams and not self._streams[""].begun:
            del self._streams[""]  # stray lines of a file in which every worker's lines are marked
        told = [sighting for stream in self._streams.values() for sighting in stream.finish()]
        return [sighting for sighting in told if sighting.facts or sighting.happenings]


class _Stream:
    """The lines of one worker."""

    def __init__(self, source: str, name: str, group: str, follow: Callable[[int], None]) -> None:
        self._source, self._name, self._group, self._follow = source, name, group, follow
        self._starts = [new_start(source, name, group)]
        self._answers = AnswerSearch()
        self._peak = -1.0

    @property
    def _now(self) -> Start:
        return self._starts[-1]

    @property
    def begun(self) -> bool:
        """Whether anything was read that makes a worker of these lines."""
        return any(start.begun or start.serving for start in self._starts)

    def take(self, number: int, peeled: Peeled, forms: Iterable[Form]) -> None:
        """Take a line of this worker."""
        time = _time(peeled.time)
        message = peeled.message
        taken = False
        for form in forms:
            match = form.shape.search(message)
            if match is None or (time is None and form.says in _STAMPED) or _quoted(peeled, match):
                continue
            # What a request log says of a request holds its prompt: never quoted, only what is drawn from it.
            quoted = "Finish: obj=…" if form.says is Says.FINISH else clean(match[0])
            evidence = Evidence(self._source, quoted, number)
            if form.wording is not None:
                self._now.wordings.setdefault(form.wording, evidence)
            _HANDLERS[form.says](self, match, evidence, time, peeled.ranks)
            if form.says not in _ANY_SERVER:
                mark_engine(self._now, evidence)
            taken = True
        if not taken and ("batch" in message or "POST /" in message):
            self._look_around(peeled, time, number)
        if time is not None:
            start = self._now
            start.first = start.first or time
            start.last = time

    def finish(self) -> list[Sighting]:
        """Draw each start together; several starts of one worker become one sighting."""
        self._settle_answers()
        for start in self._starts:
            start.finish()
            ran = start.version()
            happened = start.sighting.happenings
            release, guarded = ran.value if ran else None, guards.turns_away(start.sighting)
            happened.refusals = [replace(r, release=release, guarded=guarded) for r in happened.refusals]
            happened.watched = happened.watched or bool(happened)
        begun = [start for start in self._starts if start.begun] or self._starts[-1:]
        if starts.interleaved(begun):
            return [self._unattributable(begun)]
        stray = [start for start in self._starts if start not in begun]
        workers = starts.apart(begun)
        if len(workers) == 1:
            return [self._judge(begun, self._name, stray)]
        first, *others = workers
        told = [self._judge(first, f"{self._name} ({starts.identity(first)})", stray)]
        told += [self._judge(other, f"{self._name} ({starts.identity(other)})", []) for other in others]
        starts.share_by_role(told)
        return told

    def _judge(self, begun: list[Start], name: str, stray: list[Start]) -> Sighting:
        last = begun[-1].sighting
        last.name = name
        last.began = begun[-1].first if begun[-1].begun else None
        earlier = [start for start in (*stray, *begun[:-1]) if start is not begun[-1]]
        last.resized = starts.resized(begun[-1], earlier)
        if len(begun) > 1:
            last.notes.append(
                f"{self._source}: {len(begun)} starts of {name}; the last one is judged" + starts.changed(begun)
            )
        last.happenings = last.happenings.join(start.sighting.happenings for start in earlier)
        last.notes += [note for start in earlier for note in start.sighting.notes]
        last.secrets_shown += [fact for start in earlier for fact in start.sighting.secrets_shown]
        return last

    def _unattributable(self, begun: list[Start]) -> Sighting:
        """Give up telling two workers apart whose lines are mixed without a mark."""
        mixed = Sighting(self._source, begun[0].sighting.kind, self._name, self._group)
        engine = begun[0].sighting.get(keys.ENGINE)
        if engine is not None:
            mixed.put(keys.ENGINE, engine)
        mixed.happenings = mixed.happenings.join(start.sighting.happenings for start in begun)
        mixed.notes.append(
            f"{self._source}: {len(begun)} servers write into this log at the same time and nothing tells their lines "
            "apart; give one log a worker, or one with a prefix a worker"
        )
        return mixed

    # What each kind of line does.

    def on_dump(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        dump = arguments.read_dump(match["dump"])
        if dump is None:
            return
        if self._now.begun or self._now.serving:
            self._begin()
        self._now.dump, self._now.dump_line = dump, evidence

        def cite(name: str, value: object) -> Evidence:
            return Evidence(self._source, clean(f"{name}={value!r}"), evidence.line)

        arguments.put_fields(self._now.sighting, dump.fields, cite)
        self._now.sighting.environment.source = self._source
        if not dump.complete:
            why = "is an excerpt" if match["dump"].rstrip().endswith((")", "}")) else "is cut off"
            self._now.sighting.notes.append(
                f"{evidence.place}: the server_args= line {why}; what it lacks says nothing"
            )

    def on_command(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        read = arguments.read_flags(split_command(match["flags"]))
        if not read.fields:
            return
        if self._now.begun or self._now.serving:
            self._begin()
        self._now.command = evidence

        def cite(name: str, value: object) -> Evidence:
            return Evidence(self._source, clean(f"{arguments.flag_of(name)} {value}"), evidence.line)

        arguments.put_fields(self._now.sighting, read.fields, cite)

    def on_summary(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, ranks: Ranks) -> None:
        rank = _data_rank(ranks)
        if self._now.serving and not self._now.begun:  # the first lines belong to an earlier start
            self._begin()
        if rank in self._now.summaries and self._now.summaries[rank][0] != int(match["pool"]):
            known = self._now
            self._begin()
            if known.dump is not None:  # the arguments may be those of either; both are kept
                self._now.sighting.facts = dict(known.sighting.facts)
                self._now.dump, self._now.dump_line = known.dump, known.dump_line
        start = self._now
        start.summaries[rank] = (int(match["pool"]), evidence)
        start.sighting.put(keys.CONTEXT_LEN, Fact(int(match["context"]), (evidence,)))
        if match["running"] is not None:
            start.sighting.put(keys.MAX_RUNNING, Fact(int(match["running"]), (evidence,)))
            start.wordings.setdefault("summary-memory" if match["memory"] else "summary-plain", evidence)

    def on_pool(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, ranks: Ranks) -> None:
        if match["kind"] != "is allocated":
            self._now.wordings.setdefault("alloc-upper-bound", evidence)
            return
        sizes = [float(size) for size in match.groups()[-3:] if size is not None]
        self._now.pools.setdefault(ranks, []).append(Pool(int(match["tokens"]), sum(sizes), evidence))
        if match["dtype"] is None:
            if " size" in match[0]:  # the wording as SGLang prints it, not as someone retold it
                self._now.wordings.setdefault("alloc-plain", evidence)
        else:
            self._now.wordings.setdefault("alloc-dtype", evidence)
            self.on_dtype(match, evidence, _time, ranks)

    def on_dtype(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        self._now.sighting.put(keys.POOL_DTYPE, Fact(match["dtype"].removeprefix("torch."), (evidence,)))

    def on_pool_holds(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        known = self._now.sighting.get(keys.POOL_TOKENS)
        if known is None or known.value >= int(match["pool"]):
            self._now.sighting.put(keys.POOL_TOKENS, Fact(int(match["pool"]), (evidence,)))
        self._now.sighting.put(keys.CONTEXT_LEN, Fact(int(match["context"]), (evidence,)))

    def on_sliding(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, ranks: Ranks) -> None:
        full = int(match["full"]) if match["full"] is not None else None
        self._now.sliding[ranks] = (full, int(match["swa"]), evidence)
        self._now.wordings.setdefault("swa-capital" if match["capital"] == "S" else "swa-lower", evidence)

    def on_weights(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        if self._now.sighting.get(keys.ARCHITECTURE) is None:  # the first is the model, a second its draft
            self._now.sighting.put(keys.ARCHITECTURE, Fact(match["type"], (evidence,)))
        wording = (
            ("weights-elapsed-dtype" if match["dtype"] else "weights-elapsed") if match["elapsed"] else "weights-plain"
        )
        self._now.wordings.setdefault(wording, evidence)

    def on_post_capture(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, ranks: Ranks) -> None:
        self._now.sighting.put(keys.POST_CAPTURE, Fact(True, (evidence,)))
        if match["full"] is not None and int(match["swa"]) > 0:
            self._now.sliding[ranks] = (int(match["full"]), int(match["swa"]), evidence)

    def on_decode_role(self, _match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        if self._now.begun and self._now.sighting.get(keys.STARTED) is not None:
            self._begin()
        self._role(DECODE, evidence)

    def on_bootstrap(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        self._role(PREFILL, evidence)
        self._now.sighting.put(keys.BOOTSTRAP_HOST, Fact(match["host"], (evidence,)))
        self._now.sighting.put(keys.BOOTSTRAP_PORT, Fact(int(match["port"]), (evidence,)))

    def on_listening(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        self._now.sighting.put(keys.HOST, Fact(match["host"], (evidence,)))
        self._now.sighting.put(keys.PORT, Fact(int(match["port"]), (evidence,)))

    def on_ready(self, _match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        self._now.sighting.put(keys.STARTED, Fact(True, (evidence,)))
        self._follow(OPENING_LINES)

    def on_stopped(self, _match: re.Match[str], _evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        self._now.stopped = True

    def on_guards(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        guards.put_from_line(self._now.sighting, match, evidence)

    def on_refused_start(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        self._now.sighting.put(keys.START_REFUSED, Fact(match["why"], (evidence,)))

    def on_wording(self, _match: re.Match[str], _evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        """Prove a release by the line's mere presence."""

    def on_refusal(self, match: re.Match[str], evidence: Evidence, time: datetime | None, ranks: Ranks) -> None:
        self._now.serving = True
        if match["told"] is not None:  # by the HTTP server, to the client
            self._answers.told(int(match["tokens"]), int(match["limit"]), evidence)
            return
        refusal = Refusal(int(match["tokens"]), int(match["limit"]), clean_id(match["rid"]), time, evidence)
        if match["rid"] is not None:
            self._now.wordings.setdefault("refusal-rid", evidence)
        self._answers.refused(refusal, ranks)
        self._follow(FOLLOWED_LINES)

    def on_truncated(self, match: re.Match[str], evidence: Evidence, time: datetime | None, _ranks: Ranks) -> None:
        happened = self._now.sighting.happenings
        self._now.serving = True
        record = Truncation(int(match["tokens"]), int(match["limit"]), time, evidence)
        happened.keep(happened.truncations, record)

    def on_wait(self, match: re.Match[str], evidence: Evidence, time: datetime | None, _ranks: Ranks) -> None:
        self._now.serving = True
        self._role(DECODE, evidence)
        seconds = float(match["seconds"]) if match["seconds"] is not None else None
        happened = self._now.sighting.happenings
        happened.keep(happened.waits, Wait(clean_id(match["rid"]), match["room"], seconds, time, evidence))

    def on_finished(self, match: re.Match[str], evidence: Evidence, time: datetime | None, _ranks: Ranks) -> None:
        finish = read_finish(match["rest"], time, self._source, evidence.line)
        if finish is not None:
            self._now.serving = True
            happened = self._now.sighting.happenings
            happened.keep(happened.finishes, finish)

    def on_full(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        self._usage(float(match["usage"]), evidence)

    def on_retracted(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        known = self._now.sighting.get(keys.RETRACTIONS)
        count = int(match["count"]) + (known.value if known is not None else 0)
        first = known.evidence if known is not None and known.value else (evidence,)
        self._now.sighting.put(keys.RETRACTIONS, Fact(count, first))

    def on_canary(self, match: re.Match[str], evidence: Evidence, _time: datetime | None, _ranks: Ranks) -> None:
        if match["role"] in (PREFILL, DECODE):
            self._role(match["role"], evidence)

    # What they share.

    def _look_around(self, peeled: Peeled, time: datetime | None, number: int) -> None:
        """Look at a line that was asked for: a batch or an access line."""
        message = peeled.message
        match = lines.BATCH.search(message) or lines.ACCESS.search(message)
        if match is None or _quoted(peeled, match):
            return
        evidence = Evidence(self._source, clean(message[match.start() :]), number)
        if match.re is lines.BATCH:
            mark_engine(self._now, evidence)
            self._now.serving = self._now.sighting.happenings.watched = True
            self._batch(match, message, evidence)
        self._answers.look_at(message, time, evidence)

    def _batch(self, batch: re.Match[str], message: str, evidence: Evidence) -> None:
        if batch["kind"] == "Decode" and "pre-allocated usage" in message:
            self._role(DECODE, evidence)
        elif batch["kind"] == "Prefill" and re.search(r"#(?:inflight|unbootstrapped|transferring)-req", message):
            self._role(PREFILL, evidence)
        for usage in lines.USAGE.findall(message):
            self._usage(float(usage), evidence)
        retracted = lines.RETRACTED_NOW.search(message)
        if retracted is not None and self._now.sighting.get(keys.RETRACTIONS) is None:
            self._now.sighting.put(keys.RETRACTIONS, Fact(int(retracted["count"]), (evidence,)))

    def _usage(self, usage: float, evidence: Evidence) -> None:
        if usage > self._peak:
            self._peak = usage
            self._now.sighting.put(keys.PEAK_USAGE, Fact(usage, (evidence,)))

    def _role(self, role: str, evidence: Evidence) -> None:
        if self._now.sighting.get(keys.ROLE) is None:
            self._now.sighting.put(keys.ROLE, Fact(role, (evidence,)))

    def _begin(self) -> None:
        self._settle_answers()
        self._starts.append(new_start(self._source, self._name, self._group))
        self._peak = -1.0

    def _settle_answers(self) -> None:
        happened = self._now.sighting.happenings
        for refusal in self._answers.close():
            happened.keep(happened.refusals, refusal)
        self._answers = AnswerSearch()


# Every program that is served by uvicorn prints these.
_ANY_SERVER = frozenset({Says.LISTENING, Says.STOPPED})
# Without a time stamp these are quoted by a client or a ticket, not logged by a scheduler.
_STAMPED = frozenset({Says.REFUSAL, Says.TRUNCATED, Says.WAIT, Says.FINISH, Says.GUARDS})

_HANDLERS = {
    Says.DUMP: _Stream.on_dump,
    Says.COMMAND: _Stream.on_command,
    Says.SUMMARY: _Stream.on_summary,
    Says.POOL: _Stream.on_pool,
    Says.POOL_HOLDS: _Stream.on_pool_holds,
    Says.SLIDING: _Stream.on_sliding,
    Says.WEIGHTS: _Stream.on_weights,
    Says.POST_CAPTURE: _Stream.on_post_capture,
    Says.DECODE_ROLE: _Stream.on_decode_role,
    Says.BOOTSTRAP: _Stream.on_bootstrap,
    Says.LISTENING: _Stream.on_listening,
    Says.READY: _Stream.on_ready,
    Says.STOPPED: _Stream.on_stopped,
    Says.REFUSED_START: _Stream.on_refused_start,
    Says.WORDING: _Stream.on_wording,
    Says.DTYPE: _Stream.on_dtype,
    Says.REFUSAL: _Stream.on_refusal,
    Says.TRUNCATED: _Stream.on_truncated,
    Says.WAIT: _Stream.on_wait,
    Says.FINISH: _Stream.on_finished,
    Says.FULL: _Stream.on_full,
    Says.RETRACTED: _Stream.on_retracted,
    Says.CANARY: _Stream.on_canary,
    Says.GUARDS: _Stream.on_guards,
}


# What may stand before the words of a line: a level, a label, a sentence; not a call with a prompt in it.
_BEFORE = 120


def _quoted(peeled: Peeled, match: re.Match[str]) -> bool:
    """Whether the words stand inside of something else, such as a prompt in a request log."""
    before = peeled.message[: match.start()]
    if peeled.stamped:
        return len(before) > _BEFORE or any(mark in before for mark in "'\"{")
    return re.search(r"\bobj=\w+\(|[{,]\s*\"\w+\":", before) is not None


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None) if text else None
    except ValueError:
        return None


def _data_rank(ranks: Ranks) -> Ranks:
    """Give the part of a rank that has a pool of its own: tensor-parallel ranks share one size."""
    return tuple(rank for rank in ranks if rank[0] in ("DP", "PP"))
