"""Follow a refused request through the lines after its refusal, to see what it was answered.

On a prefill role that hands refused requests off, the refusal is followed by a prefill batch of one
token (the placeholder that took the prompt's place) and then by HTTP 200. A role that refuses
properly says so, with the length again. A line names no request, so the oldest request that fits is
taken. An access line with 400 says nothing: some client or other sends a bad request all the time.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from kvfence.facts.dialects.sglang.lines import ACCESS, BATCH
from kvfence.facts.fact import Evidence
from kvfence.facts.happenings import Answer, Refusal
from kvfence.facts.prefix import Ranks

# How long after a refusal its answer is looked for, in the log's time and in its lines.
WINDOW = timedelta(seconds=120)
# The ranks of a worker log one refusal each within so long.
AT_ONCE = timedelta(seconds=1)
FOLLOWED_LINES = 200

_GENERATION = re.compile(
    r"/(?:generate|v1/(?:chat/)?completions|v1/responses|v1/messages|invocations|api/(?:chat|generate))\b"
)


@dataclass
class _Open:
    refusal: Refusal
    ranks: Ranks
    chain: list[Evidence] = field(default_factory=list)
    placeholder: bool = False

    def is_also(self, refusal: Refusal, ranks: Ranks) -> bool:
        """Whether a refusal is this one, logged by another rank."""
        known = self.refusal
        if (known.tokens, known.limit, known.rid) != (refusal.tokens, refusal.limit, refusal.rid):
            return False
        if known.rid is not None:
            return True
        near = known.time is not None and refusal.time is not None and refusal.time - known.time <= AT_ONCE
        return near and ranks != self.ranks


class AnswerSearch:
    """The requests of one worker that were refused and not yet seen to be answered."""

    def __init__(self) -> None:
        self._open: deque[_Open] = deque()
        self.settled: list[Refusal] = []

    def refused(self, refusal: Refusal, ranks: Ranks = ()) -> None:
        """Take a refusal line, and the ranks that logged it."""
        self._expire(refusal.time, refusal.evidence.line or 0)
        if not any(one.is_also(refusal, ranks) for one in self._open):
            self._open.append(_Open(refusal, ranks))

    def told(self, tokens: int, limit: int, evidence: Evidence) -> None:
        """Take the line in which the HTTP server tells a client that its prompt is too long."""
        for one in self._open:
            if (one.refusal.tokens, one.refusal.limit) == (tokens, limit):
                self._settle(one, Answer.REFUSED, evidence)
                return

    def look_at(self, message: str, time: datetime | None, evidence: Evidence) -> None:
        """Look at a line that follows."""
        self._expire(time, evidence.line or 0)
        if not self._open:
            return
        access = ACCESS.search(message)
        if access is not None:
            if _GENERATION.match(access["path"]):
                self._access(int(access["status"]), evidence)
            return
        batch = BATCH.search(message)
        if batch is not None and batch["kind"] == "Prefill" and batch["tokens"]:
            tokens = int(batch["tokens"])
            # Nothing but placeholders (or health checks) in it; a prompt that the prefix cache holds but for its last
            # token has cached ones.
            if tokens <= int(batch["seqs"]) and not int(batch["cached"] or 0):
                waiting = [one for one in self._open if not one.placeholder]
                for one in waiting[:tokens]:
                    one.placeholder = True
                    one.chain.append(evidence)

    def _access(self, status: int, evidence: Evidence) -> None:
        fitting = next((one for one in self._open if one.placeholder), None)
        if status == 200 and fitting is not None:
            self._settle(fitting, Answer.ANSWERED, evidence)

    def _settle(self, one: _Open, answer: Answer, evidence: Evidence) -> None:
        self._open.remove(one)
        self.settled.append(replace(one.refusal, answer=answer, chain=(*one.chain, evidence)))

    def _give_up(self) -> None:
        """End the search for the oldest: it is unclear."""
        oldest = self._open.popleft()
        self.settled.append(replace(oldest.refusal, chain=tuple(oldest.chain)))

    def _expire(self, time: datetime | None, line: int) -> None:
        while self._open:
            oldest = self._open[0].refusal
            late = time is not None and oldest.time is not None and time - oldest.time > WINDOW
            if not late and line - (oldest.evidence.line or 0) <= FOLLOWED_LINES:
                return
            self._give_up()

    def close(self) -> list[Refusal]:
        """End the search: what was not seen answered is unclear."""
        while self._open:
            self._give_up()
        return self.settled
