"""Whoever announces pages for a refused room is told at once, once, and in words that its release understands."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kvfence.plugin.sglang import notices as module
from kvfence.plugin.sglang.engine import Verdict
from kvfence.plugin.sglang.notices import KEEP_SECONDS, Notices
from tests.plugin.sglang.parts import ROOM, Guards, frames, receive, request
from tests.plugin.sglang.standin import NEWEST, Sglang

REFUSED = Verdict(400, "Too long.")
NOTICE = [str(ROOM).encode(), b"0", b"3"]
"""The engine's own status message, from rank 3: failed."""
WITH_REASON = [*NOTICE, b"kvfence-refused:400:Too long."]


class Prefill:
    """A prefill that refuses, and hears of announcements."""

    def __init__(self, sglang: Sglang) -> None:
        self.guards = Guards(sglang)
        self.manager = self.guards.manager()

    def refuse(self, room: Any = ROOM, verdict: Verdict = REFUSED) -> None:
        self.guards.notices.refuse(self.manager, room, verdict)

    def hear(self, room: int = ROOM, **given: Any) -> None:
        receive(self.guards, self.manager, frames(room, **given))

    def settle(self) -> None:
        """Let all the time pass in which anything is looked at, and another announcement arrive."""
        for _ in range(5):
            self.guards.look(1.0)
        self.hear(ROOM - 1, session="bystander")
        self.guards.look(1.0)

    def told(self) -> list[tuple[str, list[bytes]]]:
        return [(endpoint.removeprefix("tcp://10.0.0.9:"), parts) for endpoint, parts in self.manager.frames]


@pytest.fixture
def prefill(sglang: Sglang) -> Prefill:
    return Prefill(sglang)


def test_an_announcement_before_the_refusal_is_answered(prefill: Prefill) -> None:
    prefill.hear()
    prefill.refuse()
    prefill.guards.look()
    assert prefill.told() == [("7001", NOTICE)]


def test_an_announcement_after_the_refusal_is_answered_once_it_is_kept(prefill: Prefill) -> None:
    prefill.refuse()
    prefill.settle()
    assert prefill.told() == []
    prefill.hear()
    prefill.guards.look(0.01)
    assert prefill.told() == [("7001", NOTICE)]


def test_an_announcement_that_never_comes_is_answered_by_nothing(prefill: Prefill) -> None:
    prefill.refuse()
    prefill.settle()
    assert prefill.guards.look(KEEP_SECONDS) is None
    assert prefill.told() == []


def test_a_rank_is_told_once(prefill: Prefill) -> None:
    prefill.hear(required="2")
    prefill.refuse()
    prefill.settle()
    prefill.hear(required="2")
    prefill.settle()
    assert prefill.told() == [("7001", NOTICE)]
    assert prefill.guards.counted() == {"notices": 1}


def test_each_decode_rank_is_told(prefill: Prefill) -> None:
    prefill.hear(port=7001, session="a", required="3")
    prefill.refuse()
    prefill.settle()
    prefill.hear(port=7002, session="b", required="3")
    prefill.hear(port=7003, session="c", required="3")
    prefill.settle()
    assert [port for port, _ in prefill.told()] == ["7001", "7002", "7003"]


def test_a_dummy_rank_is_not_told_and_counts_as_heard(prefill: Prefill) -> None:
    prefill.refuse()
    prefill.hear(port=7001, session="a", required="2", dummy=True)
    prefill.hear(port=7002, session="b", required="2")
    prefill.settle()
    assert [port for port, _ in prefill.told()] == ["7002"]
    assert ROOM not in prefill.manager.transfer_infos


def test_once_all_are_told_nothing_is_kept_of_the_room(prefill: Prefill) -> None:
    prefill.refuse()
    prefill.hear()
    prefill.settle()
    assert ROOM not in prefill.manager.transfer_infos
    assert ROOM not in prefill.manager.req_to_decode_prefix_len
    assert prefill.guards.notices._rooms == {}
    assert prefill.guards.counted() == {"notices": 1}


