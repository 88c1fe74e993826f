"""Prefill's statement travels in eight words, and decode notices every way in which it may be wrong."""

from __future__ import annotations

import hashlib
import struct
from array import array

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvfence.plugin.sglang.statement import WORDS, Held, Statement, digest_of, disagreement

int32 = st.integers(-(2**31), 2**31 - 1)
tokens = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40)
digests = st.none() | st.binary(min_size=16, max_size=16).filter(any)


@given(start=int32, end=int32, limit=int32, digest=digests)
def test_a_statement_is_read_as_it_was_written(start: int, end: int, limit: int, digest: bytes | None) -> None:
    stated = Statement(start, end, limit, digest)
    words = stated.words()
    assert len(words) == WORDS
    assert all(-(2**31) <= word < 2**31 for word in words)
    assert Statement.read(words) == stated


@given(words=st.lists(int32, min_size=WORDS, max_size=WORDS))
def test_other_words_state_nothing(words: list[int]) -> None:
    assume(words[0] != Statement(0, 1, 1, None).words()[0])
    assert Statement.read(words) is None


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_states_nothing(version: int) -> None:
    mark, *rest = Statement(0, 14, 0, digest_of(range(14))).words()
    assert Statement.read([mark - 1 + version, *rest]) is None


def test_a_row_that_nobody_wrote_states_nothing() -> None:
    assert Statement.read([0] * WORDS) is None


@given(prompt=tokens, prefix=st.integers(0, 40), data=st.data())
def test_what_covers_the_prompt_is_no_disagreement(prompt: list[int], prefix: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, prefix))
    stated = Statement(start, len(prompt), 0, digest_of(prompt))
    assert disagreement(stated, Held(prompt, prefix, text_only=True)) is None
    read = Statement.read(stated.words())
    assert read is not None
    assert disagreement(read, Held(tuple(prompt), prefix, text_only=True)) is None


@given(prompt=tokens, off=st.integers(-40, 40).filter(bool))
def test_another_length_is_noticed(prompt: list[int], off: int) -> None:
    stated = Statement(0, len(prompt) + off, 0, digest_of(prompt))
    assert "tokens, decode holds a prompt of" in str(disagreement(stated, Held(prompt, 0, text_only=True)))
    assert disagreement(stated._replace(digest=None), Held(prompt, 0, text_only=False)) is not None


@given(prompt=tokens, prefix=st.integers(0, 39), hole=st.integers(1, 40))
def test_a_hole_before_the_first_position_sent_is_noticed(prompt: list[int], prefix: int, hole: int) -> None:
    stated = Statement(prefix + hole, len(prompt), 0, digest_of(prompt))
    assert "decode holds" in str(disagreement(stated, Held(prompt, prefix, text_only=True)))
    assert disagreement(stated._replace(digest=None), Held(prompt, prefix, text_only=False)) is not None


@given(prompt=tokens, token=st.integers(-(2**63), 2**63 - 1), data=st.data())
def test_another_token_at_any_position_is_noticed(prompt: list[int], token: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(prompt) - 1))
    other = [*prompt[:place], token, *prompt[place + 1 :]]
    assume(other != prompt)
    stated = Statement(0, len(prompt), 0, digest_of(other))
    assert "another prompt" in str(disagreement(stated, Held(prompt, 0, text_only=True)))


def test_a_digest_may_lack_only_where_there_is_more_than_text() -> None:
    stated = Statement(0, 3, 0, None)
    assert "no digest" in str(disagreement(stated, Held([1, 2, 3], 0, text_only=True)))
    assert disagreement(stated, Held([1, 2, 3], 0, text_only=False)) is None


def test_a_digest_that_was_stated_counts_whatever_decode_takes_the_prompt_for() -> None:
    stated = Statement(0, 3, 0, digest_of([1, 2, 4]))
    assert disagreement(stated, Held([1, 2, 3], 0, text_only=False)) is not None


@given(prompt=tokens)
def test_a_digest_is_of_the_tokens_and_not_of_what_holds_them(prompt: list[int]) -> None:
    digest = digest_of(prompt)
    assert digest == digest_of(tuple(prompt)) == digest_of(array("q", prompt)) == digest_of(iter(prompt))
    assert len(digest) == 16
    assert any(digest)


def test_known_digest() -> None:
    """Peers of two releases of kvfence must agree."""
    packed = struct.pack("<3q", 11, 22, -33)
    assert digest_of([11, 22, -33]) == hashlib.blake2b(packed, digest_size=16, person=b"kvfence-prompt").digest()
    assert digest_of([11, 22, -33]).hex() == "d8935f77d97da7160bfde2af1de052c5"
