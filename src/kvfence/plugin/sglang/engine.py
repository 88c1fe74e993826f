"""The seam to SGLang: every name and difference between releases that the guards rely on, in one place.

Objects of the engine are `Any` here: they have another shape in each release, and what is asked of them was read in all
releases from 0.5.11 to 0.5.23. `signatures.py` holds the functions to what was recorded.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

SRT: Final = "sglang.srt."
BAD_REQUEST: Final = int(HTTPStatus.BAD_REQUEST)
SERVER_ERROR: Final = int(HTTPStatus.INTERNAL_SERVER_ERROR)

NAMES: Final = (
    "disaggregation.base.conn.KVPoll",
    "disaggregation.utils.FAKE_BOOTSTRAP_HOST",
    "disaggregation.utils.prepare_abort",
    "managers.schedule_batch.FINISH_ABORT",
)
"""What is used as it is, beside the functions that are guarded."""

_COUNT_FRAME: Final = 7
"""Of a decode rank's announcement: how many ranks will announce themselves for the room."""
_MARKED: Final = re.compile(rb"\+\d+")


class Verdict(NamedTuple):
    """That a request ends, and with which HTTP status and words."""

    status: int
    message: str


class Rank(NamedTuple):
    """A decode rank that has announced its pages for a room."""

    target: tuple[str, int]
    """Host and port of its status messages."""
    takes_reason: bool
    """Whether it understands a status message that carries a reason."""


class Announced(NamedTuple):
    """The decode ranks that have announced pages for a room, and whether there are no more to come."""

    ranks: list[Rank]
    complete: bool


class _Guarded(int):
    """A number that is written with its sign, which `int()` reads as the same number in every release."""

    def __str__(self) -> str:
        return f"+{int(self)}"


def resolve(path: str) -> Any:
    """Give what a path below `sglang.srt` names.

    Raises:
        ImportError, AttributeError: there is no such module or name.

    """
    return pkgutil.resolve_name(SRT + path)


