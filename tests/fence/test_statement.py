"""Two roles state the same exactly if they serve the same, and a handoff reference cannot be guessed."""

from __future__ import annotations

import hashlib
import secrets
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.fence.statement import Request, Statement, new_reference, statement
from kvfence.fence.units import FULL, ROW, Layout

LAYOUT = Layout(16, (FULL, ROW))
REQUEST = Request("id", "tenant", (11, 22, 33), "model@1", "lora@2", "digest", 5)
DIFFERENT = {
    "prompt": REQUEST._replace(tokens=(11, 22, 34)),
    "length": REQUEST._replace(tokens=(11, 22, 33, 0)),
    "model": REQUEST._replace(model="model@2"),
    "adapter": REQUEST._replace(adapter=""),
    "content": REQUEST._replace(content=""),
    "scope": REQUEST._replace(scope="tenant2"),
}
prompts = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6).map(tuple)


@pytest.mark.parametrize("field", DIFFERENT)
def test_statements_differ_in_what_the_requests_differ_in(field: str) -> None:
    mine, theirs = statement(REQUEST, LAYOUT), statement(DIFFERENT[field], LAYOUT)
    assert mine != theirs
    differ = {name for name in Statement._fields if getattr(mine, name) != getattr(theirs, name)}
    assert differ == ({"prompt", "length"} if field == "length" else {field})


def test_statements_differ_with_the_layout() -> None:
    assert statement(REQUEST, LAYOUT) != statement(REQUEST, LAYOUT._replace(page_tokens=32))


def test_every_field_of_a_statement_can_make_it_differ() -> None:
    assert {*DIFFERENT, "layout"} == set(Statement._fields)


def test_names_and_answer_lengths_do_not_show_in_a_statement() -> None:
    assert statement(REQUEST, LAYOUT) == statement(REQUEST._replace(id="other", steps=9), LAYOUT)


@given(one=prompts, other=prompts)
def test_two_prompts_have_two_digests(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    mine = statement(REQUEST._replace(tokens=one), LAYOUT)
    theirs = statement(REQUEST._replace(tokens=other), LAYOUT)
    assert (mine.prompt == theirs.prompt) == (mine == theirs) == (one == other)
    assert mine.length == REQUEST._replace(tokens=one).length == len(one)


@given(tokens=prompts)
def test_the_digest_is_blake2b_of_the_token_ids_in_8_bytes_each(tokens: tuple[int, ...]) -> None:
    """Peers of two releases must agree."""
    packed = struct.pack(f"<{len(tokens)}q", *tokens)
    digest = statement(REQUEST._replace(tokens=tokens), LAYOUT).prompt
    assert digest == hashlib.blake2b(packed, digest_size=32).hexdigest()


def test_a_prompt_counts_to_its_last_token() -> None:
    long = tuple(range(5000))
    mine = statement(REQUEST._replace(tokens=long), LAYOUT)
    theirs = statement(REQUEST._replace(tokens=(*long[:-1], 0)), LAYOUT)
    assert mine.length == theirs.length
    assert mine != theirs


def test_known_digest() -> None:
    known = "4a61af5bc40a957a258d7d004f29518d4f2aba725ba9cb31d1c461372593467f"
    assert statement(REQUEST, LAYOUT).prompt == known


@pytest.mark.parametrize("token", [-(2**63) - 1, 2**63])
def test_token_ids_have_64_bits(token: int) -> None:
    with pytest.raises(OverflowError):
        statement(REQUEST._replace(tokens=(token,)), LAYOUT)


def test_references_are_128_random_bits_each_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given_out = [new_reference() for _ in range(1000)]
    assert len(set(given_out)) == 1000
    assert all(len(bytes.fromhex(reference)) == 16 for reference in given_out)
    monkeypatch.setattr(secrets, "token_hex", lambda size: f"{size} bytes of the system's random source")
    assert new_reference() == "16 bytes of the system's random source"
