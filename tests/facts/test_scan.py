from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import scan as scan_module
from kvfence.facts.scan import Scanner, decode
from tests.facts.conftest import Pieces, scan

NEEDLES = (b"needle", b"pin")
SMALL_BLOCK, SMALL_LINE = 64, 24

PARTS = st.sampled_from([b"needle", b"pin", b"nee", b"dle", b"\n", b"\r\n", b" ", b"x", b"\0", b"\xff", b"y" * 30])
CONTENTS = st.one_of(st.binary(max_size=400), st.lists(PARTS, max_size=60).map(b"".join))


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_module, "BLOCK_BYTES", SMALL_BLOCK)
        patch.setattr(scan_module, "LINE_BYTES", SMALL_LINE)
        yield


def lines_of(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def looked_at(line: bytes) -> bytes:
    """Give the part of a line in which needles are looked for."""
    return line if len(line) < SMALL_BLOCK else line[:SMALL_LINE]


@given(content=CONTENTS, at_once=st.integers(1, 100))
def test_finds_the_lines_that_a_search_line_by_line_finds(content: bytes, at_once: int) -> None:
    expected = [
        (number, decode(line))
        for number, line in enumerate(lines_of(content), 1)
        if any(needle in looked_at(line) for needle in NEEDLES)
    ]
    assert [(line.number, line.text) for line in scan(content, NEEDLES, at_once)] == expected


@given(content=CONTENTS, at_once=st.integers(1, 100))
def test_tells_which_needles_a_line_holds(content: bytes, at_once: int) -> None:
    lines = lines_of(content)
    for found in scan(content, NEEDLES, at_once):
        held = looked_at(lines[found.number - 1])
        assert set(found.needles) == {index for index, needle in enumerate(NEEDLES) if needle in held}


@given(content=CONTENTS, at_once=st.integers(1, 100), ahead=st.integers(0, 5))
def test_follow_gives_the_lines_after_each_find_once(content: bytes, at_once: int, ahead: int) -> None:
    lines = lines_of(content)
    hits = {n for n, line in enumerate(lines, 1) if any(needle in looked_at(line) for needle in NEEDLES)}
    expected = {n for n in range(1, len(lines) + 1) if any(hit <= n <= hit + ahead for hit in hits)}
    scanner = Scanner(NEEDLES)
    seen = []
    for line in scanner.scan(Pieces(content, at_once)):
        seen.append(line.number)
        assert bool(line.needles) == (line.number in hits)
        if line.needles:
            scanner.follow(ahead)
    assert seen == sorted(expected)


@given(content=CONTENTS.filter(lambda content: all(len(line) < SMALL_BLOCK for line in content.split(b"\n"))))
def test_counts_every_line(content: bytes) -> None:
    scanner = Scanner(NEEDLES)
    found = list(scanner.scan(Pieces(content)))
    assert scanner.lines_read == len(lines_of(content))
    assert scanner.long_lines == sum(len(lines_of(content)[line.number - 1]) > SMALL_LINE for line in found)


def test_needle_that_a_line_repeats_is_told_once() -> None:
    (line,) = scan(b"needle pin " * 5, NEEDLES, 100)
    assert line.needles == (0, 1)


def test_follow_from_the_start_gives_the_first_lines() -> None:
    scanner = Scanner(NEEDLES)
    scanner.follow(2)
    found = list(scanner.scan(Pieces(b"a\n\nb\nc\n")))
    assert [(line.number, line.text, line.needles) for line in found] == [(1, "a", ()), (2, "", ())]


def test_only_wanted_lines_are_given_of_those_that_follow() -> None:
    scanner = Scanner(NEEDLES)
    scanner.follow(4)
    scanner.is_wanted = lambda number, line: number == 2 or line == b"c"
    found = list(scanner.scan(Pieces(b"a\nb\nneedle\nc\nd\n")))
    assert [line.text for line in found] == ["b", "needle", "c"]


def test_follow_can_be_stopped() -> None:
    scanner = Scanner(NEEDLES)
    scanner.follow(100)
    seen = []
    for line in scanner.scan(Pieces(b"a\nb\nneedle\nc\nd\n")):
        seen.append(line.text)
        if line.needles:
            scanner.follow(0)
    assert seen == ["a", "b", "needle"]


def test_follow_runs_over_the_end_of_a_block() -> None:
    scanner = Scanner(NEEDLES)
    seen = []
    for line in scanner.scan(Pieces(b"needle\n" + b"".join(b"line %02d\n" % n for n in range(40)))):
        seen.append(line.text)
        if line.needles:
            scanner.follow(20)
    assert seen == ["needle", *(f"line {n:02d}" for n in range(20))]


@pytest.mark.parametrize(
    "length", [SMALL_BLOCK - 1, SMALL_BLOCK, SMALL_BLOCK + 1, 3 * SMALL_BLOCK, 3 * SMALL_BLOCK + 7]
)
def test_lines_after_a_long_line_keep_their_numbers(length: int) -> None:
    content = b"pin 1\n" + b"needle" + b"x" * (length - 6) + b"\npin 3\npin 4\n"
    found = scan(content, NEEDLES)
    assert [(line.number, line.text[:6]) for line in found] == [(1, "pin 1"), (2, "needle"), (3, "pin 3"), (4, "pin 4")]
    assert len(found[1].text) == SMALL_LINE


def test_the_rest_of_a_long_line_is_passed_over_and_counted_as_one() -> None:
    scanner = Scanner(NEEDLES)
    content = b"x" * 100 + b"needle" + b"x" * 500 + b"needle\nneedle at last"
    assert [(line.number, line.text) for line in scanner.scan(Pieces(content))] == [(2, "needle at last")]
    assert (scanner.long_lines, scanner.lines_read) == (1, 2)


def test_last_line_needs_no_end() -> None:
    assert [(line.number, line.text) for line in scan(b"a\nneedle", NEEDLES)] == [(2, "needle")]


def test_nothing_is_found_in_nothing() -> None:
    assert scan(b"", NEEDLES) == []


def test_needle_split_over_reads_is_found() -> None:
    assert [line.number for line in scan(b"a needle here\n", NEEDLES, at_once=1)] == [1]


def test_needle_is_not_put_together_from_two_lines() -> None:
    assert scan(b"nee\ndle\n", NEEDLES) == []


def test_windows_line_ends_are_taken_off() -> None:
    assert [line.text for line in scan(b"needle\r\npin\r\n", NEEDLES)] == ["needle", "pin"]


@given(st.binary(max_size=SMALL_LINE).filter(lambda raw: not raw.endswith(b"\r")))
def test_decoding_loses_nothing(raw: bytes) -> None:
    text = decode(raw)
    assert text.encode("utf-8", "surrogatepass") == raw or "\\x" in text


def test_bytes_that_are_no_text_are_shown() -> None:
    assert decode(b"a\xffb") == "a\\xffb"
