"""A process that has loaded what ranks need and forks them: starting one takes milliseconds.

It is asked over a socket: a frame with the set-up, and the descriptors of the new process. It answers with its number.
Nobody waits for ranks; whoever needs to know that one has ended holds the other end of a pipe that ends with it.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec

from kvfence.engine import rank
from kvfence.engine.rank import Setup

MOST_FDS = 64
SECONDS = 10.0
_SIZE = struct.Struct("<I")
_PID = struct.Struct("<i")


class Zygote:
    """The caller's side."""

    def __init__(self) -> None:
        """Start the process."""
        mine, its = socket.socketpair()
        with its:
            environment = {**os.environ, **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")}
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter, with a module of this package)
                [sys.executable, "-m", "kvfence.engine.zygote", str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                process_group=0,  # a signal from the terminal is for whoever started it
            )
        mine.settimeout(SECONDS)
        self._socket = mine
        self._turn = threading.Lock()

    def spawn(self, setup: Setup, fds: list[int]) -> int:
        """Start a rank, and give its process number. May be called in any thread.

        Raises:
            OSError: if the process that forks is gone, or does not answer in time; then it can be used no more.

        """
        frame = msgspec.msgpack.encode(setup)
        with self._turn:
            socket.send_fds(self._socket, [_SIZE.pack(len(frame))], fds)
            self._socket.sendall(frame)
            answer = self._socket.recv(_PID.size, socket.MSG_WAITALL)
        if len(answer) < _PID.size:
            raise ConnectionError("no rank can be started any more")
        return int(_PID.unpack(answer)[0])

    def kill(self) -> None:
        """End the process whatever it does."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """End the process; ranks end with their links."""
        self._socket.close()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:  # it was stopped, perhaps
            self._process.kill()
            self._process.wait()


def serve(connection: socket.socket) -> None:
    """Fork a rank for each request, until the caller is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system takes ranks away that have ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        head, fds, _, _ = socket.recv_fds(connection, _SIZE.size, MOST_FDS)
        if not head:
            return
        frame = connection.recv(_SIZE.unpack(head)[0], socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become(msgspec.msgpack.decode(frame, type=Setup), list(fds))
        for fd in fds:
            os.close(fd)
        connection.sendall(_PID.pack(pid))


def _become(setup: Setup, fds: list[int]) -> None:
    """Be a rank, and nothing after."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        rank.main(setup, fds)
    finally:
        os._exit(0)


if __name__ == "__main__":
    with suppress(ConnectionError):
        serve(socket.socket(fileno=int(sys.argv[1])))
