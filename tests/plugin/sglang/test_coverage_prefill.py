"""Prefill states what it has sent of a request, in words of the metadata row that the engine leaves alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvfence.plugin.sglang.statement import Statement, digest_of
from tests.plugin.sglang.parts import PROMPT, ROOM, Guards, compute, request
from tests.plugin.sglang.standin import NEWEST, RELEASES, Sglang

SHAPES = ["0.5.12", "0.5.14", "0.5.19", NEWEST]
"""Each way to say how much of a request was computed."""


class Prefill:
    """A scheduler of prefill, with the guards of what it sends."""

    def __init__(self, sglang: Sglang, **arguments: Any) -> None:
        self.sglang = sglang
        self.guards = Guards(sglang)
        self.scheduler = self.guards.scheduler(**arguments)
        self.buffers = self.scheduler.disagg_metadata_buffers
        self.send = type(self.scheduler).send_kv_chunk
        set_buf = type(self.buffers).set_buf
        self.buffers.set_buf = lambda req: self.guards.coverage.set_row(set_buf, self.buffers, req)

    def chunk(self, req: Any, computed: int, **given: Any) -> None:
        req.metadata_buffer_index = 2
        compute(self.sglang, req, computed)
        self.guards.coverage.send_chunk(self.send, self.scheduler, req, **given)

    def row(self) -> list[int]:
        return list(self.buffers.cached_tokens[2].tolist())

    def stated(self) -> Statement | None:
        return Statement.read(self.row()[8:])


@pytest.mark.parametrize("sglang", RELEASES, indirect=True)
def test_one_chunk_is_stated_whole(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    req = request(sglang)
    prefill.chunk(req, len(PROMPT), last_chunk=True)
    assert req.disagg_kv_sender.sent == [(0, len(PROMPT))]
    assert prefill.stated() == Statement(0, len(PROMPT), 1018, digest_of(PROMPT))


def test_the_words_of_the_engine_are_its_own(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.buffers.cached_tokens[:] = -7
    prefill.chunk(request(sglang, images=3), len(PROMPT), last_chunk=True)
    assert prefill.row()[:8] == [11, 12, 13, 14, 3, -7, -7, -7]
    assert (prefill.buffers.cached_tokens[[0, 1, 3]] == -7).all()
    assert prefill.buffers.bootstrap_room[2][0] == ROOM


@pytest.mark.parametrize("sglang", SHAPES, indirect=True)
def test_chunks_are_stated_from_the_first_to_the_last(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    req = request(sglang)
    for computed in (5, 9):
        prefill.chunk(req, computed)
        assert prefill.stated() is None
    prefill.chunk(req, 11, end_idx=9)
    prefill.chunk(req, 99, last_chunk=True)
    assert req.disagg_kv_sender.sent == [(0, 4), (4, 8), (8, 8), (8, 14)]
    assert prefill.stated() == Statement(0, 14, 1018, digest_of(PROMPT))


@pytest.mark.parametrize("sglang", SHAPES, indirect=True)
def test_what_decode_has_in_its_own_cache_is_not_stated_as_sent(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    req = request(sglang, start_send_idx=8)
    prefill.chunk(req, 8)
    prefill.chunk(req, 14, last_chunk=True)
    assert prefill.stated() == Statement(8, 14, 1018, digest_of(PROMPT))


def test_a_prefix_that_is_the_whole_prompt_leaves_nothing_to_send_and_is_stated(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    req = request(sglang, start_send_idx=14)
    prefill.chunk(req, 14, last_chunk=True)
    assert prefill.stated() == Statement(14, 14, 1018, digest_of(PROMPT))
    assert req.disagg_kv_sender.aborted == 0


def test_an_attempt_that_begins_again_is_stated_from_its_own_first_token(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    req = request(sglang, start_send_idx=8)
    prefill.chunk(req, 12)
    req.start_send_idx = 0  # the engine has released its pages, and prefills it again
    prefill.chunk(req, 8)
    prefill.chunk(req, 14, last_chunk=True)
    assert prefill.stated() == Statement(0, 14, 1018, digest_of(PROMPT))


def test_a_hole_between_two_chunks_is_stated(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    req = request(sglang)
    prefill.chunk(req, 4)
    req.start_send_idx += 4
    prefill.chunk(req, 14, last_chunk=True)
    stated = prefill.stated()
    assert stated is not None
    assert stated.start == 8


@pytest.mark.parametrize("sglang", SHAPES, indirect=True)
def test_a_prompt_that_was_cut_is_stated_as_long_as_it_is(sglang: Sglang) -> None:
    prefill = Prefill(sglang, allow_auto_truncate=True)
    prefill.chunk(request(sglang, PROMPT[:9]), 9, last_chunk=True)
    assert prefill.stated() == Statement(0, 9, 0, digest_of(PROMPT[:9]))


def test_a_prompt_that_was_computed_in_part_is_stated_in_part(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.chunk(request(sglang), 11, last_chunk=True)
    assert prefill.stated() == Statement(0, 11, 1018, digest_of(PROMPT[:11]))


@pytest.mark.parametrize("field", ["multimodal_inputs", "input_embeds"])
def test_of_more_than_text_no_digest_is_stated(sglang: Sglang, field: str) -> None:
    prefill = Prefill(sglang)
    prefill.chunk(request(sglang, PROMPT, **{field: object()}), 14, last_chunk=True)
    assert prefill.stated() == Statement(0, 14, 1018, None)


def test_a_row_that_is_written_elsewhere_states_nothing(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.chunk(request(sglang), 14, last_chunk=True)
    other = request(sglang, metadata_buffer_index=2)
    prefill.buffers.set_buf(other)
    assert prefill.row()[8:] == [0] * 8


def test_a_row_of_another_request_states_nothing(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    req, other = request(sglang), request(sglang, metadata_buffer_index=2)
    prefill.send = lambda _scheduler, _req, **_how: prefill.buffers.set_buf(other)
    prefill.chunk(req, 14, last_chunk=True)
    assert prefill.row()[8:] == [0] * 8


def test_a_row_on_a_device_gets_its_words_in_one_piece(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    made: list[list[int]] = []

    def new_tensor(words: list[int]) -> str:
        made.append(words)
        return "tensor"

    row = SimpleNamespace(new_tensor=new_tensor)
    assert prefill.guards.engine.as_row(row, [1, 2]) == "tensor"
    assert made == [[1, 2]]


def test_what_prefill_cannot_send_is_ended_on_both_sides(sglang: Sglang) -> None:
    """Decode's own prefix reaches beyond what prefill computed; the engine returns without a word."""
    prefill = Prefill(sglang)
    req = request(sglang, start_send_idx=12)
    prefill.chunk(req, 9, last_chunk=True)
    assert (req.disagg_kv_sender.sent, req.disagg_kv_sender.aborted) == ([], 1)
    refused = prefill.guards.notices._rooms[ROOM]
    assert (refused.manager, refused.verdict.status) == (prefill.scheduler.kv_manager, 500)
    assert "computed 9 tokens, fewer than decode asked for" in refused.verdict.message
    prefill.chunk(request(sglang), 14, last_chunk=True)
    assert prefill.stated() == Statement(0, 14, 1018, digest_of(PROMPT))