class Engine:
    """What the guards ask of SGLang, and do with it."""

    def __init__(self) -> None:
        self._poll, self._fake_host, self._prepare_abort, self._abort = (resolve(name) for name in NAMES)
        self._sockets: dict[tuple[str, int], Any] = {}

    # --- requests

    def verdict(self, req: Any) -> Verdict | None:
        """Give the pending or final abort of a request (`to_finish` exists since 0.5.5)."""
        for finish in (getattr(req, "finished_reason", None), getattr(req, "to_finish", None)):
            if isinstance(finish, self._abort):
                return Verdict(int(getattr(finish, "status_code", None) or SERVER_ERROR), str(finish.message))
        return None

    def owns_something(self, req: Any) -> bool:
        """Whether a request was admitted before: then it holds KV or a row, and its queue releases that."""
        kv = getattr(req, "kv", None)  # from 0.5.16 on; it holds the pool's index from 0.5.19 on
        pool_index = getattr(kv, "req_pool_idx", None)
        if pool_index is None:
            pool_index = getattr(req, "req_pool_idx", None)
        return bool(
            getattr(req, "is_retracted", False)
            or pool_index is not None
            or getattr(req, "metadata_buffer_index", -1) >= 0
            or getattr(kv, "retraction_backup", None) is not None
        )

    def pretends(self, req: Any, scheduler: Any) -> bool:
        """Whether a request asks for a handoff without a transfer, as health checks and warm-ups do."""
        if req.bootstrap_host == self._fake_host:
            return True
        backend = getattr(getattr(scheduler, "server_args", None), "disaggregation_transfer_backend", None)
        return req.bootstrap_host is None and backend == "fake"

    def has_other_inputs(self, req: Any) -> bool:
        """Whether a prompt has images, sound or embeddings beside its token ids."""
        return getattr(req, "multimodal_inputs", None) is not None or getattr(req, "input_embeds", None) is not None

    def computed(self, req: Any) -> int:
        """Give how many leading tokens of a request prefill has computed so far."""
        if hasattr(req, "extend_end"):  # from 0.5.22 on
            return int(req.extend_end)
        if hasattr(req, "extend_range"):  # 0.5.15 to 0.5.21
            return int(req.extend_range.end)
        if hasattr(req, "fill_len"):  # 0.5.13 and 0.5.14
            return int(req.fill_len)
        return len(req.fill_ids)

    def end(self, req: Any, verdict: Verdict) -> None:
        """Mark a request as ended with an error."""
        self._prepare_abort(req, verdict.message, status_code=HTTPStatus(verdict.status))

    def retire(self, scheduler: Any, req: Any, verdict: Verdict) -> None:
        """End a request that holds nothing, and answer its client."""
        if self.verdict(req) is None:
            self.end(req, verdict)
        if hasattr(scheduler, "retire_unadmitted_request"):  # from 0.5.21 on
            scheduler.retire_unadmitted_request(req)
            return
        # What that function does besides answering: a streaming session has one request at a time, a beam group has
        # members, and the cache may have begun to fetch a prefix.
        session = getattr(req, "session", None)
        if session is not None and getattr(session, "streaming", False):
            session.abort_req()
            req.session = None
        beams: Any = getattr(scheduler, "beam_coordinator", None)
        if hasattr(beams, "retire_group"):
            beams.retire_group(req)
        cache: Any = getattr(scheduler, "tree_cache", None)
        if getattr(scheduler, "enable_hicache_storage", False) and hasattr(cache, "release_aborted_request"):
            cache.release_aborted_request(req.rid)
        if isinstance(getattr(req, "to_finish", None), self._abort):
            req.finished_reason = req.finished_reason or req.to_finish
        req.to_finish = None
        getattr(scheduler, "output_streamer", scheduler).stream_output([req], req.return_logprob)

    # --- the metadata row

    def as_row(self, row: Any, words: Sequence[int]) -> Any:
        """Give words in the kind of array that a metadata row is, in one piece: a row may lie on a device."""
        return row.new_tensor(words) if hasattr(row, "new_tensor") else words

    def refusal_limit(self, scheduler: Any) -> int:
        """Give the shortest prompt, in tokens, that this worker refuses; 0 if it cuts prompts to what fits."""
        cuts = getattr(scheduler.server_args, "allow_auto_truncate", False)
        return 0 if cuts else int(scheduler.max_req_input_len)

    # --- rooms

    def has_failed(self, manager: Any, room: int) -> bool:
        """Whether a room's handoff has failed, or was concluded and cleared."""
        status = manager.request_status.get(room)
        return status is None or status == self._poll.Failed

    def unsent_row(self, manager: Any) -> int:
        """Give what `send_aux` returns for a row of a failed room that it did not send.

        From 0.5.20 on the engine itself calls no failed room a success, and takes an error for writes still under way,
        for which decode would hold its pages. Before, only an error keeps it from calling the room a success.
        """
        return 0 if hasattr(manager, "conclude_transfer") else -1

    def announced(self, manager: Any, room: int) -> Announced:
        """Give the decode ranks that have announced pages for a room."""
        infos = list((manager.transfer_infos.get(room) or {}).values())
        ranks = [
            Rank((info.endpoint, info.dst_port), getattr(info, "kvfence_guarded", False))
            for info in infos
            if not getattr(info, "is_dummy", False)
        ]
        return Announced(ranks, complete=bool(infos) and len(infos) >= int(infos[0].required_dst_info_num))

    def room_is_taken(self, queue: Any, room: object) -> bool:
        """Whether a request that prefill has admitted, and not yet handed off, is under this room."""
        scheduler = queue.scheduler
        held = (
            queue.queue,
            getattr(scheduler, "waiting_queue", ()),
            getattr(scheduler, "disagg_prefill_inflight_queue", ()),
            [getattr(scheduler, "chunked_req", None)],
        )
        return any(req is not None and req.bootstrap_room == room for reqs in held for req in reqs or ())

    def drop_announcements(self, manager: Any, room: int) -> None:
        """Drop what was announced for a refused room; no sender exists that would."""
        manager.transfer_infos.pop(room, None)
        getattr(manager, "req_to_decode_prefix_len", {}).pop(room, None)

    def send_failed(self, manager: Any, room: int, target: tuple[str, int], reason: str | None) -> None:
        """Send a decode rank the engine's own status message: this room has failed."""
        failed = self._poll.Failed
        # A reason may quote a client, who may have sent what no encoding has.
        frame = None if reason is None else reason.encode(errors="replace")
        if not hasattr(manager, "send_kv_status_message"):
            # Up to 0.5.19, where a fourth frame ends the thread that receives it.
            rank = manager.attn_tp_rank * (manager.pp_size * manager.attn_cp_size)
            rank += manager.pp_rank * manager.attn_cp_size + manager.attn_cp_rank
            self._send(manager, target, [str(number).encode() for number in (room, int(failed), rank)])
        elif frame is None or manager.kv_status_msg_carries_reason:
            told = None if frame is None else frame.decode()
            manager.send_kv_status_message(targets=[target], bootstrap_room=room, status=failed, failure_reason=told)
        else:
            frames = manager._encode_kv_status_message(bootstrap_room=room, status=failed, failure_reason=None)  # noqa: SLF001
            self._send(manager, target, [*frames, frame])

    def _send(self, manager: Any, target: tuple[str, int], frames: list[bytes]) -> None:
        """Send a message to a decode rank from the thread of the notices."""
        address = resolve("utils.network.NetworkAddress")(*target)
        if hasattr(manager, "_send_multipart_locked"):  # from 0.5.17 on
            manager._send_multipart_locked(address.to_tcp(), frames, is_ipv6=address.is_ipv6)  # noqa: SLF001
            return
        # Before, the engine's sockets belong to its transfer threads, and one socket is not for two threads.
        if target not in self._sockets:
            zmq = importlib.import_module("zmq")
            socket = zmq.Context.instance().socket(zmq.PUSH)
            for option, value in ((zmq.LINGER, 0), (zmq.SNDTIMEO, 1000), (zmq.IPV6, int(address.is_ipv6))):
                socket.setsockopt(option, value)
            socket.connect(address.to_tcp())
            self._sockets[target] = socket
        self._sockets[target].send_multipart(frames)

    def mark_guarded(self, receiver: Any) -> None:
        """Let decode's announcement say that it takes a reason: the count in it is written `+1` instead of `1`."""
        if hasattr(receiver.kv_mgr, "parse_kv_status_message"):  # from 0.5.20 on
            receiver.required_dst_info_num = _Guarded(receiver.required_dst_info_num)

    def read_announcement(self, from_zmq: Any, kind: Any, frames: list[bytes]) -> Any:
        """Stand before `TransferInfo.from_zmq`: see whether the announcement is of a guarded decode rank."""
        info = from_zmq(kind, frames)
        info.kvfence_guarded = len(frames) > _COUNT_FRAME and bool(_MARKED.fullmatch(frames[_COUNT_FRAME]))
        return info
