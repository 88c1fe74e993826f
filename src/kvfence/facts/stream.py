"""Open a file as a stream of UTF-8 bytes, whatever it is packed in.

Gzip and zstd are told by their first bytes, UTF-16 by its mark or its pattern. A packed file that
grows beyond all proportion is refused, one that is cut off is read as far as it goes.
"""

from __future__ import annotations

import codecs
import io
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

import zstandard

from kvfence.errors import InputError

SNIFF_BYTES = 64 << 10
# A real log packs 10 to 100 times; what grows more than this, beyond this size, is no log.
BOMB_RATIO = 400
BOMB_BYTES = 256 << 20
# Packed bytes are unpacked so many at a time: even where 4 of them stand for 128 KiB, the result fits into memory.
PIECE_BYTES = 512

_CONTROL = bytes(set(range(32)) - {9, 10, 12, 13, 27} | {127})


class ByteStream(Protocol):
    """What a scanner reads from."""

    def readinto(self, buffer: bytearray | memoryview, /) -> int | None:
        """Fill the buffer and return how many bytes were written; 0 at the end."""


class _Unpacker(Protocol):
    """A decompressor of the standard library or of zstandard, fed piece by piece."""

    @property
    def eof(self) -> bool:
        """Whether the packed data ended as it should."""

    @property
    def unused_data(self) -> bytes:
        """What follows the end."""

    def decompress(self, data: bytes, /) -> bytes:
        """Unpack a piece."""


class _Unpacked:
    """A stream over a decompressor that watches for bombs, and gives all that a cut or damaged file holds."""

    def __init__(
        self, source: str, packed: IO[bytes], new: Callable[[], _Unpacker], note: Callable[[str], None]
    ) -> None:
        self._source, self._packed, self._new, self._note = source, packed, new, note
        self._unpacker = new()
        self._ready = b""
        self._read = self._written = 0
        self._ended = self._begun = False

    def readinto(self, buffer: bytearray | memoryview, /) -> int:
        view = memoryview(buffer)
        while not self._ready and not self._ended:
            self._unpack(self._packed.read(PIECE_BYTES))
        given, self._ready = self._ready[: len(view)], self._ready[len(view) :]
        view[: len(given)] = given
        return len(given)

    def _unpack(self, piece: bytes) -> None:
        """Unpack one piece; a small one, so that even a bomb's fits into memory."""
        self._read += len(piece)
        if not piece:
            self._ended = True
            if self._begun and not self._unpacker.eof:
                self._stop("cut off")
            return
        while piece:
            if self._unpacker.eof:
                self._unpacker = self._new()
            try:
                self._ready += self._unpacker.decompress(piece)
            except (zlib.error, zstandard.ZstdError):
                self._stop("damaged")
                return
            self._begun = True
            piece = self._unpacker.unused_data if self._unpacker.eof else b""
        self._written += len(self._ready)
        if self._written > BOMB_BYTES and self._written > BOMB_RATIO * self._read:
            raise InputError(
                self._source,
                f"grows more than {BOMB_RATIO} times when unpacked; a log does not, so it is not read",
            )

    def _stop(self, fault: str) -> None:
        self._ended = True
        if self._written == 0 and not self._ready:
            raise InputError(self._source, f"the compressed file is {fault} before anything could be read")
        self._note(f"{self._source}: the compressed file is {fault}; read as far as it goes")


