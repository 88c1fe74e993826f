"""The reference count: Hugging Face `tokenizers`, as the engines have it, in a process of its own.

The process is started when first needed and again after it died. Calls take their turn; a call that takes too long, or
loses the process twice, fails. Measured on a 4 MB text: the library's `encode` holds the interpreter's lock for all of
its 5 seconds, so that a thread would not do; and a process can be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvfence.counting import reference_main
from kvfence.counting.errors import CounterFailedError, OverloadedError, UncountableTextError
from kvfence.counting.reference_main import ANSWER, ASK, FAILED

SECONDS = 60.0
WAITING_BYTES = 256 << 20


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text: how many, and a checksum of which (0 if it was not asked for)."""

    number: int
    checksum: int


class UnreadableError(Exception):
    """The library cannot read this tokenizer."""


class Reference:
    """Counts texts with the library that the engines use.

    Args:
        tokenizer: the content of a `tokenizer.json`.
        seconds: the longest that one text may take; the process is ended then.
        waiting_bytes: the most text that may wait, in bytes; one text may always, however long.

    """

    def __init__(self, tokenizer: bytes, *, seconds: float = SECONDS, waiting_bytes: int = WAITING_BYTES) -> None:
        self._tokenizer = tokenizer
        self._seconds = seconds
        self._most = waiting_bytes
        self._waiting = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None  # of the one thread of the pool alone
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvfence-reference")
        self._closed = False

    async def count(self, text: bytes, *, add_special_tokens: bool) -> int:
        """Give the number of tokens of a text in UTF-8.

        A call that is cancelled while it waits for its turn takes no turn.

        Raises:
            UncountableTextError: the library refuses it.
            OverloadedError: too much text waits already.
            CounterFailedError: it took too long, or its process died.

        """
        self._begin(len(text))
        try:
            running = self._pool.submit(self._in_turn, text, add_special_tokens, False)
        except RuntimeError:
            self._end(len(text))
            raise CounterFailedError("the counter is closed") from None
        running.add_done_callback(lambda _: self._end(len(text)))
        return (await asyncio.wrap_future(running)).number

    def check(self, texts: Iterable[bytes], *, add_special_tokens: bool) -> list[Tokens]:
        """Count some texts, and wait for it: for the start of a program.

        Raises:
            UnreadableError: the library cannot read the tokenizer.
            CounterFailedError, UncountableTextError: as `count`.

        """
        asked: list[Future[Tokens]] = [
            self._pool.submit(self._in_turn, text, add_special_tokens, True) for text in texts
        ]
        return [one.result() for one in asked]

    async def close(self) -> None:
        """End the process; what still waits fails."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """End the process, and wait for its end."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # a thread that waits for its answer sees its end
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._stop()

    def _begin(self, nbytes: int) -> None:
        with self._lock:
            if self._waiting and self._waiting + nbytes > self._most:
                raise OverloadedError(f"{self._waiting} bytes of text wait to be counted")
            self._waiting += nbytes

    def _end(self, nbytes: int) -> None:
        with self._lock:
            self._waiting -= nbytes

    def _in_turn(self, text: bytes, specials: bool, which: bool) -> Tokens:  # noqa: FBT001 (given to a pool)
        """Ask the process, and once more if it is found dead or dies."""
        try:
            return self._ask(text, specials=specials, which=which)
        except (OSError, EOFError):
            self._stop()
        try:
            return self._ask(text, specials=specials, which=which)
        except (OSError, EOFError):
            self._stop()
            raise CounterFailedError("the process that counts died twice on one text") from None

    def _ask(self, text: bytes, *, specials: bool, which: bool) -> Tokens:
        if self._closed:
            raise CounterFailedError("the counter is closed")
        process = self._process if self._process is not None else self._start()
        number, detail = self._exchange(process, text, specials=specials, which=which)
        if number == FAILED:
            raise UncountableTextError(f"the tokenizer refuses the text ({detail})")
        return Tokens(number, detail if isinstance(detail, int) else 0)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603 (this interpreter, a file of this package)
            [sys.executable, "-I", str(Path(reference_main.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a panic of the library prints what it was given, a tenant's text
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},  # one text at a time has nothing to share out
        )
        self._process = process
        number, detail = self._exchange(process, self._tokenizer, specials=False, which=False)
        if number == FAILED:
            self._stop()
            raise UnreadableError(str(detail))
        return process

    def _exchange(
        self, process: subprocess.Popen[bytes], data: bytes, *, specials: bool, which: bool
    ) -> tuple[int, int | str]:
        """Send one text and read its answer, within the time; past it, the process is ended.

        Raises:
            EOFError, OSError: the process died.
            CounterFailedError: the time was over.

        """
        assert process.stdin is not None
        assert process.stdout is not None
        over = threading.Event()

        def end() -> None:
            over.set()
            process.kill()

        timer = threading.Timer(self._seconds, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(ASK.pack(len(data), specials, which))
            process.stdin.write(data)
            process.stdin.flush()
            number, detail = ANSWER.unpack(_read(process, ANSWER.size))
            return number, _read(process, detail).decode() if number == FAILED else detail
        except (OSError, EOFError):
            if self._closed:
                raise CounterFailedError("the counter was closed") from None
            if over.is_set():
                self._stop()
                raise CounterFailedError(f"counting a text took longer than {self._seconds:g} s") from None
            raise
        finally:
            timer.cancel()

    def _stop(self) -> None:
        """End the process, if there is one, and forget it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was still to be written has no reader
                    stream.close()
        process.wait()


def _read(process: subprocess.Popen[bytes], nbytes: int) -> bytes:
    assert process.stdout is not None
    data = process.stdout.read(nbytes)
    if len(data) < nbytes:
        raise EOFError
    return data
