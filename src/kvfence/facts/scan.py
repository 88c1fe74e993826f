"""Find the few interesting lines of a large log, about as fast as it can be searched at all.

One Aho-Corasick automaton looks for all needles at once; only the lines that hold one are cut out
and decoded. A caller that needs what stands around a line asks for the lines that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import ahocorasick_rs
import numpy as np

from kvfence.facts.stream import ByteStream

BLOCK_BYTES = 1 << 20
# Of a longer line only the start is looked at; a server_args= dump has some 20 KB.
LINE_BYTES = 256 << 10


@dataclass(slots=True)
class Line:
    r"""A line that was found.

    Args:
        number: counted from 1.
        text: without its end; bytes that are no UTF-8 stand as `\\xNN`.
        needles: the indexes of the needles it holds, each once; empty for a line that was only asked for.

    """

    number: int
    text: str
    needles: tuple[int, ...]


class Scanner:
    """An iterator over the lines of a stream that hold one of the needles.

    Args:
        needles: byte strings without line ends.

    """

    def __init__(self, needles: Sequence[bytes]) -> None:
        # Leftmost-first lets the automaton use its vectorised search, which "standard" does without.
        self._automaton = ahocorasick_rs.BytesAhoCorasick(
            list(needles), matchkind=ahocorasick_rs.MatchKind.LeftmostFirst
        )
        self._following = 0
        # Tells by a glance at its number and bytes whether a line that was only asked for is wanted.
        self.is_wanted: Callable[[int, bytes], bool] = _every_line
        self.lines_read = 0
        self.long_lines = 0

    def follow(self, lines: int) -> None:
        """Ask for the next lines too, whether or not they hold a needle; 0 stops it."""
        self._following = lines

    def scan(self, stream: ByteStream) -> Iterator[Line]:
        """Go through a stream."""
        buffer = bytearray(BLOCK_BYTES)
        view = memoryview(buffer)
        held = 0
        skipping = False
        while True:
            count = stream.readinto(view[held:]) or 0
            filled = held + count
            if filled == 0:
                return
            end = buffer.rfind(b"\n", 0, filled) + 1
            if count == 0:
                end = filled
            elif end == 0 and filled < BLOCK_BYTES:
                held = filled
                continue
            if end == 0:  # a line longer than the block: look at its start, then pass over the rest
                if not skipping:
                    self.long_lines += 1
                    yield from self._block(view[:LINE_BYTES], count_lines=False)
                skipping, held = True, 0
                continue
            start = buffer.find(b"\n", 0, end) + 1 if skipping else 0
            if skipping:
                self.lines_read += 1
                start = start or end
                skipping = False
            yield from self._block(view[start:end], count_lines=True)
            held = filled - end
            buffer[:held] = buffer[end:filled]
            if count == 0:
                return

    def _block(self, view: memoryview, *, count_lines: bool) -> Iterator[Line]:
        """Go through whole lines that lie in memory."""
        if not len(view):
            return
        data = bytes(view)
        found = self._automaton.find_matches_as_indexes(data)
        position = counted = index = 0  # where to go on; up to where lines were counted; which match is next
        number = self.lines_read
        while position < len(data) and (self._following or index < len(found)):
            if self._following:
                self._following -= 1
                start = position
            else:
                start = data.rfind(b"\n", position, found[index][1]) + 1 or position
            stop = data.find(b"\n", start)
            stop = len(data) if stop < 0 else stop
            if start != counted:
                number += _newlines(data, counted, start)
            needles: tuple[int, ...] = ()
            while index < len(found) and found[index][1] < stop:
                if found[index][0] not in needles:  # a line that repeats one must cost no more for it
                    needles += (found[index][0],)
                index += 1
            number += 1
            self.long_lines += stop - start > LINE_BYTES
            position = counted = stop + 1
            line = data[start:stop]
            if needles or self.is_wanted(number, line):
                yield Line(number, decode(line), needles)
        if count_lines:
            self.lines_read = number + _newlines(data, counted, len(data))
            if counted <= len(data) and data[-1] != 10:  # the last line of the file has no end, and was not given
                self.lines_read += 1


def _every_line(_number: int, _line: bytes) -> bool:
    return True


def decode(raw: bytes) -> str:
    """Decode a line: its first part if it is long, strange bytes shown and not lost."""
    return raw[:LINE_BYTES].rstrip(b"\r").decode("utf-8", "backslashreplace")


def _newlines(data: bytes, start: int, stop: int) -> int:
    if stop <= start:
        return 0
    if stop - start < 4096:
        return data.count(b"\n", start, stop)
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, stop - start, start) == 10))
