from __future__ import annotations

import codecs
import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvfence.errors import InputError
from kvfence.facts import stream as stream_module
from kvfence.facts.stream import is_binary, open_file, open_stream
from tests.facts.conftest import Pieces, unpacked

LOG = "".join(f"[2026-11-30 15:19:{n % 60:02}] line {n} of the log, größer als zuvor\n" for n in range(3000))


Pack = Callable[[bytes], bytes]


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


PACKINGS: dict[str, Callable[[str], bytes]] = {
    "plain": lambda text: text.encode(),
    "utf-8 with a mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "utf-16 little endian": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "utf-16 big endian": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "utf-16 without a mark": lambda text: text.encode("utf-16-le"),
    "utf-16 big endian without a mark": lambda text: text.encode("utf-16-be"),
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip in members": lambda text: gzip.compress(text[:1000].encode()) + gzip.compress(text[1000:].encode()),
    "zstd": lambda text: zstd(text.encode()),
    "zstd in frames": lambda text: zstd(text[:1000].encode()) + zstd(text[1000:].encode()),
    "gzip of utf-16": lambda text: gzip.compress(codecs.BOM_UTF16_LE + text.encode("utf-16-le")),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_packing_gives_the_same_bytes(packing: str) -> None:
    notes: list[str] = []
    assert unpacked(PACKINGS[packing](LOG), notes) == LOG.encode()
    assert notes == []


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_head_is_the_start_and_stays_in_the_stream(packing: str) -> None:
    head, stream = open_stream("a.log", io.BytesIO(PACKINGS[packing](LOG)), print)
    assert LOG.encode().startswith(head)
    assert len(head) > stream_module.SNIFF_BYTES - 4
    buffer = bytearray(100)
    assert stream.readinto(buffer)
    assert LOG.encode().startswith(bytes(buffer[:10]))


@given(text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\ufeff\0"), min_size=1, max_size=200))
def test_marked_utf16_is_the_text(text: str) -> None:
    assert unpacked(codecs.BOM_UTF16_LE + text.encode("utf-16-le")) == text.encode()


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_cut_archive_is_read_as_far_as_it_goes(pack: Pack) -> None:
    content = os.urandom(200_000).hex().encode()
    packed = pack(content)
    got = unpacked(packed[: len(packed) // 2])
    assert content.startswith(got)
    assert len(got) > 50_000


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(gzip.compress, id="gzip"),
        pytest.param(zstd, id="zstd"),
    ],
)
def test_cut_archive_is_told(pack: Pack) -> None:
    notes: list[str] = []
    packed = pack(LOG.encode())
    unpacked(packed[: len(packed) - 200], notes)
    assert notes == ["a.log: the compressed file is cut off; read as far as it goes"]


@pytest.mark.parametrize("lines", [100, 3000], ids=["small", "larger than its head"])
def test_cut_gzip_loses_no_line_before_the_cut(lines: int) -> None:
    content = "".join(LOG.splitlines(keepends=True)[:lines]).encode()
    packed = gzip.compress(content)
    _, stream = open_stream("a.log", io.BytesIO(packed[: len(packed) - 8]), print)
    got, block = b"", bytearray(1 << 20)
    while count := stream.readinto(block) or 0:
        got += block[:count]
    assert len(got) > 0.9 * len(content)


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_archive_cut_before_anything_can_be_read_is_not_called_empty(pack: Pack) -> None:
    with pytest.raises(InputError) as caught:
        unpacked(pack(LOG.encode())[:40])
    assert "empty" not in caught.value.problem


def test_archive_damaged_in_the_middle_is_read_to_there() -> None:
    content = os.urandom(200_000).hex().encode()
    packed = bytearray(gzip.compress(content))
    packed[len(packed) // 2 : len(packed) // 2 + 400] = b"\xff" * 400
    notes: list[str] = []
    got = unpacked(bytes(packed), notes)
    assert len(got) > 10_000
    assert "damaged" in notes[0]


@pytest.mark.parametrize("content", [b"\x1f\x8b" + b"\0" * 50, b"\x28\xb5\x2f\xfd" + b"\xff" * 50])
def test_archive_damaged_from_the_start_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="damaged"):
        unpacked(content)


@pytest.mark.parametrize("content", [b"", gzip.compress(b""), zstd(b"")])
def test_nothing_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="is empty"):
        unpacked(content)


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_bomb_is_refused_soon(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "BOMB_BYTES", 1 << 20)
    read, block = 0, bytearray(1 << 16)
    with pytest.raises(InputError, match="grows more than 400 times"):
        _, stream = open_stream("bomb", io.BytesIO(pack(b"\0" * (32 << 20))), print)
        while count := stream.readinto(block):
            read += count
    assert read < 24 << 20


def test_what_grows_much_but_stays_small_is_read() -> None:
    assert unpacked(gzip.compress(b"a" * (4 << 20))) == b"a" * (4 << 20)


def test_large_log_that_packs_well_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "BOMB_BYTES", 1 << 10)
    assert unpacked(gzip.compress(LOG.encode())) == LOG.encode()


@pytest.mark.parametrize("head", [bytes(range(256)) * 4, b"\x7fELF\x02\x01\x01\x00\x03\x00\x3e\x00" * 20])
def test_programs_are_binary(head: bytes) -> None:
    assert is_binary(head)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\0" * 5000 + b"[2026-11-30 15:19:00] a log that was truncated while it was written\n" * 5,
        "größer 中文\n".encode() * 20,
        b"\x1b[32mgreen\x1b[0m text\r\n" * 10,
    ],
    ids=["empty", "zeros in front", "letters", "colours"],
)
def test_logs_are_not_binary(head: bytes) -> None:
    assert not is_binary(head)


def test_open_file_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"given\.log: no such file"):
        open_file(tmp_path / "nothing", "given.log")


def test_open_file_takes_no_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a regular file"):
        open_file(tmp_path, "given")


def test_open_file_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        open_file(tmp_path / "pipe", "given")


def test_open_file_says_when_it_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.log"
    path.write_text("x")

    def deny(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(InputError, match="permission denied"):
        open_file(path, "given")


def test_open_file_takes_any_name_without_falling_over(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_file(tmp_path / ("x" * 5000), "given")


def test_source_that_gives_little_at_once_is_read_whole() -> None:
    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 1, 7) if size and size > 0 else size)

    packed = gzip.compress(LOG[:5000].encode())
    _, stream = open_stream("a.log", Dripping(packed), print)
    whole, block = bytearray(), bytearray(512)
    while count := stream.readinto(block) or 0:
        whole += block[:count]
    assert bytes(whole) == LOG[:5000].encode()
    assert Pieces(b"abc", 1).readinto(bytearray(3)) == 1
