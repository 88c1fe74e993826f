"""Every page is in exactly one state, the lowest free page goes first, and a refused change changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvfence.fence.pool import FREE, LANDING, LEASED, LIVE, QUARANTINED, ConservationError, Pool

STATES = (FREE, LEASED, LANDING, LIVE, QUARANTINED)
RESERVED = (LEASED, LANDING)  # what a page is taken into
KINDS = ("full", "row", "window")


def everything(pool: Pool) -> tuple[object, ...]:
    """Give all that a pool remembers, in a form that does not change with it."""
    free = {kind: sorted(pages) for kind, pages in pool.free.items()}
    return pool.first, pool.kinds, tuple(pool.states), tuple(pool.holders), free


@dataclass
class Page:
    kind: str
    state: str = FREE
    holders: int = 0


class Pages(RuleBasedStateMachine):
    """A pool beside a plain dictionary of pages."""

    pool: Pool
    pages: dict[int, Page]

    @initialize(sizes=st.dictionaries(st.sampled_from(KINDS), st.integers(0, 4)), first=st.integers(0, 9))
    def start(self, sizes: dict[str, int], first: int) -> None:
        self.pool = Pool(sizes, first)
        kinds = [kind for kind, size in sizes.items() for _ in range(size)]
        self.pages = {first + at: Page(kind) for at, kind in enumerate(kinds)}

    def free(self, kind: str) -> list[int]:
        return [number for number, page in self.pages.items() if page.kind == kind and page.state == FREE]

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.pages)))

    @rule(data=st.data(), state=st.sampled_from(RESERVED))
    def take(self, data: st.DataObject, state: str) -> None:
        kind = data.draw(st.sampled_from(sorted(self.pool.free) or [""]))
        if kind not in self.pool.free:
            return
        if free := self.free(kind):
            assert self.pool.take(kind, state) == min(free)
            self.pages[min(free)].state = state
        else:
            self.refused(f"no page of kind {kind} is free", lambda: self.pool.take(kind, state))

    @precondition(lambda self: self.pages)
    @rule(data=st.data(), after=st.sampled_from(STATES))
    def move(self, data: st.DataObject, after: str) -> None:
        number = self.pick(data)
        page = self.pages[number]
        if page.state == FREE:  # it leaves by `take` alone
            why = f"page {number} is free, and cannot go from free to {after}"
            self.refused(why, lambda: self.pool.move(number, FREE, after))
            return
        if page.holders > 1:
            self.refused(f"page {number} has {page.holders} holders", lambda: self.pool.move(number, LIVE, after))
            return
        self.pool.move(number, page.state, after)
        page.state, page.holders = after, int(after == LIVE)

    @precondition(lambda self: self.pages)
    @rule(data=st.data(), before=st.sampled_from(STATES), after=st.sampled_from(STATES))
    def move_from_a_state_it_is_not_in(self, data: st.DataObject, before: str, after: str) -> None:
        number = self.pick(data)
        state = self.pages[number].state
        if before != state:
            why = f"page {number} is {state}, and cannot go from {before} to {after}"
            self.refused(why, lambda: self.pool.move(number, before, after))

    @precondition(lambda self: self.pages)
    @rule(data=st.data(), after=st.sampled_from(["lost", "", "Free", "quarantine"]))
    def move_to_what_is_no_state(self, data: st.DataObject, after: str) -> None:
        number = self.pick(data)
        state = self.pages[number].state
        self.refused(f"cannot go from {state} to {after}$", lambda: self.pool.move(number, state, after))

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        number = self.pick(data)
        if self.pages[number].state == LIVE:
            self.pool.hold(number)
            self.pages[number].holders += 1
        else:
            self.refused(f"page {number} is {self.pages[number].state}", lambda: self.pool.hold(number))

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        number = self.pick(data)
        page = self.pages[number]
        if page.state != LIVE:
            self.refused(f"page {number} is {page.state}", lambda: self.pool.drop(number))
            return
        page.holders -= 1
        if not page.holders:
            page.state = FREE
        assert self.pool.drop(number) == (page.holders == 0)

    @rule(kind=st.sampled_from([*KINDS, "latent"]), state=st.sampled_from([FREE, LIVE, QUARANTINED, "lost"]))
    def take_into_a_state_that_is_not_reserved(self, kind: str, state: str) -> None:
        why = f"no page of kind {kind} is free, or it may not be {state} at once"
        self.refused(why, lambda: self.pool.take(kind, state))

    @rule(state=st.sampled_from(RESERVED))
    def take_of_a_kind_there_is_not(self, state: str) -> None:
        self.refused("no page of kind latent is free", lambda: self.pool.take("latent", state))

    @rule(data=st.data(), before=st.sampled_from(STATES), after=st.sampled_from(STATES))
    def ask_of_a_page_there_is_not(self, data: st.DataObject, before: str, after: str) -> None:
        pool = self.pool
        beyond = pool.first + len(pool)
        number = data.draw(st.one_of(st.integers(-20, pool.first - 1), st.integers(beyond, beyond + 20)))
        calls: list[Callable[[], object]] = [
            lambda: pool.state(number),
            lambda: pool.move(number, before, after),
            lambda: pool.hold(number),
            lambda: pool.drop(number),
        ]
        for call in calls:
            self.refused(f"there is no page {number}$", call)

    def refused(self, why: str, change: Callable[[], object]) -> None:
        before = everything(self.pool)
        with pytest.raises(ConservationError, match=why):
            change()
        assert everything(self.pool) == before

    @rule()
    def go_on_with_a_copy(self) -> None:
        old, before = self.pool, everything(self.pool)
        self.pool = old.copy()
        assert self.pool.key() == old.key()
        assert everything(self.pool) == before
        for kind, pages in old.free.items():
            if pages:
                old.take(kind, LEASED)
                assert old.key() != self.pool.key()
        assert everything(self.pool) == before

    @invariant()
    def every_page_is_in_the_state_of_the_model(self) -> None:
        assert len(self.pool) == len(self.pages)
        assert {number: self.pool.state(number) for number in self.pages} == {
            number: page.state for number, page in self.pages.items()
        }
        counted = Counter(page.state for page in self.pages.values())
        assert [self.pool.count(state) for state in STATES] == [counted[state] for state in STATES]
        assert self.pool.holders == [page.holders for page in self.pages.values()]

    @invariant()
    def only_live_pages_have_holders(self) -> None:
        for state, holders in zip(self.pool.states, self.pool.holders, strict=True):
            assert (holders > 0) == (state == LIVE)

    @invariant()
    def free_pages_are_listed_once_under_their_own_kind(self) -> None:
        assert {kind: sorted(pages) for kind, pages in self.pool.free.items()} == {
            kind: self.free(kind) for kind in self.pool.free
        }

    @invariant()
    def room_is_for_as_many_of_a_kind_as_are_free(self) -> None:
        every = [kind for kind in KINDS for _ in self.free(kind)]
        assert self.pool.room(every)
        assert not any(self.pool.room([*every, kind]) for kind in KINDS)


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=40, stateful_step_count=30)


def test_pages_are_numbered_from_the_first_in_the_order_of_the_kinds() -> None:
    pool = Pool({"row": 2, "full": 3}, first=10)
    assert len(pool) == 5
    assert [pool.take("full", LEASED) for _ in range(3)] == [12, 13, 14]
    assert [pool.take("row", LANDING) for _ in range(2)] == [10, 11]
    assert [pool.state(page) for page in range(10, 15)] == [LANDING, LANDING, LEASED, LEASED, LEASED]


def test_kinds_never_exchange_pages() -> None:
    pool = Pool({"row": 1, "full": 3})
    pool.take("row", LEASED)
    with pytest.raises(ConservationError, match="no page of kind row is free"):
        pool.take("row", LEASED)
    assert pool.count(FREE) == 3


def test_the_lowest_free_page_goes_first_whatever_order_they_came_back_in() -> None:
    pool = Pool({"full": 4})
    for _ in range(4):
        pool.take("full", LEASED)
    for page in (2, 0, 3):
        pool.move(page, LEASED, FREE)
    assert [pool.take("full", LEASED) for _ in range(3)] == [0, 2, 3]


def test_a_page_that_becomes_live_is_held_by_its_taker_alone() -> None:
    pool = Pool({"full": 1})
    for _ in range(2):
        page = pool.take("full", LANDING)
        pool.move(page, LANDING, LIVE)
        pool.hold(page)
        assert not pool.drop(page)
        assert pool.state(page) == LIVE
        assert pool.drop(page)
        assert pool.state(page) == FREE


@pytest.mark.parametrize("after", STATES)
def test_a_free_page_leaves_by_take_alone(after: str) -> None:
    pool = Pool({"full": 2})
    with pytest.raises(ConservationError, match="page 0 is free, and cannot go from free"):
        pool.move(0, FREE, after)
    assert [pool.take("full", LEASED) for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("after", STATES)
def test_a_live_page_that_others_read_stays_live(after: str) -> None:
    pool = Pool({"full": 1})
    page = pool.take("full", LEASED)
    pool.move(page, LEASED, LIVE)
    pool.hold(page)
    with pytest.raises(ConservationError, match="page 0 has 2 holders"):
        pool.move(page, LIVE, after)
    assert pool.state(page) == LIVE
    assert not pool.drop(page)
    assert pool.drop(page)


def test_a_page_that_is_read_no_more_in_quarantine_has_no_holder() -> None:
    pool = Pool({"full": 1})
    page = pool.take("full", LEASED)
    pool.move(page, LEASED, LIVE)
    pool.move(page, LIVE, QUARANTINED)
    assert pool.holders == [0]
    with pytest.raises(ConservationError, match="page 0 is quarantined, and nobody holds it"):
        pool.drop(page)
    pool.move(page, QUARANTINED, FREE)
    assert pool.room(["full"])


@pytest.mark.parametrize("page", [-1, 0, 2, 5, 6, 99])
def test_pages_of_another_pool_are_none_of_this_one(page: int) -> None:
    """An arena is numbered on from its pool, and a page counted from the end of a list is nobody's."""
    pool = Pool({"full": 2}, first=3)
    for _ in range(2):
        pool.move(pool.take("full", LANDING), LANDING, LIVE)
    before = everything(pool)
    for call in (pool.state, pool.hold, pool.drop, lambda number: pool.move(number, LIVE, FREE)):
        with pytest.raises(ConservationError, match=f"there is no page {page}$"):
            call(page)
    assert everything(pool) == before


def test_room_counts_a_kind_as_often_as_it_is_asked_for() -> None:
    pool = Pool({"full": 2, "row": 1})
    assert pool.room([])
    assert pool.room(iter(["full", "row", "full"]))
    assert not pool.room(["full", "full", "full"])
    assert not pool.room(["latent"])


@given(sizes=st.dictionaries(st.sampled_from(KINDS), st.integers(0, 5)))
def test_a_new_pool_is_free_and_nothing_else(sizes: dict[str, int]) -> None:
    pool = Pool(sizes)
    assert pool.count(FREE) == len(pool) == sum(sizes.values())
    assert sorted(page for pages in pool.free.values() for page in pages) == list(range(len(pool)))


@given(order=st.permutations(range(5)), state=st.sampled_from([FREE, QUARANTINED]))
def test_the_order_in_which_pages_came_to_their_states_does_not_show_in_the_key(order: list[int], state: str) -> None:
    pools = []
    for pages in (order, range(5)):
        pool = Pool({"full": 5})
        for _ in range(5):
            pool.take("full", LEASED)
        for page in pages:
            pool.move(page, LEASED, state)
        pools.append(pool)
    assert pools[0].key() == pools[1].key()
    assert hash(pools[0].key()) == hash(pools[1].key())
