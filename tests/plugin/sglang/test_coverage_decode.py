"""Decode commits what prefill states to have sent and it holds the rest of, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvfence.plugin.sglang.coverage import note_prefix
from kvfence.plugin.sglang.settings import Settings, SilentPeer
from kvfence.plugin.sglang.statement import Statement, digest_of
from tests.plugin.sglang.parts import PROMPT, ROOM, Guards, give, request
from tests.plugin.sglang.standin import NEWEST, RECORDED, RELEASES, Sglang

WHOLE = Statement(0, len(PROMPT), 1018, digest_of(PROMPT))
SEND = "disaggregation.mooncake.conn.MooncakeKVReceiver.send_metadata"


class Decode:
    """A transfer queue of decode, with the guard of what it commits."""

    def __init__(self, sglang: Sglang, silent: SilentPeer = SilentPeer.DENY) -> None:
        self.sglang = sglang
        self.guards = Guards(sglang, Settings(silent_peer=silent))
        self.kind = sglang.module("disaggregation.decode").DecodeTransferQueue
        self.receiver = sglang.module("disaggregation.mooncake.conn").MooncakeKVReceiver
        self.scheduler = self.guards.scheduler()
        self.queue = self.kind(self.scheduler, self.scheduler.disagg_metadata_buffers)

    def arrive(self, words: Sequence[int], room: int = ROOM, images: int = 0) -> None:
        buffers = self.queue.metadata_buffers
        buffers.cached_tokens[1][:] = [9, 9, 9, 9, images, 0, 0, 0, *words]
        buffers.bootstrap_room[1][0] = room

    def announce(self, prefix: int) -> Any:
        receiver = self.receiver(self.guards.manager(), ROOM)
        form = RECORDED[SEND][self.sglang.release]
        given = give(form, decode_prefix_len=prefix)
        pages = given.pop("kv_indices")
        note_prefix(self.guards.engine, self.receiver.send_metadata, receiver, pages, **given)
        return receiver

    def commit(self, req: Any, prefix: int = 0, **given: Any) -> Any:
        decode_req = SimpleNamespace(
            req=req, metadata_buffer_index=1, kv_receiver=self.announce(prefix), is_rebootstrap=False
        )
        decode_req.__dict__.update(given)
        receiver = decode_req.kv_receiver
        answer = self.guards.coverage.commit(self.kind._commit_transfer_to_req, self.queue, decode_req)
        assert answer is True
        committed = req in self.queue.committed
        assert receiver.cleared is (not committed and decode_req.kv_receiver is None)
        return decode_req

    def committed(self, req: Any, prefix: int = 0, **given: Any) -> bool:
        """Say whether a request was committed; if not, it ends with an error of ours."""
        self.commit(req, prefix, **given)
        if req in self.queue.committed:
            assert req.finished_reason is None
            return True
        assert req.finished_reason.status_code == 500
        assert req.finished_reason.message.startswith("The handoff of this request was not committed: ")
        return False


@pytest.mark.parametrize("sglang", RELEASES, indirect=True)
def test_what_covers_the_prompt_is_committed(sglang: Sglang) -> None:
    decode = Decode(sglang)
    decode.arrive(WHOLE.words())
    assert decode.committed(request(sglang))
    assert decode.guards.counted() == {"committed": 1}
    assert decode.guards.limits.learned == {"10.0.0.1:8998": 1018}


@pytest.mark.parametrize(
    "stated",
    [
        pytest.param(WHOLE._replace(end=1), id="a stub"),
        pytest.param(WHOLE._replace(end=13), id="one token short"),
        pytest.param(WHOLE._replace(end=15), id="one token long"),
        pytest.param(WHOLE._replace(start=1), id="a hole at the start"),
        pytest.param(WHOLE._replace(digest=digest_of(PROMPT[::-1])), id="another prompt"),
        pytest.param(WHOLE._replace(digest=None), id="no digest"),
        pytest.param(Statement(0, 9, 0, digest_of(PROMPT[:9])), id="a prompt that was cut"),
    ],
)
def test_what_does_not_cover_the_prompt_is_not_committed(sglang: Sglang, stated: Statement) -> None:
    decode = Decode(sglang)
    decode.arrive(stated.words())
    assert not decode.committed(request(sglang))
    assert decode.guards.counted() == {"disagreed": 1}


@pytest.mark.parametrize("sglang", ["0.5.11", "0.5.16", NEWEST], indirect=True)
@pytest.mark.parametrize(("start", "held", "fine"), [(8, 8, True), (4, 8, True), (9, 8, False), (8, 0, False)])
def test_what_decode_holds_itself_need_not_be_sent(sglang: Sglang, start: int, held: int, fine: bool) -> None:
    decode = Decode(sglang)
    decode.arrive(WHOLE._replace(start=start).words())
    assert decode.committed(request(sglang), prefix=held) is fine


def test_a_prefix_is_asked_for_in_the_engines_own_message(sglang: Sglang) -> None:
    assert Decode(sglang).announce(8).frames[8] == b"8"


@pytest.mark.parametrize("sglang", ["0.5.19", "0.5.20"], indirect=True)
def test_only_decode_that_can_take_a_reason_marks_its_announcement(sglang: Sglang) -> None:
    assert Decode(sglang).announce(0).frames[7] == (b"+1" if sglang.since("0.5.20") else b"1")


@pytest.mark.parametrize("silent", SilentPeer)
def test_a_silent_prefill_is_refused_unless_it_is_allowed(sglang: Sglang, silent: SilentPeer) -> None:
    decode = Decode(sglang, silent)
    decode.arrive([0] * 8)
    assert decode.committed(request(sglang)) is (silent is SilentPeer.ALLOW)
    assert decode.guards.counted() == {"silent": 1}


def test_a_statement_counts_where_silence_is_allowed(sglang: Sglang) -> None:
    decode = Decode(sglang, SilentPeer.ALLOW)
    decode.arrive(WHOLE._replace(end=1).words())
    assert not decode.committed(request(sglang))


def test_a_statement_that_another_request_left_in_the_row_is_not_taken_for_this_ones(sglang: Sglang) -> None:
    decode = Decode(sglang)
    decode.arrive(WHOLE.words())
    assert not decode.committed(request(sglang, PROMPT[::-1]))


@pytest.mark.parametrize("mark", ["is_rebootstrap", "pd_rebootstrap_in_progress"])
def test_a_request_that_prefill_computes_again_is_held_to_its_answer_too(sglang: Sglang, mark: str) -> None:
    whole = (*PROMPT, 7, 8)
    for stated in (Statement(0, 16, 1018, digest_of(whole)), WHOLE):
        decode = Decode(sglang)
        decode.arrive(stated.words())
        req = request(sglang, output_ids=[7, 8])
        req.pd_rebootstrap_in_progress = mark == "pd_rebootstrap_in_progress"
        assert decode.committed(req, is_rebootstrap=mark == "is_rebootstrap") is (stated is not WHOLE)


@pytest.mark.parametrize("known", ["multimodal_inputs", "input_embeds", "images"])
def test_more_than_text_needs_no_digest_and_still_its_length(sglang: Sglang, known: str) -> None:
    given = {} if known == "images" else {known: object()}
    for end, fine in ((14, True), (13, False)):
        decode = Decode(sglang)
        decode.arrive(WHOLE._replace(digest=None, end=end).words(), images=int(known == "images"))
        assert decode.committed(request(sglang, PROMPT, **given)) is fine


@pytest.mark.parametrize("room", [0, 5, 2**64 - 1])
def test_a_row_of_no_room_or_another_is_the_engines_case(sglang: Sglang, room: int) -> None:
    decode = Decode(sglang)
    decode.arrive([0] * 8, room)
    req = request(sglang)
    decode.commit(req)
    assert "bootstrap_room mismatch" in req.finished_reason.message
    assert decode.guards.counted() == {}


def test_a_room_with_the_greatest_number_is_held_to_its_statement(sglang: Sglang) -> None:
    decode = Decode(sglang)
    decode.arrive([0] * 8, 2**64 - 1)
    assert not decode.committed(request(sglang, bootstrap_room=2**64 - 1))


def test_a_pretence_has_no_statement(sglang: Sglang) -> None:
    decode = Decode(sglang)
    req = request(sglang, bootstrap_host="2.2.2.2", bootstrap_room=0)
    decode.commit(req)
    assert decode.queue.committed == [req]
    assert decode.guards.counted() == {}


def test_a_request_id_forges_no_line_of_the_log(sglang: Sglang, caplog: pytest.LogCaptureFixture) -> None:
    decode = Decode(sglang)
    decode.arrive([0] * 8)
    assert not decode.committed(request(sglang, rid="r\nkvfence 9 guards decode of sglang 9"))
    assert "\nkvfence 9" not in caplog.text
