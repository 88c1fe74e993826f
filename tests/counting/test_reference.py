from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvfence.counting.errors import CounterFailedError, OverloadedError
from kvfence.counting.reference import Reference, UnreadableError
from tests.counting import real

LONG = b"the quick brown fox " * 100_000


def running(pid: int) -> bool:
    """Tell whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not running(pid)


def pid_of(reference: Reference) -> int:
    assert reference._process is not None
    return reference._process.pid


def test_counts_with_and_without_special_tokens() -> None:
    async def run() -> None:
        reference = Reference(real.sentence_piece())
        with_them = await reference.count(b"a b", add_special_tokens=True)
        assert await reference.count(b"a b", add_special_tokens=False) == with_them - 1
        assert await reference.count("\U0001f600".encode(), add_special_tokens=False) == 5  # a mark and four bytes
        assert await reference.count(b"<s></s>", add_special_tokens=False) == 2
        assert await reference.count(b"", add_special_tokens=False) == 0
        await reference.close()

    asyncio.run(run())


def test_a_process_that_died_is_started_again() -> None:
    async def run() -> None:
        reference = Reference(real.sentence_piece())
        number = await reference.count(b"a b c", add_special_tokens=True)
        first = pid_of(reference)
        os.kill(first, signal.SIGKILL)
        assert ends(first)
        assert await reference.count(b"a b c", add_special_tokens=True) == number
        assert pid_of(reference) != first
        await reference.close()

    asyncio.run(run())


def test_a_text_that_takes_too_long_fails_and_the_next_is_counted() -> None:
    async def run() -> None:
        reference = Reference(real.sentence_piece(), seconds=30)
        await reference.count(b"a", add_special_tokens=True)
        reference._seconds = 0.05
        with pytest.raises(CounterFailedError, match=r"longer than 0\.05 s"):
            await reference.count(LONG * 10, add_special_tokens=True)
        reference._seconds = 30
        assert await reference.count(b"", add_special_tokens=True) == 1
        await reference.close()

    asyncio.run(run())


def test_what_waits_is_bounded_in_bytes() -> None:
    async def run() -> None:
        reference = Reference(real.sentence_piece(), waiting_bytes=len(LONG) // 2)
        first = asyncio.create_task(reference.count(LONG, add_special_tokens=True))  # alone, it may be longer
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await reference.count(b"a", add_special_tokens=True)
        assert await first > 100_000
        assert await reference.count(b"", add_special_tokens=True) == 1
        await reference.close()

    asyncio.run(run())


def test_a_cancelled_count_frees_its_place() -> None:
    async def run() -> None:
        reference = Reference(real.sentence_piece())
        tasks = [asyncio.create_task(reference.count(LONG, add_special_tokens=True)) for _ in range(20)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        began = time.monotonic()
        assert await reference.count(b"", add_special_tokens=True) == 1
        assert reference._waiting == 0
        assert time.monotonic() - began < 20  # one of them was running, the others never will
        await reference.close()

    asyncio.run(run())


def test_closing_ends_the_process_and_what_waits() -> None:
    async def run() -> int:
        reference = Reference(real.sentence_piece())
        await reference.count(b"a", add_special_tokens=True)
        pid = pid_of(reference)
        waiting = [asyncio.create_task(reference.count(LONG * 10, add_special_tokens=True)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await reference.close()
        for one in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(one, CounterFailedError | asyncio.CancelledError)
        with pytest.raises(CounterFailedError, match="closed"):
            await reference.count(b"a", add_special_tokens=True)
        await reference.close()
        return pid

    assert not running(asyncio.run(run()))


KILLED = """
import os, signal, sys
from kvfence.counting.reference import Reference
from tests.counting import real
import asyncio
async def run():
    reference = Reference(real.sentence_piece())
    await reference.count(b"a", add_special_tokens=True)
    task = asyncio.create_task(reference.count(b"the quick brown fox " * 2_000_000, add_special_tokens=True))
    await asyncio.sleep(0.2)
    print(reference._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""


def test_no_process_is_left_when_its_owner_is_killed() -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ends(int(ended.stdout))


@pytest.mark.parametrize("content", [b"{}", b"", b'{"model": {"type": "BPE"}}', b"\xff"])
def test_what_is_no_tokenizer_is_told(content: bytes) -> None:
    reference = Reference(content)
    with pytest.raises(UnreadableError):
        reference.check([b"a"], add_special_tokens=False)
    reference.close_now()
