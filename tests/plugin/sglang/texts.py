"""The text of a small engine with SGLang's names: what the guards rely on, in a few lines each.

`@TARGET@` stands for the recorded parameters of a function; `standin.py` fills them in. Lines that end with a comment
`since RELEASE` or `before RELEASE` are in the engines of those releases only.
"""

from __future__ import annotations

from typing import Final

REGISTRY: Final = '''
"""As upstream's: what it cannot apply it logs, and goes on."""
import enum, functools, logging, pkgutil, sys, types

class HookType(enum.Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"

class HookRegistry:
    _hooks = {}
    _patched = set()
    deaf = set()  # of a test: targets that are passed over in silence

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        cls._hooks.setdefault(target, []).append((hook_type, hook))

    @classmethod
    def apply_hooks(cls):
        for target, hooks in sorted(cls._hooks.items()):
            if target in cls._patched or target in cls.deaf:
                continue
            try:
                cls._apply(target, hooks)
                cls._patched.add(target)
            except Exception:
                logging.getLogger(__name__).exception("Failed to apply hooks to %s", target)

    @classmethod
    def _apply(cls, target, hooks):
        owner_path, name = target.rsplit(".", 1)
        owner = pkgutil.resolve_name(owner_path)
        original = getattr(owner, name)
        raw = owner.__dict__.get(name) if isinstance(owner, type) else original
        kind = type(raw) if isinstance(raw, (classmethod, staticmethod)) else None
        original = raw.__func__ if kind else original
        wrapped = original
        for hook_type, hook in hooks:
            assert hook_type is HookType.AROUND
            wrapped = cls._around(wrapped, hook)
        setattr(owner, name, kind(wrapped) if kind else wrapped)
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType) and module is not owner:
                for known, value in list(vars(module).items()):
                    if value is original:
                        setattr(module, known, wrapped)

    @staticmethod
    def _around(original, hook):
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            return hook(original, *args, **kwargs)
        return wrapper
'''

PLUGINS: Final = '''
import logging

def load(function):
    """As upstream's loader: an exception of a plugin is logged, and the engine starts without it."""
    from sglang.srt.plugins.hook_registry import HookRegistry
    try:
        function()
    except Exception:
        logging.getLogger(__name__).exception("Failed to execute general plugin")
    HookRegistry.apply_hooks()
'''

BATCH: Final = """
class FINISH_ABORT:
    def __init__(self, message=None, status_code=None, err_type=None):
        self.message = message or "Aborted"
        self.status_code = status_code
        self.err_type = err_type

class FINISH_LENGTH:
    def __init__(self, length):
        self.length = length
"""

CONN: Final = """
class KVPoll:
    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4
"""

UTILS: Final = """
import numpy as np
from sglang.srt.managers.schedule_batch import FINISH_ABORT

FAKE_BOOTSTRAP_HOST = "2.2.2.2"

def prepare_abort@disaggregation.utils.prepare_abort@:
    req.finished_reason = FINISH_ABORT(error_message, status_code)

class MetadataBuffers:
    def __init__(self, size):
        self.cached_tokens = np.zeros((size, 16), np.int32)
        self.bootstrap_room = np.zeros((size, 8), np.uint64)

    def set_buf@disaggregation.utils.MetadataBuffers.set_buf@:
        self.cached_tokens[req.metadata_buffer_index][:4] = (11, 12, 13, 14)
        self.cached_tokens[req.metadata_buffer_index][4] = req.images  # since 0.5.14
        self.bootstrap_room[req.metadata_buffer_index][0] = req.bootstrap_room or 0
"""

COMMON: Final = """
import collections

class FastQueue:
    def __init__(self):
        self.held = collections.deque()

    def put(self, item):
        self.held.append(item)

    def get@disaggregation.common.utils.FastQueue.get@:
        return self.held.popleft()
"""

