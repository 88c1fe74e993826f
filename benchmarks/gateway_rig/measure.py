"""What a process and its children use: CPU time and resident memory."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PAGE = os.sysconf("SC_PAGESIZE")


def tree(root: int) -> list[int]:
    """Give the ids of a process and of all that descend from it, as far as they live."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = (Path(entry.path) / "stat").read_text()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])  # its name may hold blanks
    found = [root]
    for member in found:  # grows as it goes
        found.extend(pid for pid, parent in parents.items() if parent == member)
    return found


def cpu(root: int) -> float:
    """Give the CPU seconds used so far, user and system, by all threads of a process tree.

    From each process's CPU clock (clock_getcpuclockid(3)): it counts ended threads too, and in nanoseconds, where
    /proc/PID/stat counts ticks of ten milliseconds.
    """
    total = 0.0
    for pid in tree(root):
        clock = ctypes.c_int()
        if _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)) == 0:
            try:
                total += time.clock_gettime(clock.value)
            except OSError:  # it has ended in between
                continue
    return total


def resident(root: int) -> int:
    """Give the resident bytes of a process tree; pages that two of them share count twice."""
    total = 0
    for pid in tree(root):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        except OSError:  # it has ended in between
            continue
    return total
