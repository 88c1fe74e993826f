"""One role of a pair as a process group, from its command to its end."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

SHOWN: Final = ("SGLANG_", "KVFENCE_", "MC_", "MOONCAKE_")
GRACE: Final = 8.0
TAIL: Final = 4000
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (only what the group has mapped)


@dataclass(frozen=True)
class Launch:
    """How a role is started.

    Args:
        role: which one, or what else it is.
        command: the whole command line.
        added: variables beside those of this process.
        log: where its output goes.
        shown: how variables begin that a bundle tells. Others may be secrets.

    """

    role: str
    command: tuple[str, ...]
    added: Mapping[str, str]
    log: Path
    shown: tuple[str, ...] = SHOWN

    def told(self) -> dict[str, str]:
        """Give the variables that may be told."""
        return {name: value for name, value in self.added.items() if name.startswith(self.shown)}

    def script(self) -> str:
        """Give a shell script that says what was started, with the variables that may be told."""
        told = (f"export {name}={shlex.quote(value)}" for name, value in sorted(self.told().items()))
        return "\n".join(["#!/bin/sh", *told, f"exec {shlex.join(('python', *self.command[1:]))}", ""])


class Server:
    """A started role. `grace` is the seconds that it has to end by itself."""

    grace = GRACE

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.shared: set[int] = set()
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(SHOWN)}
        with launch.log.open("w") as log:
            log.write(f"+ ({datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}) python {shlex.join(launch.command[1:])}\n")
            log.flush()
            self.process = subprocess.Popen(
                launch.command,
                env=inherited | dict(launch.added),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether the process that was started has ended."""
        return self.process.poll() is not None

    def tail(self) -> str:
        """Give the end of the log."""
        return self.launch.log.read_text(errors="replace")[-TAIL:]

    def notice(self) -> None:
        """Note the shared memory that the group has mapped. A process that is killed leaves it behind.

        It is known by its inode: a semaphore is mapped under another name than it is left with.
        """
        for process in _members(self.process.pid):
            with contextlib.suppress(OSError):
                lines = (process / "maps").read_text(errors="replace").splitlines()
                self.shared |= {int(line.split(maxsplit=5)[4]) for line in lines if f" {SHARED_MEMORY}/" in line}

    def stop(self) -> None:
        """End the whole group, wait until nothing of it is left, and remove the shared memory that it leaves."""
        self.notice()
        if not self.ended:
            self.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + self.grace
        while self._alive() and time.monotonic() < until:
            time.sleep(0.1)
        while self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            time.sleep(0.1)
        for path in SHARED_MEMORY.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino in self.shared:
                    path.unlink()

    def _alive(self) -> bool:
        self.process.poll()  # takes leave of the group's first process, which would count as alive
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _members(group: int) -> Iterator[Path]:
    """Give the /proc directories of a process group."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                yield process
