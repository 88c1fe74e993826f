"""Requests are read alike however they are cut, nothing but the one error comes out, and all memory is given back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.gateway.http.request import Bounds, MalformedError, Memory, Request, RequestReader
from tests.gateway.http.corpus import CASES, GET, Case, Read, chunked, posted

BOUNDS = Bounds(body=10_000)


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def cut_at_random(data: bytes, seed: str) -> Iterator[bytes]:
    chance = random.Random(seed)
    start = 0
    while start < len(data):
        end = start + chance.choice((1, 2, 7, 40, 300, 5000))
        yield data[start:end]
        start = end


def as_read(request: Request) -> Read:
    return Read(request.method, request.target, request.body, request.keep_alive)


def outcome(pieces: Iterable[bytes], bounds: Bounds = BOUNDS) -> Case:
    """Feed pieces; give what was read, and check that its memory was accounted and is given back."""
    memory = Memory(1 << 20)
    reader = RequestReader(bounds, memory)
    status = None
    try:
        for piece in pieces:
            reader.feed(piece)
    except MalformedError as error:
        status = error.problem.status
        assert memory.held == sum(len(request.body) for request in reader.ready)
    taken = list(reader.ready)
    if taken:
        reader.ready.popleft()
        reader.free(len(taken[0].body))
    left = reader.phase
    reader.close()
    assert memory.held == 0
    return Case(b"", tuple(map(as_read, taken)), status, left if status is None else "idle")


@pytest.mark.parametrize("name", CASES)
def test_a_case_of_the_corpus_comes_out_the_same_however_it_is_cut(name: str) -> None:
    case = CASES[name]
    expected = case._replace(data=b"")
    assert outcome([case.data]) == expected
    assert outcome(cut(case.data, 1)) == expected
    assert outcome(cut_at_random(case.data, name)) == expected
    assert outcome(cut(case.data, 256 << 10)) == expected


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    assert len(CASES) > 150
    assert {case.status for case in CASES.values()} == {None, 400, 413, 417, 431, 501, 503, 505}


@given(st.binary(max_size=400), st.integers(1, 50))
def test_random_bytes_raise_nothing_but_the_one_error(data: bytes, size: int) -> None:
    assert outcome([data])[1:3] == outcome(cut(data, size))[1:3]


SHORT = sorted({case.data for case in CASES.values() if len(case.data) < 400})


@given(
    st.lists(st.sampled_from(SHORT), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.integers(0, 1200), st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"0", b"\xff"]))
    ),
    st.integers(1, 60),
)
def test_mutated_requests_raise_nothing_but_the_one_error_and_do_not_depend_on_the_cut(
    parts: list[bytes], changes: list[tuple[int, bytes]], size: int
) -> None:
    data = bytearray(b"".join(parts))
    for position, new in changes:
        at = position % (len(data) + 1)
        data[at : at + 1] = new
    whole = outcome([bytes(data)])
    assert outcome(cut(bytes(data), size)) == whole
    assert outcome(cut(bytes(data), 1)) == whole


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=20), st.integers(1, 50), st.booleans())
def test_a_body_in_chunks_is_what_was_sent(parts: list[bytes], size: int, offers_upgrade: bool) -> None:
    data = chunked(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n")
    if offers_upgrade:
        data = data.replace(b"\r\n", b"\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", 1)
    assert outcome(cut(data + GET, size)).reads == (
        Read(b"POST", b"/v1/completions", b"".join(parts)),
        Read(b"GET", b"/x"),
    )


def test_names_are_in_lower_case_values_without_space_and_the_first_of_several_is_given() -> None:
    reader = RequestReader(BOUNDS, Memory(1000))
    reader.feed(posted(b"X-Tenant:  one \t\r\nx-tenant: two\r\n"))
    request = reader.ready[0]
    assert request.headers == [(b"host", b"a"), (b"x-tenant", b"one"), (b"x-tenant", b"two")]
    assert request.header(b"x-tenant") == b"one"
    assert request.header(b"authorization") is None


def test_a_client_that_waits_for_leave_to_send_is_seen_until_its_body_has_come() -> None:
    reader = RequestReader(BOUNDS, Memory(1000))
    reader.feed(posted(b"Expect: 100-continue\r\nContent-Length: 3\r\n"))
    assert (reader.awaited, reader.phase) == (True, "body")
    reader.feed(b"abc")
    assert (reader.awaited, reader.phase, reader.ready[0].body) == (False, "idle", b"abc")


def test_a_client_of_http_1_0_waits_for_nothing() -> None:
    reader = RequestReader(BOUNDS, Memory(1000))
    reader.feed(posted(b"Expect: 100-continue\r\nContent-Length: 3\r\n", version=b"1.0"))
    assert not reader.awaited


def test_what_all_connections_hold_together_is_bounded() -> None:
    memory = Memory(1000)
    first, second = RequestReader(BOUNDS, memory), RequestReader(BOUNDS, memory)
    first.feed(posted(b"Content-Length: 800\r\n", b"x" * 800))
    with pytest.raises(MalformedError) as refused:
        second.feed(posted(b"Content-Length: 300\r\n", b"x" * 300))
    assert refused.value.problem.status == 503
    assert refused.value.problem.retry_after == 1
    assert memory.held == 800  # of the first: what was refused is let go of at once
    first.free(len(first.ready.popleft().body))
    third = RequestReader(BOUNDS, memory)
    third.feed(posted(b"Content-Length: 300\r\n", b"x" * 300))
    assert memory.held == 300
    for reader in (first, second, third):
        reader.close()
    assert memory.held == 0


def test_a_body_in_the_making_is_accounted_and_given_back_when_its_connection_ends() -> None:
    memory = Memory(1000)
    reader = RequestReader(BOUNDS, memory)
    reader.feed(chunked(b"5\r\nabcde\r\n5\r\nab"))
    assert memory.held == 7
    reader.close()
    reader.close()
    assert memory.held == 0


def test_an_endless_header_behind_a_body_is_not_gathered() -> None:
    reader = RequestReader(Bounds(), Memory(1 << 30))
    reader.feed(chunked(b"1\r\nx\r\n0\r\nX: "))
    with pytest.raises(MalformedError) as refused:
        for _ in range(100):
            reader.feed(b"y" * 1000)
    assert refused.value.problem.status == 431


def test_the_end_of_a_large_body_is_not_taken_for_the_next_head() -> None:
    reader = RequestReader(Bounds(), Memory(1 << 30))
    data = posted(b"Content-Length: 200000\r\n", b"x" * 200_000) + b"GET / HTTP/1.1\r\nHo"
    for piece in cut(data, 100_000):
        reader.feed(piece)
    assert (len(reader.ready), reader.phase) == (1, "head")


def test_nothing_is_read_once_the_connection_is_done_with() -> None:
    memory = Memory(1000)
    reader = RequestReader(BOUNDS, memory)
    reader.close()
    reader.feed(GET + b"\0")
    assert (list(reader.ready), memory.held) == ([], 0)
