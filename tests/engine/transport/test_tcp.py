"""TCP: a frame is placed whole or not at all, never under a revoked lease, and never after the fence."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvfence.engine.memory import Memory
from kvfence.engine.transport import Refused, carrier_of, receiver_of
from kvfence.engine.transport import tcp as module
from kvfence.engine.transport.tcp import Carrier, Receiver
from kvfence.fence.transfer import Operation
from kvfence.fence.units import FULL, ROW, Unit
from tests.engine.conftest import TINY
from tests.engine.engines import descriptors

PEER = "decode-0.0"
HEAD = struct.Struct("<8sQQQQQ")
SOON = 5.0


def write(target: int = 6, engine: int = 1, epoch: tuple[int, int] = (1, 1), kind: str = FULL) -> Operation:
    return Operation("h", epoch, Unit(kind, 0), 0, target, engine, 1)


def head(target: int = 6, engine: int = 1, epoch: tuple[int, int] = (1, 1), size: int = TINY.page_bytes) -> bytes:
    return HEAD.pack(b"kvfence1", engine, *epoch, target, size)


def page(byte: int = 1) -> memoryview:
    return memoryview(bytes([byte]) * TINY.page_bytes)


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + SOON
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
    return holds()


def connect(where: str) -> socket.socket:
    host, _, port = where.partition(":")
    return socket.create_connection((host, int(port)), SOON)


@pytest.fixture
def receiver(memory: Memory) -> Iterator[Receiver]:
    made = Receiver(memory, 1, exposes_pool=False, door=True)
    yield made
    made.close()


@pytest.fixture
def carrier() -> Iterator[Carrier]:
    made = Carrier(SOON)
    yield made
    for _, connection in made._connections.values():
        connection.close()


# Placing


def test_a_unit_is_placed_whole_before_the_sender_hears_of_it(
    memory: Memory, receiver: Receiver, carrier: Carrier
) -> None:
    carrier.carry(write(7), page(9), PEER, receiver.where)
    assert memory.unit(7, FULL) == page(9)
    assert not any(memory.unit(6, FULL))
    assert not any(memory.unit(8, FULL))
    carrier.carry(write(6, kind=ROW), memoryview(b"\1" * TINY.row_bytes), PEER, receiver.where)
    assert set(memory.unit(6, ROW)) == {1}
    assert not any(memory.unit(6, FULL)[TINY.row_bytes :])
    assert not any(memory.pool.bytes)


def test_a_receiver_listens_on_this_host_only(receiver: Receiver) -> None:
    assert receiver.where.startswith("127.0.0.1:")


@pytest.mark.parametrize("target", [0, 3, 4, 5, 9, 1 << 40, (1 << 64) - 1])
def test_nothing_but_landing_slots_is_for_senders(
    memory: Memory, receiver: Receiver, carrier: Carrier, target: int
) -> None:
    with pytest.raises(Refused):
        carrier.carry(write(target), page(), PEER, receiver.where)
    carrier.carry(write(6), page(2), PEER, receiver.where)  # the connection is good
    assert not any(memory.pool.bytes)
    assert set(memory.arena.bytes[TINY.landing_bytes :]) == {0}


@pytest.mark.parametrize("engine", [0, 2, (1 << 64) - 1])
def test_a_frame_for_another_life_of_the_engine_is_refused(
    memory: Memory, receiver: Receiver, carrier: Carrier, engine: int
) -> None:
    with pytest.raises(Refused):
        carrier.carry(write(engine=engine), page(), PEER, receiver.where)
    assert not any(memory.arena.bytes)


def test_a_frame_of_a_revoked_lease_is_refused_and_of_another_one_not(
    memory: Memory, receiver: Receiver, carrier: Carrier
) -> None:
    receiver.revoke((1, 1))
    for target in (6, 7):
        with pytest.raises(Refused):
            carrier.carry(write(target), page(), PEER, receiver.where)
    assert not any(memory.arena.bytes)
    for place, epoch in enumerate([(1, 2), (2, 1), (0, 1)]):
        carrier.carry(write(6 + place, epoch=epoch), page(place + 1), PEER, receiver.where)
    assert [memory.unit(slot, FULL)[0] for slot in (6, 7, 8)] == [1, 2, 3]


def test_without_a_door_revoking_changes_nothing(memory: Memory, carrier: Carrier) -> None:
    with closing(Receiver(memory, 1, exposes_pool=False, door=False)) as receiver:
        receiver.revoke((1, 1))
        carrier.carry(write(), page(5), PEER, receiver.where)
        assert set(memory.unit(6, FULL)) == {5}


def test_the_pool_is_for_senders_where_there_is_no_landing_arena(memory: Memory, carrier: Carrier) -> None:
    with closing(Receiver(memory, 1, exposes_pool=True, door=True)) as receiver:
        carrier.carry(write(2), page(5), PEER, receiver.where)
        assert set(memory.page(2)) == {5}
        larger = memoryview(b"\1" * TINY.landing_bytes)
        small = 2 if len(larger) > TINY.page_bytes else 5
        with pytest.raises(Refused):
            carrier.carry(write(small), larger, PEER, receiver.where)
        assert set(memory.page(small)) <= {0, 5}


# Hostile bytes


@pytest.mark.parametrize(
    "data",
    [
        b"x" * HEAD.size,
        HEAD.pack(b"kvfence2", 1, 1, 1, 6, TINY.page_bytes) + page(),
        head(size=TINY.landing_bytes + 1) + b"\1" * (TINY.landing_bytes + 1),
        head(size=(1 << 64) - 1),
        b"GET / HTTP/1.1\r\nHost: somewhere.example\r\nUser-Agent: somebody\r\n\r\n",
    ],
)
def test_who_sends_what_is_no_frame_is_hung_up_on(memory: Memory, receiver: Receiver, data: bytes) -> None:
    with connect(receiver.where) as sender:
        sender.sendall(data)
        with suppress(ConnectionResetError):  # with bytes unread the system says it so
            assert sender.recv(1) == b""
    assert not any(memory.arena.bytes)
    assert not any(memory.pool.bytes)
    assert eventually(lambda: not receiver._senders)


@given(data=st.binary(max_size=2 * HEAD.size))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_bytes_place_nothing(memory: Memory, receiver: Receiver, data: bytes) -> None:
    with connect(receiver.where) as sender:
        sender.sendall(data)
        sender.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert sender.recv(1) == b""
    assert not any(memory.arena.bytes)


@pytest.mark.parametrize("sent", [0, 1, HEAD.size, HEAD.size + 1, HEAD.size + TINY.page_bytes - 1])
def test_a_frame_cut_short_places_nothing(memory: Memory, receiver: Receiver, sent: int) -> None:
    with connect(receiver.where) as sender:
        sender.sendall((head() + page())[:sent])
        sender.shutdown(socket.SHUT_WR)
        assert sender.recv(1) == b""
    assert not any(memory.arena.bytes)


def test_a_frame_in_many_pieces_is_placed_at_its_last_byte(memory: Memory, receiver: Receiver) -> None:
    data = head() + bytes(page(3))
    with connect(receiver.where) as sender:
        for start in range(0, len(data) - 1, 37):
            sender.sendall(data[start : min(start + 37, len(data) - 1)])
        assert not any(memory.arena.bytes)
        sender.sendall(data[-1:])
        assert sender.recv(1) == b"P"
    assert set(memory.unit(6, FULL)) == {3}


def test_several_frames_at_once_are_answered_one_by_one(memory: Memory, receiver: Receiver) -> None:
    with connect(receiver.where) as sender:
        sender.sendall(head(6) + page(1) + head(6, engine=9) + page(2) + head(7) + page(3))
        sender.shutdown(socket.SHUT_WR)
        with sender.makefile("rb") as stream:
            assert stream.read() == b"PRP"
    assert [memory.unit(slot, FULL)[0] for slot in (6, 7)] == [1, 3]


# Revoking and fencing


def test_a_slow_sender_holds_nobody_up_and_is_refused_at_its_end(
    memory: Memory, receiver: Receiver, carrier: Carrier
) -> None:
    with connect(receiver.where) as slow:
        slow.sendall(head(6) + page(1)[:-1])
        receiver.revoke((1, 1))
        carrier.carry(write(7, epoch=(1, 2)), page(2), PEER, receiver.where)
        slow.sendall(page(1)[-1:])
        assert slow.recv(1) == b"R"
    assert not any(memory.unit(6, FULL))
    assert set(memory.unit(7, FULL)) == {2}


def test_after_the_fence_nothing_lands_and_no_thread_is_left(memory: Memory, receiver: Receiver) -> None:
    before = threading.active_count()
    slow = [connect(receiver.where) for _ in range(3)]
    for sender in slow:
        sender.sendall(head(6) + page(1)[:-1])
    assert eventually(lambda: threading.active_count() == before + 3)
    receiver.fence(2)
    assert threading.active_count() == before
    for sender in slow:
        with sender, pytest.raises(OSError):  # noqa: PT011 (whichever says that the other side is gone)
            while True:
                sender.sendall(page(1))
    assert not any(memory.arena.bytes)


def test_an_old_port_refuses_after_the_fence_and_the_new_one_serves(
    memory: Memory, receiver: Receiver, carrier: Carrier
) -> None:
    old = receiver.where
    carrier.carry(write(6), page(1), PEER, old)
    receiver.revoke((1, 1))
    receiver.fence(2)
    assert receiver.where != old
    with pytest.raises(OSError):  # noqa: PT011
        carrier.carry(write(6), page(2), PEER, old)
    with pytest.raises(ConnectionRefusedError):
        carrier.carry(write(6), page(2), PEER, old)
    with pytest.raises(Refused):
        carrier.carry(write(6), page(2), PEER, receiver.where)
    assert set(memory.unit(6, FULL)) == {1}
    carrier.carry(write(6, engine=2, epoch=(1, 2)), page(3), PEER, receiver.where)
    assert set(memory.unit(6, FULL)) == {3}


class LateLock:
    """A lock that `late` threads get only after somebody else has held it."""

    def __init__(self, late: threading.Thread) -> None:
        self._lock = threading.Lock()
        self._late = late
        self.waits = threading.Event()
        self._held = threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread() is self._late:
            self.waits.set()
            self._held.wait(SOON)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if threading.current_thread() is not self._late:
            self._held.set()


def test_a_sender_who_comes_in_while_the_engine_is_fenced_does_not_hold_it_up(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was accepted just before, and is seen to only after every other connection has been shut."""
    receiver = Receiver(memory, 1, exposes_pool=False, door=True)
    lock = LateLock(receiver._listening)
    monkeypatch.setattr(receiver, "_lock", lock)
    with connect(receiver.where):
        lock.waits.wait(SOON)
        fencing = threading.Thread(target=receiver.fence, args=(2,), daemon=True)
        fencing.start()
        fencing.join(2)
        hung = fencing.is_alive()
    fencing.join(SOON)  # the sender is gone: whatever it held up goes on
    receiver.close()
    assert not hung


