"""Processes that the benchmark starts, and ends whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

STOP_SECONDS = 2.0


def free_port() -> int:
    """Give a port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Process:
    """A process in a session of its own, so that Ctrl-C reaches the benchmark alone, which then ends the process.

    Attributes:
        pid: of the process; also the id of its session.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None, stdout: int | None = None
    ) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self.log if stdout is None else stdout,
            stderr=self.log,
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
        self.pid = self.popen.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process and its children."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(STOP_SECONDS)
        self.signal(signal.SIGKILL)
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout, self.log):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def signal(self, number: int) -> None:
        """Send a signal to all that is left of the session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def said(self) -> str:
        """Give the last characters that it wrote."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]


class Worker(Process):
    """A process of the rig, which is spoken to line by line."""

    def __init__(self, module: str, *arguments: str) -> None:
        here = {"PYTHONPATH": str(Path(__file__).parents[1])}
        super().__init__([sys.executable, "-m", f"gateway_rig.{module}", *arguments], here, subprocess.PIPE)

    def line(self) -> bytes:
        """Read a line; one must come."""
        assert self.popen.stdout is not None
        if line := self.popen.stdout.readline():
            return bytes(line)
        raise AssertionError(f"a process of the rig ended: {self.said()}")


class Upstream(Worker):
    """The fake engine.

    Attributes:
        port: that it listens on.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__("upstream", str(tokens))
        self.port = int(self.line())


class Client(Worker):
    """The load client; its orders are in `client`."""

    def __init__(self) -> None:
        super().__init__("client")

    def order(self, do: str, **order: float) -> dict[str, Any]:
        """Give an order, and wait for the answer to it."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        self.popen.stdin.flush()
        found: dict[str, Any] = json.loads(self.line())
        return found
