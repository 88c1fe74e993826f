"""Transfers are cut into bounded calls that move the same bytes, and end between two calls of a failed request."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.plugin.sglang.batches import Batches, bounded
from tests.plugin.sglang.parts import Guards
from tests.plugin.sglang.standin import NEWEST, Sglang

operations = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 50)), max_size=12)
BOTH_WAYS = ["0.5.19", NEWEST]
"""Before and after the engine made a success of a failed room a failure."""


def moved(sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Give the bytes that operations move, in order: from where, and to where."""
    each = zip(sources, targets, lengths, strict=True)
    return [(source + offset, target + offset) for source, target, length in each for offset in range(length)]


@given(ops=operations, most=st.integers(1, 60))
def test_batches_move_the_same_bytes_in_the_same_order(ops: list[tuple[int, int, int]], most: int) -> None:
    sources, targets, lengths = ([op[field] for op in ops] for field in range(3))
    batches = list(bounded(sources, targets, lengths, most))
    assert [byte for batch in batches for byte in moved(*batch)] == moved(sources, targets, lengths)
    assert all(0 < sum(batch.lengths) <= most and all(batch.lengths) for batch in batches)
    assert all(sum(batch.lengths) == most for batch in batches[:-1])


class Prefill:
    """A transfer thread of a prefill, with its guards."""

    def __init__(self, sglang: Sglang, most: int = 10, results: tuple[int, ...] = ()) -> None:
        self.guards = Guards(sglang)
        self.batches = Batches(self.guards.engine, self.guards.tally, most)
        self.batches.manager = self.manager = self.guards.manager()
        self.poll = sglang.module("disaggregation.base.conn").KVPoll
        module = sglang.module("distributed.device_communicators.mooncake_transfer_engine")
        self.mooncake = module.MooncakeTransferEngine(results)
        self.call = module.MooncakeTransferEngine.batch_transfer_sync

    def take(self, chunk: Any) -> None:
        assert self.batches.next_chunk(lambda queue: queue.pop(), [chunk]) is chunk

    def transfer(self, sources: list[int], targets: list[int], lengths: list[int]) -> int:
        return self.batches.transfer(self.call, self.mooncake, "s", sources, targets, lengths)

    def fail_at(self, number: int, room: int) -> None:
        def during() -> None:
            if len(self.mooncake.calls) == number:
                self.manager.request_status[room] = self.poll.Failed

        self.mooncake.during = during


def test_a_transfer_within_the_bound_is_one_call_with_the_same_lists(sglang: Sglang) -> None:
    prefill = Prefill(sglang, most=30)
    assert prefill.transfer([1, 200], [3, 400], [10, 20]) == 0
    assert prefill.mooncake.calls == [("s", [1, 200], [3, 400], [10, 20])]
    assert prefill.guards.counted() == {}


def test_a_longer_transfer_is_several_calls(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    assert prefill.transfer([100], [200], [25]) == 0
    assert prefill.mooncake.calls == [
        ("s", [100], [200], [10]),
        ("s", [110], [210], [10]),
        ("s", [120], [220], [5]),
    ]
    assert prefill.guards.counted() == {"batches_split": 1}


@pytest.mark.parametrize("result", [-1, 7])
def test_a_result_other_than_0_is_given_at_once(sglang: Sglang, result: int) -> None:
    prefill = Prefill(sglang, results=(0, result, 0))
    assert prefill.transfer([100], [200], [25]) == result
    assert len(prefill.mooncake.calls) == 2


def test_a_result_of_a_transfer_within_the_bound_is_given(sglang: Sglang) -> None:
    assert Prefill(sglang, results=(-1,)).transfer([100], [200], [5]) == -1


@pytest.mark.parametrize("sglang", BOTH_WAYS, indirect=True)
def test_a_request_that_fails_between_two_calls_sends_no_more(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.manager.request_status[5] = prefill.poll.Transferring
    prefill.take(SimpleNamespace(room=5))
    prefill.fail_at(1, room=5)
    assert prefill.transfer([100], [200], [25]) == 0
    assert len(prefill.mooncake.calls) == 1
    assert prefill.guards.counted() == {"batches_split": 1, "batches_cut": 1}
    prefill.batches.send_row(type(prefill.manager).send_aux, prefill.manager, SimpleNamespace(room=5), 0, [])
    assert prefill.manager.rows == []


@pytest.mark.parametrize("sglang", ["0.5.19"], indirect=True)
def test_up_to_0_5_19_a_row_that_is_not_sent_is_a_failure(sglang: Sglang) -> None:
    """There, a success would be taken for one, although the room has failed."""
    prefill = Prefill(sglang)
    prefill.manager.request_status[5] = prefill.poll.Failed
    assert prefill.batches.send_row(lambda *_: 0, prefill.manager, SimpleNamespace(room=5)) == -1


def test_later_a_row_that_is_not_sent_leaves_nothing_unsettled(sglang: Sglang) -> None:
    """A row that failed makes the engine hold decode's pages for its whole time-out; none was under way here."""
    prefill = Prefill(sglang)
    prefill.manager.request_status[5] = prefill.poll.Failed
    assert prefill.batches.send_row(lambda *_: 7, prefill.manager, SimpleNamespace(room=5)) == 0


def test_a_request_that_has_failed_before_the_first_call_sends_nothing(sglang: Sglang) -> None:
    """As when the state of a model follows its pages."""
    prefill = Prefill(sglang)
    prefill.take(SimpleNamespace(room=5))
    prefill.manager.request_status[5] = prefill.poll.Failed
    assert prefill.transfer([100], [200], [25]) == 0
    assert prefill.mooncake.calls == []


def test_a_row_of_a_room_that_was_cleared_is_not_sent(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.batches.send_row(type(prefill.manager).send_aux, prefill.manager, SimpleNamespace(room=5), 0, [])
    assert prefill.manager.rows == []


def test_a_row_of_a_room_under_way_is_sent_with_what_the_engine_gave(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.manager.request_status[5] = prefill.poll.Transferring
    given: list[tuple[Any, ...]] = []

    def send_aux(*what: Any) -> int:
        given.append(what)
        return 4

    assert prefill.batches.send_row(send_aux, prefill.manager, SimpleNamespace(room=5), 3, [9]) == 4
    assert given[0][2:] == (3, [9])


def test_the_failure_of_another_request_ends_nothing(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.manager.request_status[5] = prefill.poll.Transferring
    prefill.manager.request_status[6] = prefill.poll.Failed
    prefill.take(SimpleNamespace(room=5))
    other = threading.Thread(target=prefill.take, args=[SimpleNamespace(room=6)])
    other.start()
    other.join()
    assert prefill.transfer([100], [200], [25]) == 0
    assert len(prefill.mooncake.calls) == 3


@pytest.mark.parametrize("chunk", [SimpleNamespace(), SimpleNamespace(room=None), None, "taken-by-nobody"])
def test_a_transfer_of_no_room_is_never_cut(sglang: Sglang, chunk: Any) -> None:
    prefill = Prefill(sglang)
    if chunk != "taken-by-nobody":
        prefill.take(chunk)
    prefill.transfer([100], [200], [25])
    assert len(prefill.mooncake.calls) == 3


def test_before_there_is_a_manager_nothing_is_cut(sglang: Sglang) -> None:
    prefill = Prefill(sglang)
    prefill.batches.manager = None
    prefill.take(SimpleNamespace(room=5))
    prefill.transfer([100], [200], [25])
    assert len(prefill.mooncake.calls) == 3


def test_nothing_to_transfer_is_a_success(sglang: Sglang) -> None:
    assert Prefill(sglang).transfer([], [], []) == 0