def test_another_room_is_not_told(prefill: Prefill) -> None:
    prefill.refuse()
    prefill.hear(5)
    prefill.settle()
    assert prefill.told() == []
    assert 5 in prefill.manager.transfer_infos


@pytest.mark.parametrize(("required", "parts"), [("1", NOTICE), ("+1", WITH_REASON)])
def test_only_a_guarded_decode_is_told_the_reason(prefill: Prefill, required: str, parts: list[bytes]) -> None:
    prefill.hear(required=required)
    prefill.refuse()
    prefill.guards.look()
    assert prefill.told() == [("7001", parts)]


def test_a_backend_that_carries_reasons_anyway_is_given_this_one(prefill: Prefill) -> None:
    prefill.manager.kv_status_msg_carries_reason = True
    prefill.hear(required="+1")
    prefill.refuse()
    prefill.guards.look()
    assert prefill.told() == [("7001", WITH_REASON)]


@pytest.mark.parametrize("sglang", ["0.5.19"], indirect=True)
def test_up_to_0_5_19_a_notice_has_three_frames(prefill: Prefill) -> None:
    """A fourth would end the thread that receives it."""
    prefill.hear(required="+1")
    prefill.refuse()
    prefill.guards.look()
    assert prefill.told() == [("7001", NOTICE)]


def test_a_reason_is_bounded(prefill: Prefill) -> None:
    prefill.hear(required="+1")
    prefill.refuse(verdict=Verdict(400, "x" * 10**6))
    assert len(prefill.guards.notices._rooms[ROOM].verdict.message) < 10_000
    prefill.guards.look()
    ((_, parts),) = prefill.told()
    assert len(parts[3]) < 10_000


def test_a_reason_that_no_encoding_has_is_told_all_the_same(prefill: Prefill) -> None:
    """JSON may hold half of a surrogate pair, and a message quotes what a client sent."""
    prefill.hear(required="+1")
    prefill.refuse(verdict=Verdict(400, "Request \ud800 exceeds"))
    prefill.settle()
    assert [parts[:3] for _, parts in prefill.told()] == [NOTICE]


def test_a_peer_that_cannot_be_reached_silences_no_other(prefill: Prefill) -> None:
    prefill.manager.unreachable.add("tcp://10.0.0.9:7001")
    for room, port in ((1, 7001), (2, 7002)):
        prefill.hear(room, port=port)
        prefill.refuse(room)
    prefill.settle()
    assert [port for port, _ in prefill.told()] == ["7002"]


def test_a_rank_that_cannot_be_reached_silences_no_other_of_its_room(prefill: Prefill) -> None:
    prefill.manager.unreachable.add("tcp://10.0.0.9:7001")
    for port in (7001, 7002):
        prefill.hear(port=port, session=str(port), required="2")
    prefill.refuse()
    prefill.settle()
    assert [port for port, _ in prefill.told()] == ["7002"]


@pytest.mark.parametrize("again", [ROOM, None])
def test_a_room_that_a_new_request_uses_is_not_told(prefill: Prefill, again: int | None) -> None:
    prefill.refuse()
    prefill.guards.notices.forget(again)
    prefill.hear()
    prefill.settle()
    assert len(prefill.told()) == (again is None)
    assert (ROOM in prefill.manager.transfer_infos) is (again is ROOM)


def test_a_request_without_a_room_has_nobody_to_tell(prefill: Prefill) -> None:
    prefill.refuse(room=None)
    assert prefill.guards.notices._rooms == {}