PREFILL: Final = """
from sglang.srt.disaggregation.utils import prepare_abort
from sglang.srt.managers.schedule_batch import FINISH_ABORT

class PrefillBootstrapQueue:
    def __init__@disaggregation.prefill.PrefillBootstrapQueue.__init__@:
        self.scheduler = scheduler
        self.kv_manager = scheduler.kv_manager
        self.capacity = max_total_num_tokens
        self.queue = []

    def add@disaggregation.prefill.PrefillBootstrapQueue.add@:
        if len(req.origin_input_ids) > self.capacity:
            prepare_abort(req, f"Request {req.rid} exceeds the maximum number of tokens", 400)
            getattr(self.scheduler, "output_streamer", self.scheduler).stream_output([req], req.return_logprob)
            return
        self.queue.append(req)

class SchedulerDisaggregationPrefillMixin:
    def send_kv_chunk@disaggregation.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk@:
        start_idx = req.start_send_idx
        if end_idx is None:
            end_idx = min(len(req.fill_ids), len(req.origin_input_ids))  # before 0.5.13
            end_idx = min(req.fill_len, len(req.origin_input_ids))  # since 0.5.13 before 0.5.15
            end_idx = min(req.extend_range.end, len(req.origin_input_ids))  # since 0.5.15 before 0.5.22
            end_idx = min(req.extend_end, len(req.origin_input_ids))  # since 0.5.22
        if not last_chunk:
            end_idx -= end_idx % self.page_size
        if end_idx < start_idx:
            return
        if last_chunk:
            self.disagg_metadata_buffers.set_buf(req)
        req.disagg_kv_sender.send(start_idx, end_idx)
        req.start_send_idx = end_idx
"""

DECODE: Final = """
from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST, prepare_abort

class DecodePreallocQueue:
    def __init__@disaggregation.decode.DecodePreallocQueue.__init__@:
        self.scheduler = scheduler
        self.kv_manager = scheduler.kv_manager
        self.queue = []

    def add@disaggregation.decode.DecodePreallocQueue.add@:
        self.queue.append(req)

class DecodeTransferQueue:
    def __init__(self, scheduler, metadata_buffers):
        self.scheduler = scheduler
        self.metadata_buffers = metadata_buffers
        self.committed = []

    def _commit_transfer_to_req@disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req@:
        room = int(self.metadata_buffers.bootstrap_room[decode_req.metadata_buffer_index][0])
        if decode_req.req.bootstrap_host != FAKE_BOOTSTRAP_HOST and room != (decode_req.req.bootstrap_room or 0):
            prepare_abort(decode_req.req, "Metadata corruption detected - bootstrap_room mismatch", 500)
            return True
        self.committed.append(decode_req.req)
        return True
"""

MOONCAKE: Final = '''
import dataclasses
from typing import Any
from sglang.srt.disaggregation.base.conn import KVPoll

@dataclasses.dataclass
class TransferInfo:
    room: int
    endpoint: str
    dst_port: int
    mooncake_session_id: str
    required_dst_info_num: int
    is_dummy: bool
    decode_prefix_len: Any = None

    @classmethod
    def from_zmq@disaggregation.mooncake.conn.TransferInfo.from_zmq@:
        room, host, port, session = (frame.decode("ascii") for frame in msg[:4])
        prefix = int(msg[8].decode("ascii")) if len(msg) > 8 and msg[8] != b"" else None
        dummy = msg[4] == b"" and msg[5] == b""
        return cls(int(room), host, int(port), session, int(msg[7].decode("ascii")), dummy, prefix)

class MooncakeKVManager:
    is_marked = True
    kv_status_msg_carries_reason = False  # since 0.5.20
    attn_tp_rank, pp_size, attn_cp_size, pp_rank, attn_cp_rank = 3, 1, 1, 0, 0

    def __init__(self):
        self.request_status = {}
        self.transfer_infos = {}
        self.req_to_decode_prefix_len = {}
        self.frames = []
        self.unreachable = set()
        self.rows = []

    def receive(self, frames):
        """Read one announcement, as the thread that receives them does."""
        required = int(frames[7].decode("ascii"))
        room = int(frames[0].decode("ascii"))
        if room not in self.transfer_infos:
            self.transfer_infos[room] = {}
        self.transfer_infos[room][frames[3].decode("ascii")] = TransferInfo.from_zmq(frames)
        if len(self.transfer_infos[room]) == required:
            self.req_to_decode_prefix_len[room] = next(
                (i.decode_prefix_len for i in self.transfer_infos[room].values() if i.decode_prefix_len is not None), 0
            )
            self.request_status.setdefault(room, KVPoll.WaitingForInput)

    def send_aux@disaggregation.mooncake.conn.MooncakeKVManager.send_aux@:
        self.rows.append(req.room)
        return 0

    def conclude_transfer(self):  # since 0.5.20
        """A success of a room that has failed is a failure."""  # since 0.5.20

    def parse_kv_status_message(self, msg):  # since 0.5.20
        return msg  # since 0.5.20

    def _encode_kv_status_message(self, *, bootstrap_room, status, failure_reason):  # since 0.5.20
        parts = [str(one).encode() for one in (bootstrap_room, int(status), self.attn_tp_rank)]  # since 0.5.20
        return parts + ([(failure_reason or "").encode()] if self.kv_status_msg_carries_reason else [])  # since 0.5.20

    def send_kv_status_message(self, *, targets, bootstrap_room, status, failure_reason=None):  # since 0.5.20
        parts = self._encode_kv_status_message(  # since 0.5.20
            bootstrap_room=bootstrap_room, status=status, failure_reason=failure_reason  # since 0.5.20
        )  # since 0.5.20
        for host, port in targets:  # since 0.5.20
            self._send_multipart_locked(f"tcp://{host}:{port}", parts)  # since 0.5.20

    def sync_status_to_decode_endpoint(self, remote, dst_port, room, status, prefill_rank):  # before 0.5.20
        parts = [str(one).encode("ascii") for one in (room, status, prefill_rank)]  # before 0.5.20
        self._send_multipart_locked(f"tcp://{remote}:{dst_port}", parts)  # before 0.5.20

    def _send_multipart_locked(self, endpoint, parts, is_ipv6=False):
        if endpoint in self.unreachable:
            raise OSError(f"no way to {endpoint}")
        self.frames.append((endpoint, parts))

class MooncakeKVReceiver:
    def __init__(self, mgr, room):
        self.kv_mgr = mgr
        self.bootstrap_room = room
        self.required_dst_info_num = 1
        self.frames = None
        self.cleared = False

    def send_metadata@disaggregation.mooncake.conn.MooncakeKVReceiver.send_metadata@:
        told = (self.bootstrap_room, "10.0.0.9", 7001, "session", "pages", aux_index, "")
        told += (self.required_dst_info_num, decode_prefix_len or 0)
        self.frames = [str(one).encode("ascii") for one in told]

    def clear(self):
        self.cleared = True
'''

