"""The process in which Hugging Face `tokenizers` count: run as a script, it needs nothing of kvfence.

It holds the interpreter's lock for seconds on a long text, and cannot be stopped: so it has a process of its own. It is
given the tokenizer and then texts on standard input, and ends when that ends, whatever became of who started it.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import threading
import zlib
from array import array
from typing import BinaryIO

import tokenizers

# Asked: bytes of the text, 1 to add the special tokens, 1 to tell which tokens they are. The tokenizer comes likewise.
ASK = struct.Struct("<QBB")
# Answered: tokens and 0 or their checksum, or -1 and the bytes of the message that follows.
ANSWER = struct.Struct("<qI")
FAILED = -1


def _read(stream: BinaryIO, nbytes: int) -> bytes:
    data = stream.read(nbytes)
    if len(data) < nbytes:  # the other end is gone
        os._exit(0)
    return data


def _end_with(descriptor: int) -> None:
    """End the process when the other end of its input is gone, also in the middle of a text."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLHUP)
    waiting.poll()
    os._exit(0)


def _load(data: bytes) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _count(tokenizer: tokenizers.Tokenizer, text: str, *, specials: bool, which: bool) -> bytes:
    # Without offsets, which nobody needs here, it is faster, and counts the same.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=specials)
    return ANSWER.pack(len(encoding), zlib.crc32(array("I", encoding.ids).tobytes()) if which else 0)


def _failure(error: BaseException) -> bytes:
    """Tell the kind of error alone: its words may hold a tenant's text."""
    name = type(error).__name__.encode()
    return ANSWER.pack(FAILED, len(name)) + name


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there is nothing more to read."""
    tokenizer = None
    while True:
        nbytes, specials, which = ASK.unpack(_read(asked, ASK.size))
        data = _read(asked, nbytes)
        try:
            if tokenizer is None:
                tokenizer = _load(data)
                answer = ANSWER.pack(0, 0)
            else:
                answer = _count(tokenizer, data.decode(), specials=bool(specials), which=bool(which))
        except BaseException as error:  # noqa: BLE001 (a panic in the library is no Exception)
            answer = _failure(error)
        answers.write(answer)
        answers.flush()


def main() -> None:
    """Serve standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process; this one ends with its input
    threading.Thread(target=_end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
