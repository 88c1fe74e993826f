"""The transfer engine of prefill is a process: what it reports, and that its end is the end of its writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvfence.engine.channel import GoneError
from kvfence.engine.memory import Memory
from kvfence.engine.mover import Mover, Report
from kvfence.engine.transport.shared import Receiver
from kvfence.fence.transfer import Operation
from kvfence.fence.units import FULL, ROW, Unit
from tests.engine.conftest import TINY
from tests.engine.engines import descriptors

# The process that is forked copies bytes and answers; it takes no lock that a thread of this one may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

LONG = 60.0


def write(number: int = 0, target: int = 6, kind: str = FULL) -> Operation:
    return Operation("h", (1, 1), Unit(kind, number), 4 if kind == ROW else 2, target, 1, 1)


def state(pid: int) -> str:
    """Give how a process is: "" if it is no more, Z if nobody has waited for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
    return holds()


@pytest.fixture
def other() -> Iterator[Memory]:
    """Map the memory of a decode rank."""
    made = Memory(TINY)
    yield made
    made.pool.close()
    made.arena.close()


@pytest.fixture
def receiver(other: Memory) -> Receiver:
    return Receiver(other, exposes_pool=False)


def mover_of(memory: Memory, seconds: float = LONG) -> Iterator[Mover]:
    made = Mover(memory, "shared-memory", seconds, ())
    yield made
    if state(made.pid):
        made.stop()
    made.channel.close()


@pytest.fixture
def mover(memory: Memory) -> Iterator[Mover]:
    yield from mover_of(memory)


def reports(mover: Mover, count: int = 1) -> list[tuple[Report, bool]]:
    came: list[tuple[Report, bool]] = []
    while len(came) < count:
        came += mover.reports()
    return came


def test_it_completes_operations_in_order(memory: Memory, other: Memory, receiver: Receiver, mover: Mover) -> None:
    memory.page(2)[:] = b"\7" * TINY.page_bytes  # after the process was forked: it reads the same memory
    memory.page(4)[:] = b"\5" * TINY.row_bytes
    operations = [write(0, 6), write(1, 8), write(0, 7, ROW)]
    for operation in operations:
        mover.begin(operation, "decode-0.0", receiver.where)
    came = reports(mover, 3)
    assert [report.operation for report, _ in came] == operations
    assert {(report.verdict, awaited) for report, awaited in came} == {("completed", True)}
    assert all(report.seconds >= 0 for report, _ in came)
    assert [set(other.unit(slot, FULL)) for slot in (6, 8)] == [{7}, {7}]
    assert set(other.unit(7, ROW)) == {5}
    assert mover.deadline is None


@pytest.mark.parametrize("target", [0, 5, 9, 1000])
def test_an_unknown_slot_is_rejected_and_the_next_served(
    other: Memory, receiver: Receiver, mover: Mover, target: int
) -> None:
    mover.begin(write(target=target), "decode-0.0", receiver.where)
    mover.begin(write(1), "decode-0.0", receiver.where)
    assert [report.verdict for report, _ in reports(mover, 2)] == ["rejected", "completed"]
    assert not any(other.pool.bytes)


def test_memory_that_is_gone_is_an_error_and_the_next_is_served(receiver: Receiver, mover: Mover) -> None:
    mover.begin(write(), "decode-0.0", receiver.where.replace("/fd/", "/fd/999999"))
    mover.begin(write(1), "decode-0.0", receiver.where)
    assert [report.verdict for report, _ in reports(mover, 2)] == ["errored", "completed"]


def test_memory_that_is_smaller_than_was_said_is_an_error_and_the_next_is_served(
    receiver: Receiver, mover: Mover
) -> None:
    place = json.loads(receiver.where)
    place["geometry"][-1] = 300_000  # landing slots
    mover.begin(write(), "decode-0.0", json.dumps(place))
    mover.begin(write(1), "decode-0.0", receiver.where)
    assert [report.verdict for report, _ in reports(mover, 2)] == ["errored", "completed"]


def test_the_same_operation_again_is_carried_out_and_waited_for_by_nobody(
    memory: Memory, other: Memory, receiver: Receiver, mover: Mover
) -> None:
    mover.begin(write(), "decode-0.0", receiver.where)
    reports(mover)
    memory.page(2)[:] = b"\7" * TINY.page_bytes
    mover.again(write(), "decode-0.0", receiver.where)
    ((report, awaited),) = reports(mover)
    assert (report.verdict, awaited) == ("completed", False)
    assert set(other.unit(6, FULL)) == {7}


# Time


def test_what_takes_too_long_is_overdue_once_and_its_report_comes_too_late(memory: Memory, receiver: Receiver) -> None:
    for mover in mover_of(memory, 0.05):
        os.kill(mover.pid, signal.SIGSTOP)
        mover.begin(write(), "decode-0.0", receiver.where)
        assert mover.deadline is not None
        assert mover.deadline <= time.monotonic() + 0.05
        time.sleep(0.06)
        assert mover.overdue() == [write()]
        assert mover.overdue() == []
        assert mover.deadline is None
        os.kill(mover.pid, signal.SIGCONT)
        ((report, awaited),) = reports(mover)
        assert (report.verdict, awaited) == ("completed", False)


