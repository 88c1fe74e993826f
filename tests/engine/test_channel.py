"""Frames over a socket: whole or not at all, and the end of the other side is one error, however it ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvfence.engine.channel import HEAD, Channel, GoneError, pair


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = pair()
    yield left, right
    left.close()
    right.close()


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 20), min_size=1, max_size=10))
@settings(max_examples=60)
def test_frames_come_whole_and_in_order_however_the_stream_is_cut(frames: list[bytes], sizes: list[int]) -> None:
    left, right = pair()
    stream = b"".join(HEAD.pack(len(frame)) + frame for frame in frames)
    came: list[bytes] = []
    place = turn = 0
    try:
        while place < len(stream):
            part = stream[place : place + sizes[turn % len(sizes)]]
            left.socket.sendall(part)
            came += right.frames()
            place, turn = place + len(part), turn + 1
    finally:
        left.close()
        right.close()
    assert came == frames


def test_what_is_sent_is_received_both_ways(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send(b"there")
    right.send(b"")
    assert right.receive() == b"there"
    assert left.receive() == b""


def test_a_second_frame_is_kept_for_the_next_call(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    for word in (b"one", b"two", b"three"):
        left.send(word)
    assert right.receive() == b"one"
    assert right.receive() == b"two"
    assert right.receive() == b"three"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 4, 1 << 20, (1 << 21) + 3])
def test_a_frame_of_any_size_arrives(ends: tuple[Channel, Channel], size: int) -> None:
    left, right = ends
    frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sender = threading.Thread(target=left.send, args=(frame,))
    sender.start()
    came = right.receive()
    sender.join()
    assert came == frame


def test_a_frame_that_is_not_whole_is_not_given(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.socket.sendall(HEAD.pack(3) + b"ab")
    assert list(right.frames()) == []
    left.socket.sendall(b"c")
    assert list(right.frames()) == [b"abc"]


def test_the_end_of_the_stream_is_told_to_every_call(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.close()
    with pytest.raises(GoneError):
        list(right.frames())
    with pytest.raises(GoneError):
        right.receive()
    with pytest.raises(GoneError):
        right.send(b"anyone?")


def test_a_frame_cut_short_by_the_end_is_the_end(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.socket.sendall(HEAD.pack(100) + b"half")
    left.close()
    with pytest.raises(GoneError):
        right.receive()


@pytest.mark.parametrize("waits", [True, False])
def test_a_side_that_died_with_something_unread_is_gone_too(ends: tuple[Channel, Channel], waits: bool) -> None:
    """The system says `connection reset` then, and not the end of the stream."""
    left, right = ends
    right.send(b"never read")
    left.close()
    with pytest.raises(GoneError):
        if waits:
            right.receive()
        else:
            list(right.frames())


@given(st.binary(max_size=200))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_frames_or_not_yet(data: bytes) -> None:
    left, right = pair()
    try:
        left.socket.sendall(data + b"\0")
        frames = list(right.frames())
    finally:
        left.close()
        right.close()
    assert sum(len(frame) + HEAD.size for frame in frames) <= len(data) + 1


# Without waiting


def test_what_is_posted_waits_for_nobody_and_arrives_in_order(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    frames = [bytes([number]) * 100_000 for number in range(40)]
    for frame in frames:
        left.post(frame)  # nobody reads: the buffers of the system are full long before the last
    assert left.pending
    came: list[bytes] = []
    while len(came) < len(frames):
        came += right.frames()
        left.flush()
    assert came == frames
    assert not left.pending


def test_posting_to_nobody_is_told(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    right.close()
    with pytest.raises(GoneError):
        left.post(b"anyone?")


def test_what_is_small_is_posted_at_once(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.post(b"there")
    assert not left.pending
    left.flush()
    assert right.receive() == b"there"


def test_drain_waits_until_what_was_posted_is_taken() -> None:
    left, right = pair()
    frame = b"x" * (4 << 20)
    taken: list[bytes] = []
    reader = threading.Thread(target=lambda: taken.append(right.receive()))
    left.post(frame)
    assert left.pending
    reader.start()
    left.drain()
    reader.join()
    assert taken == [frame]
    assert not left.pending
    left.close()
    right.close()
