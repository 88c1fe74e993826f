"""Frames over a socket, for processes that wait for several things at once."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from typing import Final

HEAD: Final = struct.Struct("<I")
"""The bytes of a frame, before them."""
CHUNK: Final = 1 << 20


class GoneError(ConnectionError):
    """The other side has closed, or died."""


def whole_frames(buffer: bytearray) -> Iterator[bytes]:
    """Take the frames that are whole out of what has been read, one by one."""
    while len(buffer) >= HEAD.size:
        (size,) = HEAD.unpack_from(buffer)
        end = HEAD.size + size
        if len(buffer) < end:
            return
        frame = bytes(memoryview(buffer)[HEAD.size : end])
        del buffer[:end]
        yield frame


class Channel:
    """A stream socket that carries frames both ways.

    `send` and `receive` wait; `post`, `flush` and `frames` do not, for those who must never wait for each other.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = bytearray()
        self._posted = bytearray()

    def fileno(self) -> int:
        """Give the descriptor, to wait on."""
        return self.socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            GoneError: if nobody will read it.

        """
        try:
            self.socket.sendall(HEAD.pack(len(frame)) + frame)
        except OSError as error:
            raise GoneError(str(error)) from None

    def post(self, frame: bytes) -> None:
        """Send a frame as soon as the other side takes it: what is left is for `flush`.

        Raises:
            GoneError: if nobody will read it.

        """
        self._posted += HEAD.pack(len(frame)) + frame
        self.flush()

    def flush(self) -> None:
        """Send what is left, as far as it is taken.

        Raises:
            GoneError: if nobody will read it.

        """
        try:
            while self._posted:
                sent = self.socket.send(self._posted[:CHUNK], socket.MSG_DONTWAIT)
                del self._posted[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            raise GoneError(str(error)) from None

    def drain(self) -> None:
        """Send what is left, and wait until it is taken.

        Raises:
            GoneError: if nobody will read it.

        """
        while self._posted:
            select.select([], [self.socket], [])
            self.flush()

    @property
    def pending(self) -> bool:
        """Say whether something is left to be flushed."""
        return bool(self._posted)

    def frames(self) -> Iterator[bytes]:
        """Read once, and give the frames that are whole.

        Raises:
            GoneError: at the end of the stream.

        """
        self._read()
        yield from self._whole()

    def receive(self) -> bytes:
        """Wait for one frame.

        Raises:
            GoneError: at the end of the stream.

        """
        while True:
            frame = next(self._whole(), None)
            if frame is not None:
                return frame
            self._read()

    def _read(self) -> None:
        try:
            data = self.socket.recv(CHUNK)
        except OSError as error:
            raise GoneError(str(error)) from None
        if not data:
            raise GoneError("end of stream")
        self._buffer += data

    def _whole(self) -> Iterator[bytes]:
        return whole_frames(self._buffer)

    def close(self) -> None:
        """Close it."""
        self.socket.close()


def pair() -> tuple[Channel, Channel]:
    """Make two ends."""
    left, right = socket.socketpair()
    return Channel(left), Channel(right)