TRANSFER: Final = """
class MooncakeTransferEngine:
    def __init__(self, results=()):
        self.calls = []
        self.results = list(results)
        self.during = lambda: None

    def batch_transfer_sync@distributed.device_communicators.mooncake_transfer_engine.MooncakeTransferEngine.batch_transfer_sync@:
        self.calls.append((session_id, list(buffers), list(peer_buffer_addresses), list(lengths)))
        self.during()
        return self.results.pop(0) if self.results else 0
"""  # noqa: E501 - a marker is one word

SCHEDULER: Final = """
import types
from sglang.srt.disaggregation.prefill import SchedulerDisaggregationPrefillMixin
from sglang.srt.managers.schedule_batch import FINISH_ABORT

class Scheduler(SchedulerDisaggregationPrefillMixin):
    def __init__(self, server_args=None, kv_manager=None, max_req_input_len=1018):
        self.server_args = server_args or types.SimpleNamespace()
        self.kv_manager = kv_manager
        self.max_req_input_len = max_req_input_len
        self.page_size = 4
        self.streamed = []
        self.retired = []
        self.state = {"last_gen_throughput": 0.0}
        self.output_streamer = types.SimpleNamespace(stream_output=self._stream)  # since 0.5.13

    def stream_output(self, reqs, return_logprob):  # before 0.5.13
        self._stream(reqs, return_logprob)  # before 0.5.13

    def retire_unadmitted_request(self, req):  # since 0.5.21
        req.finished_reason = req.finished_reason or req.to_finish  # since 0.5.21
        self.retired.append(req)  # since 0.5.21
        self._stream([req], req.return_logprob)  # since 0.5.21

    def _stream(self, reqs, return_logprob):
        self.streamed.extend((req, req.finished_reason) for req in reqs)

    def get_internal_state@managers.scheduler.Scheduler.get_internal_state@:
        return types.SimpleNamespace(internal_state=self.state)
"""

NETWORK: Final = """
class NetworkAddress:
    is_ipv6 = False

    def __init__(self, host, port):
        self.host, self.port = host, port

    def to_tcp(self):
        return f"tcp://{self.host}:{self.port}"
"""

TREE: Final = {
    "plugins/__init__.py": PLUGINS,
    "plugins/hook_registry.py": REGISTRY,
    "managers/schedule_batch.py": BATCH,
    "managers/scheduler.py": SCHEDULER,
    "disaggregation/base/conn.py": CONN,
    "disaggregation/utils.py": UTILS,
    "disaggregation/common/utils.py": COMMON,
    "disaggregation/prefill.py": PREFILL,
    "disaggregation/decode.py": DECODE,
    "disaggregation/mooncake/conn.py": MOONCAKE,
    "distributed/device_communicators/mooncake_transfer_engine.py": TRANSFER,
    "utils/network.py": NETWORK,
}
"""Of each file below `sglang/srt`, its text."""
