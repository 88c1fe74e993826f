"""A request that prefill refuses enters no queue, its client is answered, and decode is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvfence.plugin.sglang.engine import Verdict
from tests.plugin.sglang.parts import ROOM, Guards, own, request
from tests.plugin.sglang.standin import NEWEST, Sglang

SHAPES = ["0.5.12", "0.5.13", "0.5.20", "0.5.21", NEWEST]
"""Each way to answer a client, and to retire what was never admitted."""
TOO_LONG = "Input length (2000 tokens) exceeds the maximum allowed length (1018 tokens)."

in_all_shapes = pytest.mark.parametrize("sglang", SHAPES, indirect=True)


class Prefill:
    """The first queue of a prefill, with its guard."""

    def __init__(self, sglang: Sglang) -> None:
        self.guards = Guards(sglang)
        self.kind = sglang.module("disaggregation.prefill").PrefillBootstrapQueue
        self.queue = object.__new__(self.kind)
        self.scheduler = self.guards.scheduler()
        self.queue.__dict__.update(
            scheduler=self.scheduler, kv_manager=self.scheduler.kv_manager, capacity=1024, queue=[]
        )

    def add(self, req: Any) -> None:
        self.guards.door.prefill(self.kind.add, self.queue, req, 8)

    def refused(self) -> dict[int, Verdict]:
        return {room: one.verdict for room, one in self.guards.notices._rooms.items()}


@in_all_shapes
@pytest.mark.parametrize("where", ["to_finish", "finished_reason"])
def test_a_verdict_is_final_at_the_door(sglang: Sglang, where: str) -> None:
    prefill = Prefill(sglang)
    req = request(sglang, [0], **{where: prefill.guards.abort(TOO_LONG)})
    prefill.add(req)
    assert prefill.queue.queue == []
    ((answered, reason),) = prefill.scheduler.streamed
    assert answered is req
    assert (reason.message, reason.status_code) == (TOO_LONG, 400)
    assert prefill.refused() == {ROOM: Verdict(400, TOO_LONG)}
    assert prefill.guards.counted() == {"door_refused": 1}
    assert prefill.scheduler.retired == ([req] if sglang.since("0.5.21") else [])


@in_all_shapes
def test_a_request_without_a_verdict_enters(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    req = request(sglang)
    prefill.add(req)
    assert prefill.queue.queue == [req]
    assert prefill.scheduler.streamed == []
    assert prefill.refused() == {}


@in_all_shapes
def test_a_refusal_within_add_is_told_too(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.add(request(sglang, range(1025)))
    assert prefill.queue.queue == []
    assert prefill.refused()[ROOM].status == 400
    assert "exceeds the maximum number of tokens" in prefill.refused()[ROOM].message
    assert len(prefill.scheduler.streamed) == 1


@in_all_shapes
@pytest.mark.parametrize("mark", ["pages", "row", "is_retracted", "backup"])
def test_what_was_admitted_before_goes_on_to_its_queue(sglang: Sglang, mark: str) -> None:
    """Its queue releases what it holds, the verdict or not."""
    prefill = Prefill(sglang)
    req = request(sglang, to_finish=prefill.guards.abort(TOO_LONG))
    if mark == "pages":
        own(sglang, req)
    elif mark == "row":
        req.metadata_buffer_index = 0
    elif mark == "is_retracted":
        req.is_retracted = True
    else:
        req.kv = SimpleNamespace(req_pool_idx=None, retraction_backup=object())
    prefill.add(req)
    assert prefill.queue.queue == [req]
    assert prefill.refused() == {}


def test_a_verdict_without_a_status_is_the_servers_error(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.add(request(sglang, to_finish=prefill.guards.abort("Aborted", None)))
    assert prefill.refused() == {ROOM: Verdict(500, "Aborted")}


@in_all_shapes
def test_a_health_check_is_nothing_to_tell_decode_of(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.add(request(sglang, [0], bootstrap_host="2.2.2.2", to_finish=prefill.guards.abort(TOO_LONG)))
    assert len(prefill.scheduler.streamed) == 1
    assert prefill.refused() == {}


def test_a_room_that_is_used_again_is_refused_no_more(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.add(request(sglang, [0], to_finish=prefill.guards.abort(TOO_LONG)))
    prefill.add(request(sglang))
    assert prefill.refused() == {}


@pytest.mark.parametrize("sglang", ["0.5.19", "0.5.20"], indirect=True)
@pytest.mark.parametrize("storage", [True, False])
def test_what_was_prefetched_for_a_refused_request_is_released(sglang: Sglang, storage: bool) -> None:
    prefill = Prefill(sglang)
    released: list[str] = []
    prefill.scheduler.enable_hicache_storage = storage
    prefill.scheduler.tree_cache = SimpleNamespace(release_aborted_request=released.append)
    prefill.add(request(sglang, [0], to_finish=prefill.guards.abort(TOO_LONG)))
    assert released == (["r-1"] if storage else [])


@in_all_shapes
def test_a_refused_streaming_session_takes_requests_again(sglang: Sglang) -> None:
    """A session has one request under way at a time; one that never ends would be its last."""
    prefill = Prefill(sglang)
    ended: list[bool] = []
    session = SimpleNamespace(streaming=True, abort_req=lambda: ended.append(True))
    req = request(sglang, [0], to_finish=prefill.guards.abort(TOO_LONG), session=session)
    prefill.add(req)
    assert ended or req in prefill.scheduler.retired  # where the engine has its own way, it sees to it