def test_many_senders_one_after_the_other_leave_nothing_behind(memory: Memory, receiver: Receiver) -> None:
    del memory
    before = descriptors()
    for _ in range(30):
        with connect(receiver.where) as sender:
            sender.sendall(head() + page())
            assert sender.recv(1) == b"P"
    assert eventually(lambda: descriptors() == before)
    assert eventually(lambda: not receiver._senders)


def test_more_senders_than_there_can_be_peers_are_sent_away_and_those_who_are_there_served(
    memory: Memory, receiver: Receiver, carrier: Carrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SENDERS", 3)
    carrier.carry(write(6), page(1), PEER, receiver.where)
    idle = [connect(receiver.where) for _ in range(2)]
    assert eventually(lambda: len(receiver._senders) == 3)
    with connect(receiver.where) as one_more:
        assert one_more.recv(1) == b""
    carrier.carry(write(6), page(2), PEER, receiver.where)
    for sender in idle:
        sender.close()
    assert eventually(lambda: len(receiver._senders) == 1)
    with connect(receiver.where) as sender:
        sender.sendall(head(7) + page(3))
        assert sender.recv(1) == b"P"
    assert [memory.unit(slot, FULL)[0] for slot in (6, 7)] == [2, 3]


def test_who_connects_and_says_nothing_is_hung_up_on_but_not_who_has_shown_a_frame(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_FRAME_SECONDS", 0.05)
    with closing(Receiver(memory, 1, exposes_pool=False, door=True)) as receiver:
        with connect(receiver.where) as silent:
            assert silent.recv(1) == b""
        with connect(receiver.where) as slow:
            slow.sendall(head() + page(1)[:-1])
            time.sleep(0.2)
            slow.sendall(page(1)[-1:])
            assert slow.recv(1) == b"P"


def test_a_sender_has_one_connection_to_a_peer_wherever_that_was(memory: Memory, carrier: Carrier) -> None:
    with closing(Receiver(memory, 1, exposes_pool=False, door=True)) as receiver:
        for engine in range(1, 6):
            carrier.carry(write(engine=engine), page(), PEER, receiver.where)
            receiver.fence(engine + 1)
        assert len(carrier._connections) == 1


# The sender's side


def hang_up(server: socket.socket) -> None:
    server.accept()[0].close()


def test_a_receiver_that_hangs_up_is_an_error_and_connected_to_anew(carrier: Carrier) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        for _ in range(2):
            thread = threading.Thread(target=hang_up, args=(server,))
            thread.start()
            with pytest.raises(OSError):  # noqa: PT011
                carrier.carry(write(), page(), PEER, where)
            thread.join()
    assert carrier._connections == {}


def test_a_receiver_that_never_answers_is_an_error_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(TimeoutError):
            Carrier(0.05).carry(write(), page(), PEER, where)


def test_the_transport_is_found_by_its_name(memory: Memory) -> None:
    receiver = receiver_of("tcp-epoch", memory, 1, exposes_pool=False, door=True)
    assert isinstance(receiver, Receiver)
    receiver.close()
    assert isinstance(carrier_of("tcp-epoch"), Carrier)
