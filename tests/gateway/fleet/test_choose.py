"""Choosing: only what is usable, only what can hold the prompt, and what is refused for good is refused rightly."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.gateway.fleet.choose import UNBOUNDED, Front, Lack, Pairs, shortest_refused
from kvfence.gateway.fleet.spec import WorkerSpec
from kvfence.gateway.fleet.tiers import PICKS, Order
from kvfence.gateway.fleet.worker import make_workers
from tests.gateway.fleet.fleets import fleet_of, fronts_of, seen_with

ORDERS = sorted(PICKS)


@pytest.mark.parametrize(
    ("limits", "tokens", "among"),
    [
        ([100, 200], 99, {"upstream-0", "upstream-1"}),
        ([100, 200], 100, {"upstream-1"}),
        ([100, 200], 199, {"upstream-1"}),
        ([100, 200], 200, set()),
        ([100, 200], 0, {"upstream-0", "upstream-1"}),
        ([100, 200], None, {"upstream-1"}),
        ([100, None], None, {"upstream-0"}),
        ([None, None], 1, set()),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_front_chooses_what_can_hold_it(
    limits: list[int | None], tokens: int | None, among: set[str], order: Order
) -> None:
    front = Front(fronts_of(*limits), order=order)
    chosen = [front.choose(tokens) for _ in range(8)]
    assert {worker.name for worker in chosen if worker is not None} == among
    assert (None in chosen) is (not among)
    assert (front.lack(tokens) is None) is bool(among)


@pytest.mark.parametrize(
    ("prefill", "decode", "tokens", "among"),
    [
        ([100], [200], 99, {"00"}),
        ([100], [200], 100, set()),
        ([200], [100], 100, set()),
        ([100, 300], [200, 400], 150, {"10", "11"}),
        ([100, 300], [200, 400], 250, {"11"}),
        ([100, 300], [200, 400], 300, set()),
        ([100, 300], [200, 400], 50, {"00", "01", "10", "11"}),
        ([100, 300], [200, 400], None, {"11"}),
        ([100, 300], [200, None], 150, {"10"}),
        ([None], [100], 1, set()),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_pair_is_of_two_that_can_both_hold_it(
    prefill: list[int | None], decode: list[int | None], tokens: int | None, among: set[str], order: Order
) -> None:
    pairs = Pairs(*fleet_of(prefill, decode), order=order)
    chosen = [pairs.choose(tokens) for _ in range(16)]
    assert {pair.prefill.name[-1] + pair.decode.name[-1] for pair in chosen if pair is not None} == among
    assert (None in chosen) is (not among)


@pytest.mark.parametrize(
    ("prefill", "decode", "limit", "now"),
    [
        ([100, 300], [200, 400], 300, 300),
        ([100], [400], 100, 100),
        ([400], [100], 100, 100),
        ([100, None], [50], 50, 50),  # whatever the unknown one holds, no pair holds more than the other
        ([100, None], [200], 200, 100),
        ([100, None], [200, None], None, 100),
        ([None], [None], None, 0),
    ],
)
def test_limit_is_that_of_the_best_pair(
    prefill: list[int | None], decode: list[int | None], limit: int | None, now: int
) -> None:
    pairs = Pairs(*fleet_of(prefill, decode))
    assert (pairs.limit(), pairs.limit_now()) == (limit, now)


def test_unknown_limit_is_passed_by_explicit_choice() -> None:
    pairs = Pairs(*fleet_of([None], [100]), unknown_limit=UNBOUNDED)
    assert pairs.choose(99) is not None
    assert pairs.choose(100) is None
    assert pairs.lack(100) is Lack.TOO_LONG
    pairs = Pairs(*fleet_of([None], [None]), unknown_limit=UNBOUNDED)
    assert pairs.choose(10**9) is not None
    assert pairs.limit() is None


def test_what_a_worker_that_is_down_could_hold_is_not_refused_for_good() -> None:
    workers = fronts_of(100, 1000)
    front = Front(workers)
    workers[1].doubt("it may have restarted")
    assert front.choose(500) is None
    assert (front.limit(), front.limit_now()) == (None, 100)  # it may come back with any limit
    assert front.lack(5000) is Lack.TOO_LONG_NOW
    workers[1].give_up()
    assert front.limit() == 1000
    assert front.lack(500) is Lack.TOO_LONG_NOW
    assert front.lack(1000) is Lack.TOO_LONG
    workers[1].learn(seen_with(300))
    assert front.limit() == 300
    assert front.choose(299) is workers[1]


def test_reasons_why_nothing_is_chosen() -> None:
    workers = fronts_of(100, None)
    front = Front(workers)
    assert front.lack(50) is None
    assert front.lack(100) is Lack.LIMIT_UNKNOWN
    front.quarantine(workers[1], "why")
    assert front.lack(100) is Lack.TOO_LONG_NOW
    front.quarantine(workers[0], "why")
    assert front.lack(50) is Lack.QUARANTINED
    for worker in workers:
        worker.doubt("gone")
    assert front.lack(50) is Lack.DOWN


def test_workers_of_different_models_are_not_combined() -> None:
    prefill, decode = fleet_of([100, 100], [100, 1000])
    prefill[1].learn(seen_with(1000, "other"))
    decode[1].learn(seen_with(1000, "other"))
    pairs = Pairs(prefill, decode)
    assert [pair.name for pair in pairs] == ["prefill-0+decode-0", "prefill-1+decode-1"]
    assert {pair.name for pair in (pairs.choose(1) for _ in range(8)) if pair} == {pair.name for pair in pairs}
    decode[1].learn(seen_with(1000, "third"))
    assert [pair.name for pair in pairs] == ["prefill-0+decode-0"]
    assert pairs.choose(100) is None
    assert pairs.limit() == 100


def test_quarantined_pair_is_left_out_and_its_workers_go_on() -> None:
    pairs = Pairs(*fleet_of([100, 200], [100, 200]))
    best = pairs.pair("prefill-1+decode-1")
    assert best is not None
    pairs.quarantine(best, "counts differ")
    assert pairs.choose(150) is None
    assert pairs.limit() == 200  # it is not refused for good: somebody may release the pair
    assert pairs.lack(150) is Lack.TOO_LONG_NOW
    names = {pair.name for pair in (pairs.choose(50) for _ in range(16)) if pair is not None}
    assert names == {"prefill-0+decode-0", "prefill-0+decode-1", "prefill-1+decode-0"}
    best.prefill.learn(seen_with(200))  # read again
    assert pairs.choose(150) is None
    pairs.release(best)
    assert pairs.choose(150) is best
    assert pairs.pair("prefill-9+decode-9") is None


def test_quarantined_worker_is_left_out_of_every_pair() -> None:
    prefill, decode = fleet_of([100, 100], [100])
    pairs = Pairs(prefill, decode)
    Front(prefill).quarantine(prefill[0], "why")
    assert {pair.name for pair in (pairs.choose(1) for _ in range(8)) if pair} == {"prefill-1+decode-0"}


def test_round_robin_gives_all_the_same() -> None:
    front = Front(fronts_of(10, 10, 10), order="round-robin")
    assert Counter(worker.name for worker in (front.choose(1) for _ in range(9)) if worker) == {
        "upstream-0": 3,
        "upstream-1": 3,
        "upstream-2": 3,
    }


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3), (4, 2), (1, 3), (3, 1)])
def test_round_robin_makes_every_pair_equally_often(rows: int, columns: int) -> None:
    pairs = Pairs(*fleet_of([10] * rows, [10] * columns), order="round-robin")
    counts = Counter(pair.name for pair in (pairs.choose(1) for _ in range(rows * columns * 2)) if pair)
    assert len(counts) == rows * columns
    assert set(counts.values()) == {2}


def test_least_loaded_spreads_and_follows_the_load() -> None:
    prefill, decode = fleet_of([10] * 3, [10] * 3)
    pairs = Pairs(prefill, decode)
    assert len({pair.prefill for pair in (pairs.choose(1) for _ in range(3)) if pair}) == 3  # all idle: in turn
    prefill[0].in_flight, prefill[1].in_flight, prefill[2].in_flight = 5, 1, 7
    decode[0].in_flight, decode[1].in_flight, decode[2].in_flight = 2, 2, 1
    chosen = [pairs.choose(1) for _ in range(6)]
    assert {pair.name for pair in chosen if pair} == {"prefill-1+decode-2"}


def test_least_loaded_of_many_finds_an_idle_one_soon() -> None:
    workers = fronts_of(*[10] * 64)
    for worker in workers[1:]:
        worker.in_flight = 3
    front = Front(workers)
    assert workers[0] in [front.choose(1) for _ in range(64)]


def test_limit_of_a_router_is_the_shortest_of_those_behind_it() -> None:
    workers = fronts_of(100, 200)
    assert shortest_refused(workers) == 100
    workers[1].doubt("it may have restarted")
    assert shortest_refused(workers) is None
    assert shortest_refused([]) is None
    assert shortest_refused(fronts_of(100, None)) is None
    never, there = make_workers([WorkerSpec("http://h:1", "behind"), WorkerSpec("http://h:2", "behind")])
    there.learn(seen_with(70))
    assert shortest_refused([never, there]) is None
    never.give_up()
    assert shortest_refused([never, there]) == 70


LIMITS = st.lists(st.sampled_from([None, 0, 5, 10, 20]), min_size=1, max_size=4)


@given(LIMITS, LIMITS, st.sampled_from([None, 0, 4, 5, 10, 19, 20, 30]), st.data(), st.sampled_from(ORDERS))
def test_choice_is_what_a_search_over_all_pairs_would_find(
    prefill: list[int | None], decode: list[int | None], tokens: int | None, data: st.DataObject, order: Order
) -> None:
    rows, columns = fleet_of(prefill, decode)
    pairs = Pairs(rows, columns, order=order)
    for worker in (*rows, *columns):
        state = data.draw(st.sampled_from(["up", "up", "doubted", "gone", "quarantined", "other model"]))
        if state == "doubted":
            worker.doubt("x")
        elif state == "gone":
            worker.doubt("x")
            worker.give_up()
        elif state == "quarantined":
            Front([worker]).quarantine(worker, "x")
        elif state == "other model":
            worker.learn(seen_with(worker.limit, "other"))
    for pair in list(pairs):
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            pairs.quarantine(pair, "x")
    alike = [pair for pair in pairs if pair.combinable]
    assert len(alike) == sum(pairs._pairs[p, d].combinable for p in rows for d in columns)
    free = [pair for pair in alike if pair.usable and not pair.quarantined and pair.limit]
    fitting = [pair for pair in free if tokens is None or (pair.limit or 0) > tokens]
    chosen = pairs.choose(tokens)
    assert (chosen is None) is (not fitting)
    assert chosen is None or chosen in fitting
    assert pairs.limit_now() == max((pair.limit or 0 for pair in free), default=0)
    assert (pairs.lack(tokens) is None) is bool(fitting)
    limit = pairs.limit()
    if limit is not None:
        for pair in alike:
            ends = [end for end in (pair.prefill.could_hold, pair.decode.could_hold) if end is not None]
            assert ends
            assert min(ends) <= limit


@pytest.mark.parametrize("order", ORDERS)
def test_choice_takes_microseconds_whatever_the_size(order: Order) -> None:
    """Compared with one pair in the same run; a search over 4,096 would take hundreds of times as long."""

    def seconds(size: int) -> float:
        pairs = Pairs(*fleet_of([100 + i for i in range(size)], [100 + i for i in range(size)]), order=order)
        pairs.choose(1)
        best = 1.0
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(200):
                pairs.choose(1)
            best = min(best, time.perf_counter() - began)
        return best

    assert seconds(64) < 12 * seconds(1)
