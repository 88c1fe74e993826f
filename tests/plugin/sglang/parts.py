"""Requests, senders and a set of guards that stand on their own, for tests of one guard each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvfence.plugin.sglang.coverage import Coverage
from kvfence.plugin.sglang.door import Door
from kvfence.plugin.sglang.engine import Engine
from kvfence.plugin.sglang.limits import Limits
from kvfence.plugin.sglang.notices import Notices
from kvfence.plugin.sglang.settings import Settings
from kvfence.plugin.sglang.tally import Tally
from tests.plugin.sglang.standin import Sglang

ROOM = 2**63 - 1
PROMPT = tuple(range(100, 114))
FAILED = "Decode transfer failed for request rank=0 decode_req.req.rid='r' with exception KVTransferError(1): "
"""What decode says before the reason that prefill gave."""


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Sender:
    """What a prefill request sends through."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.aborted = 0

    def send(self, start: int, end: int) -> None:
        self.sent.append((start, end))

    def abort(self) -> None:
        self.aborted += 1


def request(sglang: Sglang, tokens: Sequence[int] = PROMPT, **given: Any) -> Any:
    """Make a request that nobody has admitted yet, with the fields that it has in a release."""
    kv = SimpleNamespace(req_pool_idx=None, retraction_backup=None) if sglang.since("0.5.19") else None
    made = SimpleNamespace(
        rid="r-1",
        origin_input_ids=list(tokens),
        output_ids=[],
        bootstrap_host="10.0.0.1",
        bootstrap_port=8998,
        bootstrap_room=ROOM,
        return_logprob=False,
        finished_reason=None,
        to_finish=None,
        is_retracted=False,
        metadata_buffer_index=-1,
        multimodal_inputs=None,
        input_embeds=None,
        images=0,
        session=None,
        sampling_params=SimpleNamespace(max_new_tokens=64),
        start_send_idx=0,
        disagg_kv_sender=Sender(),
    )
    if kv is None:
        made.req_pool_idx = None
    else:
        made.kv = kv
    for name, value in given.items():
        setattr(made, name, value)
    return made


def compute(sglang: Sglang, req: Any, end: int) -> None:
    """Let prefill have computed a request up to a token."""
    if sglang.since("0.5.22"):
        req.extend_end = end
    elif sglang.since("0.5.15"):
        req.extend_range = SimpleNamespace(start=0, end=end)
    elif sglang.since("0.5.13"):
        req.fill_len = end
    else:
        req.fill_ids = [*req.origin_input_ids, *req.output_ids][:end]


def own(sglang: Sglang, req: Any) -> None:
    """Let a request hold pages."""
    (req.kv if sglang.since("0.5.19") else req).req_pool_idx = 3


def give(form: str, **given: Any) -> dict[str, Any]:
    """Give arguments for each parameter of a recorded signature but the first; what is not given is `None`."""
    names = [word.strip(" =()") for word in form.split(",")]
    return {name: given.get(name) for name in names if name != "self"}


@dataclass
class Guards:
    """The guards of one process, not applied to an engine."""

    sglang: Sglang
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.engine, self.tally, self.limits = Engine(), Tally(), Limits(self.settings.prefill_limit)
        self.notices = Notices(self.engine, self.tally, self.clock)
        self.notices._thread = SimpleNamespace()  # type: ignore[assignment] # a test looks itself
        self.door = Door(self.engine, self.limits, self.notices, self.tally)
        self.coverage = Coverage(self.engine, self.limits, self.notices, self.tally, self.settings.silent_peer)

    def counted(self) -> dict[str, int]:
        """Give the events that have happened, and how often."""
        return {event: count for event, count in self.tally.snapshot().items() if count}

    def manager(self) -> Any:
        """Make a KV manager."""
        return self.sglang.module("disaggregation.mooncake.conn").MooncakeKVManager()

    def scheduler(self, **arguments: Any) -> Any:
        """Make a scheduler, with a KV manager."""
        made = self.sglang.module("managers.scheduler").Scheduler(SimpleNamespace(**arguments), self.manager())
        made.disagg_metadata_buffers = self.sglang.module("disaggregation.utils").MetadataBuffers(4)
        made.disagg_prefill_bootstrap_queue = SimpleNamespace(kv_manager=made.kv_manager)
        return made

    def abort(self, message: str, status: Any = 400) -> Any:
        """Make the engine's own verdict on a request."""
        return self.sglang.module("managers.schedule_batch").FINISH_ABORT(message, status)

    def look(self, seconds: float = 0.0) -> float | None:
        """Let time pass, and look at what is due."""
        self.clock.now += seconds
        return self.notices.look()


def frames(room: int, *, port: int = 7001, session: str = "s", required: str = "1", dummy: bool = False) -> list[bytes]:
    """Give a decode rank's announcement of its pages."""
    pages, row = (b"", b"") if dummy else (b"\x01\x00\x00\x00", b"5")
    return [
        *(one.encode("ascii") for one in (str(room), "10.0.0.9", str(port), session)),
        pages,
        row,
        b"",
        required.encode("ascii"),
        b"0",
    ]


def receive(guards: Guards, manager: Any, announcement: list[bytes]) -> None:
    """Let a prefill receive an announcement, through the guard."""
    conn = guards.sglang.module("disaggregation.mooncake.conn")
    read: Callable[..., Any] = conn.TransferInfo.from_zmq.__func__
    conn.TransferInfo.from_zmq = classmethod(lambda kind, msg: guards.notices.announcement(read, kind, msg))
    try:
        manager.receive(announcement)
    finally:
        conn.TransferInfo.from_zmq = classmethod(read)
