"""Coverage: decode commits a handoff only if prefill states to have transferred what decode is about to read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvfence.plugin.sglang.engine import SERVER_ERROR, Engine, Verdict
from kvfence.plugin.sglang.limits import Limits
from kvfence.plugin.sglang.notices import Notices
from kvfence.plugin.sglang.settings import SilentPeer
from kvfence.plugin.sglang.statement import FIRST_WORD, WORDS, Held, Statement, digest_of, disagreement
from kvfence.plugin.sglang.tally import Tally

logger = logging.getLogger(__name__)

_ROW = slice(FIRST_WORD, FIRST_WORD + WORDS)


class Coverage:
    """Prefill's statement, and decode's look at it."""

    def __init__(self, engine: Engine, limits: Limits, notices: Notices, tally: Tally, silent: SilentPeer) -> None:
        self._engine = engine
        self._limits = limits
        self._notices = notices
        self._tally = tally
        self._silent = silent
        self._sending: tuple[Any, int, int] | None = None
        self._scheduler: Any = None

    def send_chunk(
        self, send: Callable[..., None], scheduler: Any, req: Any, last_chunk: bool = False, end_idx: int | None = None
    ) -> None:
        """Stand before `send_kv_chunk`, which knows the range that is about to be sent."""
        if getattr(req, "kvfence_sent_to", None) != req.start_send_idx:
            # The first chunk, or not the next one: nothing before it is known to have been sent.
            req.kvfence_sent_from = req.start_send_idx
        if not last_chunk:
            send(scheduler, req, last_chunk=last_chunk, end_idx=end_idx)
            req.kvfence_sent_to = req.start_send_idx
            return
        end = end_idx if end_idx is not None else min(self._engine.computed(req), len(req.origin_input_ids))
        self._scheduler, self._sending = scheduler, (req, req.kvfence_sent_from, end)
        send(scheduler, req, last_chunk=last_chunk, end_idx=end_idx)
        if self._sending is not None:
            # The engine returns without a word if decode's own prefix reaches beyond what prefill computed.
            self._sending = None
            self._nothing_sent(scheduler, req, end)

    def set_row(self, set_buf: Callable[..., None], buffers: Any, req: Any) -> None:
        """Stand before `MetadataBuffers.set_buf`: add the statement to the row before it is sent."""
        set_buf(buffers, req)
        row = buffers.cached_tokens[req.metadata_buffer_index]
        sending, self._sending = self._sending, None
        if sending is None or sending[0] is not req:
            # Of a row that is written outside of `send_kv_chunk` nothing is known, so nothing is stated.
            row[_ROW] = self._engine.as_row(row, [0] * WORDS)
            return
        _, first, end = sending
        text_only = not self._engine.has_other_inputs(req)
        digest = digest_of(req.origin_input_ids[:end]) if text_only else None
        stated = Statement(start=first, end=end, limit=self._engine.refusal_limit(self._scheduler), digest=digest)
        row[_ROW] = self._engine.as_row(row, stated.words())

    def commit(self, commit: Callable[..., Any], queue: Any, decode_req: Any) -> Any:
        """Stand before `_commit_transfer_to_req`."""
        req, buffers, index = decode_req.req, queue.metadata_buffers, decode_req.metadata_buffer_index
        room = int(buffers.bootstrap_room[index][0])
        # A row that has not arrived, or that is another room's, is the engine's own case; it has its own words for it.
        if self._engine.pretends(req, queue.scheduler) or room == 0 or room != (req.bootstrap_room or 0):
            return commit(queue, decode_req)
        row = buffers.cached_tokens[index]
        stated = Statement.read(row[_ROW].tolist())
        if stated is None:
            self._tally.count("silent")
            reason = (
                None if self._silent is SilentPeer.ALLOW else "prefill states nothing of it: it has no kvfence guards"
            )
        else:
            self._limits.learn(req, stated.limit)
            reason = disagreement(stated, self._held(decode_req, buffers, index))
            self._tally.count("committed" if reason is None else "disagreed")
        if reason is None:
            return commit(queue, decode_req)
        logger.error("kvfence: handoff of request %r, room %d, is not committed: %s", req.rid, room, reason)
        self._engine.end(req, Verdict(SERVER_ERROR, f"The handoff of this request was not committed: {reason}."))
        decode_req.kv_receiver.clear()
        decode_req.kv_receiver = None
        return True  # "take it out of the queue" up to 0.5.12; not looked at from 0.5.13 on

    def _held(self, decode_req: Any, buffers: Any, index: int) -> Held:
        req = decode_req.req
        tokens = req.origin_input_ids
        if getattr(decode_req, "is_rebootstrap", False) or getattr(req, "pd_rebootstrap_in_progress", False):
            tokens = [*tokens, *req.output_ids]
        images = any(buffers.cached_tokens[index][4:7].tolist())
        prefix = getattr(decode_req.kv_receiver, "kvfence_prefix", 0)
        return Held(tokens=tokens, prefix=prefix, text_only=not (images or self._engine.has_other_inputs(req)))

    def _nothing_sent(self, scheduler: Any, req: Any, end: int) -> None:
        reason = (
            f"The handoff of this request came to nothing: prefill computed {end} tokens, fewer than decode asked for."
        )
        logger.error("kvfence: request %r: %s", req.rid, reason)
        req.disagg_kv_sender.abort()
        self._notices.refuse(
            scheduler.disagg_prefill_bootstrap_queue.kv_manager, req.bootstrap_room, Verdict(SERVER_ERROR, reason)
        )


def note_prefix(engine: Engine, send: Callable[..., None], receiver: Any, *pages: Any, **how: Any) -> None:
    """Stand before `send_metadata`: keep what decode asks prefill to leave out, and say that it takes reasons."""
    receiver.kvfence_prefix = how.get("decode_prefix_len") or 0
    engine.mark_guarded(receiver)
    send(receiver, *pages, **how)
