"""What counts as proof that a write cannot land any more, by transport, with its evidence."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

COMPLETED: Final = "completed"
ERRORED: Final = "errored"
TIMED_OUT: Final = "timed-out"
UNREGISTERED: Final = "unregistered"
SENDER_KILLED: Final = "sender-killed"
SENDER_FENCED: Final = "sender-fenced"
RECEIVER_FENCED: Final = "receiver-fenced"
EPOCH_REVOKED: Final = "epoch-revoked"

EVENTS: Final = (
    COMPLETED,
    ERRORED,
    TIMED_OUT,
    UNREGISTERED,
    SENDER_KILLED,
    SENDER_FENCED,
    RECEIVER_FENCED,
    EPOCH_REVOKED,
)
Memory = Literal["target", "source"]


class Row(NamedTuple):
    """Whether an event proves quiescence of the target (no write can land) and of the source (no read can follow).

    None stands for what was not measured, and counts as no proof. `evidence` says how it is known.
    """

    transport: str
    event: str
    target: bool | None
    source: bool | None
    evidence: str


_MEASURED = "measured: Mooncake 0.3.13.post1 over TCP"
_BY_MAKE = "by construction"
_NOT_MEASURED = "not measured"

TABLE: tuple[Row, ...] = (
    Row("shared-memory", COMPLETED, True, True, f"{_BY_MAKE}: the writer reports after its last store"),
    Row("shared-memory", ERRORED, False, False, f"{_BY_MAKE}: the writer may still be copying"),
    Row("shared-memory", TIMED_OUT, False, False, f"{_BY_MAKE}: a stopped writer goes on when continued"),
    Row("shared-memory", UNREGISTERED, False, False, f"{_BY_MAKE}: a mapping outlives its name"),
    Row("shared-memory", SENDER_KILLED, True, True, "specification: a process that was waited for runs no store"),
    Row("shared-memory", SENDER_FENCED, True, True, "specification: the same, for the process of the engine"),
    Row("shared-memory", RECEIVER_FENCED, True, False, f"{_BY_MAKE}: the new arena is another mapping"),
    Row("shared-memory", EPOCH_REVOKED, False, False, f"{_BY_MAKE}: nothing stands between the writer and the memory"),
    Row("tcp-epoch", COMPLETED, True, True, f"{_BY_MAKE}: acknowledged after the last byte was placed"),
    Row("tcp-epoch", ERRORED, False, False, f"{_BY_MAKE}: frames may be in the kernel's buffers"),
    Row("tcp-epoch", TIMED_OUT, False, False, f"{_BY_MAKE}: frames may be in the kernel's buffers"),
    Row("tcp-epoch", UNREGISTERED, False, False, f"{_BY_MAKE}: there is no registration"),
    Row("tcp-epoch", SENDER_KILLED, False, True, "specification: the kernel delivers what was sent"),
    Row("tcp-epoch", SENDER_FENCED, False, True, "specification: the kernel delivers what was sent"),
    Row("tcp-epoch", RECEIVER_FENCED, True, False, f"{_BY_MAKE}: the socket is closed"),
    Row("tcp-epoch", EPOCH_REVOKED, True, False, f"{_BY_MAKE}: the receiver places no frame of a revoked lease"),
    Row("mooncake-tcp-push", COMPLETED, True, True, _MEASURED),
    Row("mooncake-tcp-push", ERRORED, False, False, f"{_MEASURED}; up to a whole batch written after the return"),
    Row("mooncake-tcp-push", TIMED_OUT, False, False, f"{_MEASURED}; written after 40 s, from the reused source"),
    Row(
        "mooncake-tcp-push",
        UNREGISTERED,
        False,
        False,
        f"{_MEASURED}; bodies in progress land, and all if registered again",
    ),
    Row(
        "mooncake-tcp-push",
        SENDER_KILLED,
        False,
        True,
        f"{_MEASURED}; the kernel delivered 16 KiB to 8 MiB after kill -9",
    ),
    Row("mooncake-tcp-push", SENDER_FENCED, False, True, f"{_MEASURED}; kernel buffers drain, 2.95 MB"),
    Row("mooncake-tcp-push", RECEIVER_FENCED, True, False, f"{_MEASURED}; 0 bytes after the engine was destroyed"),
    Row("mooncake-tcp-push", EPOCH_REVOKED, False, False, "source: its frames carry no epoch"),
    Row("mooncake-tcp-pull", COMPLETED, True, True, _MEASURED),
    Row("mooncake-tcp-pull", ERRORED, False, False, f"{_MEASURED}; the reader's memory was written after the return"),
    Row("mooncake-tcp-pull", TIMED_OUT, False, False, f"{_MEASURED}; 94 % written 40 s later"),
    Row("mooncake-tcp-pull", UNREGISTERED, False, False, f"{_MEASURED}; a read does not check its destination"),
    Row("mooncake-tcp-pull", SENDER_KILLED, None, None, _NOT_MEASURED),
    Row("mooncake-tcp-pull", SENDER_FENCED, None, None, _NOT_MEASURED),
    Row(
        "mooncake-tcp-pull",
        RECEIVER_FENCED,
        True,
        None,
        f"{_MEASURED}; 0 bytes after the reader's engine was destroyed",
    ),
    Row("mooncake-tcp-pull", EPOCH_REVOKED, False, False, "source: its frames carry no epoch"),
    *(Row(name, event, None, None, _NOT_MEASURED) for name in ("rdma", "gpudirect") for event in EVENTS),
)

_BY_NAME = {(row.transport, row.event): row for row in TABLE}
TRANSPORTS: tuple[str, ...] = tuple(dict.fromkeys(row.transport for row in TABLE))


def proves(transport: str, event: str, memory: Memory) -> bool:
    """Say whether `event` proves that `memory` of an operation is no longer touched.

    Raises:
        KeyError: if the transport or the event is not in the table.

    """
    return getattr(_BY_NAME[transport, event], memory) is True