class _Transcoded:
    """A stream that turns another encoding into UTF-8."""

    def __init__(self, inner: ByteStream, encoding: str) -> None:
        self._inner = inner
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._pending = b""
        self._ended = False

    def readinto(self, buffer: bytearray | memoryview, /) -> int:
        view = memoryview(buffer)
        block = bytearray(max(len(view) // 2, 2))
        while not self._pending and not self._ended:
            count = self._inner.readinto(block) or 0
            self._ended = count == 0
            text = self._decoder.decode(bytes(block[:count]), final=self._ended)
            self._pending = text.lstrip("\ufeff").encode("utf-8", "replace")
        given, self._pending = self._pending[: len(view)], self._pending[len(view) :]
        view[: len(given)] = given
        return len(given)


class _Prefixed:
    """A stream whose first bytes were already read to look at them."""

    def __init__(self, head: bytes, rest: ByteStream) -> None:
        self._head, self._rest = head, rest

    def readinto(self, buffer: bytearray | memoryview, /) -> int:
        view = memoryview(buffer)
        if self._head:
            given, self._head = self._head[: len(view)], self._head[len(view) :]
            view[: len(given)] = given
            return len(given)
        return self._rest.readinto(view) or 0


def open_stream(source: str, raw: IO[bytes], note: Callable[[str], None]) -> tuple[bytes, ByteStream]:
    """Open a binary file object for scanning.

    Returns its first bytes (up to 64 KiB, as UTF-8) and the stream of everything, those included.

    Raises:
        InputError: it is empty, or a damaged or suspicious archive.

    """
    packed = io.BufferedReader(_Raw(raw))
    magic = packed.peek(4)[:4]
    stream: ByteStream = packed
    if magic[:2] == b"\x1f\x8b":
        stream = _Unpacked(source, packed, lambda: zlib.decompressobj(wbits=31), note)
    elif magic == b"\x28\xb5\x2f\xfd":
        stream = _Unpacked(source, packed, zstandard.ZstdDecompressor().decompressobj, note)
    head = _fill(stream, SNIFF_BYTES)
    if not head:
        raise InputError(source, "is empty")
    stream = _Prefixed(head, stream)
    encoding = _wide_encoding(head)
    if encoding is not None:
        stream = _Transcoded(stream, encoding)
    elif head.startswith(codecs.BOM_UTF8):
        _fill(stream, len(codecs.BOM_UTF8))
    else:
        return head, stream
    head = _fill(stream, SNIFF_BYTES)
    return head, _Prefixed(head, stream)


class _Raw(io.RawIOBase):
    """A binary file object as the standard library wants one to buffer it; it need not seek."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer."""
        if isinstance(self._raw, io.BufferedIOBase):
            return self._raw.readinto(buffer)  # spares a copy of the whole file
        view = memoryview(buffer)
        data = self._raw.read(len(view))
        view[: len(data)] = data
        return len(data)


def _fill(stream: ByteStream, size: int) -> bytes:
    """Read `size` bytes, or fewer at the end."""
    buffer = bytearray(size)
    view, have = memoryview(buffer), 0
    while have < size:
        count = stream.readinto(view[have:]) or 0
        if count == 0:
            break
        have += count
    return bytes(buffer[:have])


def _wide_encoding(head: bytes) -> str | None:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:2048]
    even, odd = sample[0::2], sample[1::2]
    if len(sample) >= 8 and odd.count(0) > 0.9 * len(odd) and even.count(0) == 0:
        return "utf-16-le"
    if len(sample) >= 8 and even.count(0) > 0.9 * len(even) and odd.count(0) == 0:
        return "utf-16-be"
    return None


def is_binary(head: bytes) -> bool:
    """Whether the first bytes are no text.

    Zero bytes in one run are allowed: a log that was truncated while it was written starts with them.
    """
    sample = re.sub(rb"\0{2,}", b"", head)
    strange = len(sample) - len(sample.translate(None, _CONTROL))
    return strange > 0.02 * len(sample) if sample else False


def open_file(path: Path, source: str) -> IO[bytes]:
    """Open a regular file for reading bytes.

    Raises:
        InputError: it does not exist, may not be read, or is no regular file.

    """
    try:
        if not path.exists():
            raise InputError(source, "no such file or directory")
        if not path.is_file():
            raise InputError(source, "is not a regular file")
        return path.open("rb")
    except PermissionError:
        raise InputError(source, "may not be read (permission denied)") from None
    except OSError as error:
        raise InputError(source, f"cannot be read ({error.strerror})") from None