def test_in_a_flood_the_oldest_refusals_go_first(prefill: Prefill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROOMS", 3)
    for room in (1, 2, 3, 1, 4, 5):
        prefill.refuse(room)
    assert list(prefill.guards.notices._rooms) == [1, 4, 5]
    prefill.settle()
    assert prefill.guards.notices._looks == []
    assert prefill.guards.counted() == {"notices_expired": 2}


def test_a_refusal_is_forgotten_after_its_time(prefill: Prefill) -> None:
    prefill.refuse(1)
    prefill.guards.clock.now += KEEP_SECONDS - 1
    prefill.refuse(2)
    assert list(prefill.guards.notices._rooms) == [1, 2]
    prefill.guards.clock.now += 1
    prefill.refuse(3)
    assert list(prefill.guards.notices._rooms) == [2, 3]


def test_a_refusal_that_is_renewed_does_not_keep_older_ones(prefill: Prefill) -> None:
    for room in (1, 2):
        prefill.refuse(room)
    prefill.guards.clock.now += KEEP_SECONDS - 1
    prefill.refuse(1)
    prefill.guards.clock.now += 1
    prefill.refuse(3)
    assert list(prefill.guards.notices._rooms) == [1, 3]


def test_what_is_due_next_is_said(prefill: Prefill) -> None:
    assert prefill.guards.look() is None
    prefill.refuse()
    now = prefill.guards.clock.now
    assert prefill.guards.look() == now + 0.01
    assert prefill.guards.look(0.01) == now + 0.25


@pytest.mark.parametrize("room", [[1, 2], {"a": 1}, "5", 1.5, 2**70, -1, True])
def test_no_room_is_too_strange_to_be_refused_or_used_again(prefill: Prefill, room: Any) -> None:
    """A client names its room, and an exception in the scheduler ends the server."""
    prefill.refuse(1)
    prefill.refuse(room)
    prefill.guards.notices.forget(room)
    prefill.settle()


def wait_for(prefill: Prefill) -> list[tuple[str, list[bytes]]]:
    end = time.monotonic() + 10
    while not prefill.manager.frames and time.monotonic() < end:
        time.sleep(0.005)
    return prefill.told()


@pytest.mark.parametrize("first", ["hear", "refuse"])
def test_the_thread_wakes_up_by_itself(prefill: Prefill, first: str) -> None:
    prefill.guards.notices = Notices(prefill.guards.engine, prefill.guards.tally)
    for step in (prefill.hear, prefill.refuse) if first == "hear" else (prefill.refuse, prefill.hear):
        step()
    assert wait_for(prefill) == [("7001", NOTICE)]
    assert prefill.guards.notices._thread is not None
    assert prefill.guards.notices._thread.daemon


def test_the_thread_outlives_what_goes_wrong(prefill: Prefill) -> None:
    prefill.guards.notices = Notices(prefill.guards.engine, prefill.guards.tally)
    prefill.guards.notices.refuse(object(), 5, REFUSED)
    prefill.refuse()
    prefill.hear()
    assert wait_for(prefill) == [("7001", NOTICE)]


@pytest.mark.parametrize("sglang", ["0.5.11", NEWEST], indirect=True)
def test_what_the_receiving_thread_is_about_to_write_stays_until_it_has(prefill: Prefill) -> None:
    """It looks a room up again after it read an announcement; a `KeyError` there is its end, and the server's."""
    prefill.refuse()
    prefill.hear()
    conn = prefill.guards.sglang.module("disaggregation.mooncake.conn")
    read = conn.TransferInfo.from_zmq.__func__

    def slow(kind: Any, msg: list[bytes]) -> Any:
        info = prefill.guards.notices.announcement(read, kind, msg)
        for _ in range(3):
            prefill.guards.look(1.0)  # the other thread has all the time to answer
        return info

    conn.TransferInfo.from_zmq = classmethod(slow)
    prefill.manager.receive(frames(ROOM, session="another"))
    prefill.manager.receive(frames(ROOM))


def test_a_refused_request_with_the_room_of_one_under_way_ends_only_itself(sglang: Sglang) -> None:
    """Rooms are numbers that clients name: who names another's may not end it."""
    prefill = Prefill(sglang)
    queue = sglang.module("disaggregation.prefill").PrefillBootstrapQueue
    made = object.__new__(queue)
    made.__dict__.update(scheduler=prefill.guards.scheduler(), kv_manager=prefill.manager, capacity=1024, queue=[])
    prefill.guards.door.prefill(queue.add, made, request(sglang), 8)
    prefill.hear()
    prefill.guards.door.prefill(queue.add, made, request(sglang, [0], to_finish=prefill.guards.abort("no")), 8)
    prefill.settle()
    assert prefill.told() == []
    assert ROOM in prefill.manager.transfer_infos
