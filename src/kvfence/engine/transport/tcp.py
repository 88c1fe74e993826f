"""TCP, with the lease in every frame: the receiver places no frame of another engine or of a revoked lease.

A frame is read whole into memory of the receiver's own before it is looked at under the lock that `revoke` takes too.
So a frame is placed whole or not at all, a stalled sender holds nobody up, and a revocation holds once it returns. A
frame is answered by one byte after the last byte was placed, or when it was refused.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Final

from kvfence.engine.memory import Memory
from kvfence.engine.transport.refused import Refused
from kvfence.fence.transfer import Operation

_FRAME: Final = struct.Struct("<8sQQQQQ")  # magic, engine, epoch (2), target, bytes that follow
_MAGIC: Final = b"kvfence1"
MOST_SENDERS: Final = 128
"""Connections at a time: one of each prefill rank that hands off here, and room to spare."""
FIRST_FRAME_SECONDS: Final = 10.0
"""How long a connection may be open before its first frame begins."""
_PLACED: Final = b"P"
_REFUSED: Final = b"R"


class Receiver:
    """The end on decode: a port of this host, and a thread for it and for each sender."""

    def __init__(self, memory: Memory, engine: int, *, exposes_pool: bool, door: bool, host: str = "127.0.0.1") -> None:
        self._memory = memory
        self._exposes_pool = exposes_pool
        self._door = door
        self._host = host
        self._lock = threading.Lock()
        self._revoked: set[tuple[int, int]] = set()
        self._open(engine)

    def _open(self, engine: int) -> None:
        self._engine = engine
        self._listener: socket.socket | None = socket.create_server((self._host, 0), backlog=MOST_SENDERS)
        self.where = "{}:{}".format(*self._listener.getsockname()[:2])
        self._senders: dict[socket.socket, threading.Thread] = {}
        self._listening = threading.Thread(target=self._listen, args=(self._listener,), daemon=True)
        self._listening.start()

    def _listen(self, listener: socket.socket) -> None:
        """Take senders in until the port is closed; more than there can be peers are sent away."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._listener is not listener:
                    return
                time.sleep(0.05)  # as when there are no descriptors left: they come back
                continue
            with self._lock:
                if self._listener is listener and len(self._senders) < MOST_SENDERS:
                    thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                    self._senders[connection] = thread
                    thread.start()
                    continue
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        """Take frames in until the sender closes, or says what is no frame."""
        head = memoryview(bytearray(_FRAME.size))
        staging = memoryview(b"")
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(FIRST_FRAME_SECONDS)
                while _read(connection, head):
                    magic, engine, incarnation, counter, target, size = _FRAME.unpack(head)
                    if magic != _MAGIC or size > self._memory.geometry.landing_bytes:
                        return
                    connection.settimeout(None)  # whoever knows the shape of a frame may pause as long as it likes
                    staging = staging or memoryview(bytearray(self._memory.geometry.landing_bytes))
                    if not _read(connection, staging[:size]):
                        return
                    placed = self._place(engine, (incarnation, counter), target, staging[:size])
                    connection.sendall(_PLACED if placed else _REFUSED)
        except OSError:  # the sender is gone or silent, or this end is being closed
            pass
        finally:
            with self._lock:
                self._senders.pop(connection, None)

    def _place(self, engine: int, epoch: tuple[int, int], target: int, data: memoryview) -> bool:
        """Write a frame into its target; False if it may not land."""
        try:
            in_arena, start, room = self._memory.geometry.locate(target)
        except ValueError:
            return False
        if not in_arena and not self._exposes_pool:
            return False
        with self._lock:
            if engine != self._engine or (self._door and epoch in self._revoked) or len(data) > room:
                return False
            whole = self._memory.arena.bytes if in_arena else self._memory.pool.bytes
            whole[start : start + len(data)] = data
            return True

    def revoke(self, epoch: tuple[int, int]) -> None:
        """Place no frame of this lease any more."""
        with self._lock:
            self._revoked.add((epoch[0], epoch[1]))

    def fence(self, engine: int) -> None:
        """Close the port and every connection, wait until nobody places anything, and open another port."""
        self.close()
        self._revoked = set()  # their frames are of an engine that is no more
        self._open(engine)

    def close(self) -> None:
        """Close the port and every connection, and wait until no thread of them runs any more."""
        with self._lock:
            listener, self._listener = self._listener, None
            self._engine = -1
        if listener is None:
            return
        _shut(listener)
        listener.close()
        self._listening.join()
        with self._lock:  # no sender is added any more
            senders = dict(self._senders)
        for connection, thread in senders.items():
            _shut(connection)
            thread.join()


class Carrier:
    """The end on prefill: a connection to each receiver."""

    def __init__(self, seconds: float = 600.0) -> None:
        self._seconds = seconds
        self._connections: dict[str, tuple[str, socket.socket]] = {}

    def carry(self, operation: Operation, data: memoryview, peer: str, where: str) -> None:
        """Send a unit in a frame, and wait until it is placed or refused."""
        head = _FRAME.pack(_MAGIC, operation.engine, *operation.epoch, operation.target, len(data))
        try:
            connection = self._connect(peer, where)
            connection.sendall(head)
            connection.sendall(data)
            answer = connection.recv(1)
        except OSError:
            self._hang_up(peer)
            raise
        if answer == _REFUSED:
            raise Refused("the receiver placed nothing")
        if answer != _PLACED:
            self._hang_up(peer)
            raise ConnectionResetError("the receiver closed the connection")

    def _connect(self, peer: str, where: str) -> socket.socket:
        known = self._connections.get(peer)
        if known is not None and known[0] == where:
            return known[1]
        self._hang_up(peer)
        host, _, port = where.rpartition(":")
        connection = socket.create_connection((host, int(port)), self._seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[peer] = where, connection
        return connection

    def _hang_up(self, peer: str) -> None:
        _, connection = self._connections.pop(peer, ("", None))
        if connection is not None:
            connection.close()


def _read(connection: socket.socket, into: memoryview) -> bool:
    """Fill a buffer; False if the stream ends before."""
    while into:
        count = connection.recv_into(into)
        if not count:
            return False
        into = into[count:]
    return True


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