def test_what_is_in_time_is_not_overdue(receiver: Receiver, mover: Mover) -> None:
    mover.begin(write(), "decode-0.0", receiver.where)
    assert mover.overdue() == []
    assert mover.deadline is not None
    assert mover.deadline > time.monotonic() + LONG / 2


# The end


def test_the_fence_ends_a_stopped_process_before_it_writes(
    memory: Memory, other: Memory, receiver: Receiver, mover: Mover
) -> None:
    memory.page(2)[:] = b"\7" * TINY.page_bytes
    old = mover.pid
    os.kill(old, signal.SIGSTOP)
    assert eventually(lambda: state(old) == "T")
    mover.begin(write(), "decode-0.0", receiver.where)
    mover.fence()
    assert state(old) == ""
    assert mover.pid != old
    assert mover.deadline is None
    assert not any(other.arena.bytes)
    mover.begin(write(1, 7), "decode-0.0", receiver.where)
    ((report, awaited),) = reports(mover)  # of the new one, and nothing of the old one
    assert (report.operation, report.verdict, awaited) == (write(1, 7), "completed", True)
    assert not any(other.unit(6, FULL))


def test_fencing_often_leaves_no_process_and_no_descriptor(mover: Mover) -> None:
    before = len(descriptors())
    pids = [mover.pid]
    for _ in range(5):
        mover.fence()
        pids.append(mover.pid)
    assert len(descriptors()) == before
    assert [state(pid) for pid in pids[:-1]] == [""] * 5


def test_stopping_leaves_no_process_and_no_descriptor(memory: Memory) -> None:
    before = len(descriptors())
    mover = Mover(memory, "tcp-epoch", LONG, ())
    mover.stop()
    assert state(mover.pid) == ""
    assert len(descriptors()) == before


def test_it_ends_by_itself_when_its_rank_is_gone(memory: Memory) -> None:
    mover = Mover(memory, "shared-memory", LONG, ())
    mover.channel.close()
    _, status = os.waitpid(mover.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_death_of_the_process_is_told_to_whoever_waits_for_reports(receiver: Receiver, mover: Mover) -> None:
    os.kill(mover.pid, signal.SIGKILL)
    assert eventually(lambda: state(mover.pid) == "Z")
    with pytest.raises(GoneError):
        reports(mover)
    with pytest.raises(GoneError):
        mover.begin(write(), "decode-0.0", receiver.where)


def test_what_is_private_to_the_rank_is_not_held_open_by_the_process(memory: Memory) -> None:
    private, kept = os.pipe()
    mover = Mover(memory, "shared-memory", LONG, (kept,))
    try:
        os.close(kept)
        assert os.read(private, 1) == b""  # the end of the pipe, though the process lives
        assert state(mover.pid) in {"R", "S", "D"}
    finally:
        os.close(private)
        mover.stop()


# Faults, in the lab


def test_faults_do_what_they_say(memory: Memory, other: Memory, receiver: Receiver, mover: Mover) -> None:
    memory.page(2)[:] = b"\7" * TINY.page_bytes
    memory.page(3)[:] = b"\3" * TINY.page_bytes
    mover.begin(write(0, 6), "decode-0.0", receiver.where, "torn")
    mover.begin(write(1, 7), "decode-0.0", receiver.where, "substitute", 3)
    mover.begin(write(2, 8), "decode-0.0", receiver.where, "slow")
    came = reports(mover, 3)
    assert {report.verdict for report, _ in came} == {"completed"}
    assert came[2][0].seconds >= 0.05
    half = TINY.page_bytes // 2
    assert other.unit(6, FULL) == b"\7" * half + bytes(TINY.page_bytes - half)
    assert set(other.unit(7, FULL)) == {3}
    assert set(other.unit(8, FULL)) == {7}


def test_a_process_that_was_to_stop_writes_when_it_is_continued(
    memory: Memory, other: Memory, receiver: Receiver, mover: Mover
) -> None:
    mover.begin(write(), "decode-0.0", receiver.where, "stop")
    assert eventually(lambda: state(mover.pid) == "T")
    assert not any(other.arena.bytes)
    memory.page(2)[:] = b"\7" * TINY.page_bytes  # what lies there by then is what is sent
    os.kill(mover.pid, signal.SIGCONT)
    assert reports(mover)[0][0].verdict == "completed"
    assert set(other.unit(6, FULL)) == {7}


def test_it_ends_when_its_rank_is_killed() -> None:
    """Not even a signal that cannot be caught leaves it behind."""
    script = (
        "import time\n"
        "from kvfence.engine.memory import Memory\n"
        "from kvfence.engine.mover import Mover\n"
        "from tests.engine.conftest import TINY\n"
        "print(Mover(Memory(TINY), 'shared-memory', 60, ()).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as rank:
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        rank.kill()
    assert eventually(lambda: state(pid) in {"", "Z"})


def test_a_stopped_process_holds_up_nobody_who_begins_operations(
    other: Memory, receiver: Receiver, mover: Mover
) -> None:
    os.kill(mover.pid, signal.SIGSTOP)
    count = 3000
    for number in range(count):
        mover.begin(write(number), "decode-0.0", receiver.where)
    assert mover.channel.pending
    mover.fence()
    assert not mover.channel.pending
    assert mover.deadline is None
    assert not any(other.arena.bytes)
