"""What proves that memory is no longer touched is what was measured or holds by construction, and never a time."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import get_args

import pytest

from kvfence.fence.proof import (
    COMPLETED,
    EPOCH_REVOKED,
    ERRORED,
    EVENTS,
    RECEIVER_FENCED,
    SENDER_FENCED,
    SENDER_KILLED,
    TABLE,
    TIMED_OUT,
    TRANSPORTS,
    UNREGISTERED,
    Memory,
    Row,
    proves,
)

MEMORIES: tuple[Memory, ...] = get_args(Memory)
STANDINGS = ("measured", "by construction", "specification", "source", "not measured")
UNMEASURED = ("rdma", "gpudirect")

# What was measured of Mooncake 0.3.13.post1 over TCP: bytes that reached the target after the event.
LANDED_AFTER_PUSH = {
    ERRORED: 2048 * 16 << 10,  # a queue overrun of 4096 pages of 16 KiB: half of them, after the return
    TIMED_OUT: 264_500_000,  # 256 MiB, nearly all of it from the source's new contents
    UNREGISTERED: 3_110_000,  # bodies in progress; 28.5 MB if registered again
    SENDER_KILLED: 3_250_000,  # what the kernel held
    SENDER_FENCED: 2_950_000,  # the same
    RECEIVER_FENCED: 0,
}
LANDED_AFTER_PULL = {
    TIMED_OUT: 64 * (64 << 10) * 94 // 100,  # 40 s later
    UNREGISTERED: 16 * 64 << 10,  # a read does not check its destination
    RECEIVER_FENCED: 0,
}


def row(transport: str, event: str) -> Row:
    (found,) = (one for one in TABLE if (one.transport, one.event) == (transport, event))
    return found


# The table


def test_every_transport_has_one_row_for_each_event() -> None:
    assert len(set(EVENTS)) == len(EVENTS)
    assert len(set(TRANSPORTS)) == len(TRANSPORTS)
    assert Counter((one.transport, one.event) for one in TABLE) == Counter(product(TRANSPORTS, EVENTS))


def test_the_transports() -> None:
    assert set(TRANSPORTS) == {"shared-memory", "tcp-epoch", "mooncake-tcp-push", "mooncake-tcp-pull", *UNMEASURED}


@pytest.mark.parametrize("one", TABLE, ids=lambda one: f"{one.transport} {one.event}")
def test_every_row_says_how_it_is_known(one: Row) -> None:
    assert one.evidence.startswith(STANDINGS)
    assert (one.evidence == "not measured") == (one.target is None and one.source is None)


@pytest.mark.parametrize("one", TABLE, ids=lambda one: f"{one.transport} {one.event}")
def test_only_what_is_known_to_be_true_is_proof(one: Row) -> None:
    assert proves(one.transport, one.event, "target") is (one.target is True)
    assert proves(one.transport, one.event, "source") is (one.source is True)


@pytest.mark.parametrize("transport", UNMEASURED)
def test_what_was_not_measured_proves_nothing(transport: str) -> None:
    for event, memory in product(EVENTS, MEMORIES):
        assert row(transport, event)[2:4] == (None, None)
        assert not proves(transport, event, memory)


def test_all_else_is_known_one_way_or_the_other() -> None:
    unknown = {(one.transport, one.event) for one in TABLE if None in (one.target, one.source)}
    assert unknown - {*product(UNMEASURED, EVENTS)} == {
        ("mooncake-tcp-pull", SENDER_KILLED),
        ("mooncake-tcp-pull", SENDER_FENCED),
        ("mooncake-tcp-pull", RECEIVER_FENCED),
    }
    assert row("mooncake-tcp-pull", RECEIVER_FENCED)[2:4] == (True, None)


@pytest.mark.parametrize(("transport", "event"), [("carrier-pigeon", COMPLETED), ("tcp-epoch", "later"), ("", "")])
def test_unknown_transports_and_events_are_errors_and_not_answers(transport: str, event: str) -> None:
    for memory in MEMORIES:
        with pytest.raises(KeyError):
            proves(transport, event, memory)


# What holds of any transport


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_error_and_no_lapse_of_time_proves_anything(transport: str) -> None:
    for event, memory in product((ERRORED, TIMED_OUT, UNREGISTERED), MEMORIES):
        assert not proves(transport, event, memory)


@pytest.mark.parametrize("transport", sorted(set(TRANSPORTS) - set(UNMEASURED)))
def test_a_completed_operation_and_a_fenced_receiver_prove_the_target(transport: str) -> None:
    assert proves(transport, COMPLETED, "target")
    assert proves(transport, COMPLETED, "source")
    assert proves(transport, RECEIVER_FENCED, "target")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_fenced_receiver_says_nothing_of_the_source(transport: str) -> None:
    assert not proves(transport, RECEIVER_FENCED, "source")


def test_a_revoked_epoch_proves_the_target_only_where_frames_carry_one() -> None:
    assert [transport for transport in TRANSPORTS if proves(transport, EPOCH_REVOKED, "target")] == ["tcp-epoch"]
    assert not any(proves(transport, EPOCH_REVOKED, "source") for transport in TRANSPORTS)


def test_the_end_of_the_sender_proves_the_target_only_where_no_kernel_buffers_its_bytes() -> None:
    for event in (SENDER_KILLED, SENDER_FENCED):
        assert [transport for transport in TRANSPORTS if proves(transport, event, "target")] == ["shared-memory"]


# What was measured


@pytest.mark.parametrize("event", LANDED_AFTER_PUSH)
def test_mooncake_push_agrees_with_what_was_measured(event: str) -> None:
    found = row("mooncake-tcp-push", event)
    assert found.target is (LANDED_AFTER_PUSH[event] == 0)
    assert found.evidence.startswith("measured: Mooncake 0.3.13.post1 over TCP")


@pytest.mark.parametrize("event", LANDED_AFTER_PULL)
def test_mooncake_pull_agrees_with_what_was_measured(event: str) -> None:
    found = row("mooncake-tcp-pull", event)
    assert found.target is (LANDED_AFTER_PULL[event] == 0)
    assert found.evidence.startswith("measured: Mooncake 0.3.13.post1 over TCP")


@pytest.mark.parametrize("transport", ["shared-memory", "tcp-epoch", "mooncake-tcp-push"])
def test_source_pages_are_read_until_all_completed_or_the_sender_is_gone(transport: str) -> None:
    proof = {event for event in EVENTS if proves(transport, event, "source")}
    assert proof == {COMPLETED, SENDER_KILLED, SENDER_FENCED}


def test_what_the_sender_of_a_pull_does_was_not_measured() -> None:
    for event in (SENDER_KILLED, SENDER_FENCED):
        assert row("mooncake-tcp-pull", event)[2:] == (None, None, "not measured")
