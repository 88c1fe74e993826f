"""A copy shares nothing that can change, and equal keys are of equal states."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.fence.arbiter import DecodeLeg
from kvfence.fence.config import Config
from kvfence.fence.decode import Decode
from kvfence.fence.messages import Address
from kvfence.fence.prefill import Prefill, PrefillLeg
from kvfence.fence.state import State
from kvfence.fence.statement import Request
from kvfence.fence.units import FULL, ROW, Layout
from kvfence.fence.worker import QUEUED


class Inner(State):
    __slots__ = ("items",)

    def __init__(self, items: list[int]) -> None:
        self.items = items


class Outer(State):
    __slots__ = ("flag", "inner", "inners", "limits", "names", "pairs", "parts", "value")
    SHARED = frozenset({"limits"})

    def __init__(self) -> None:
        self.limits: dict[str, int] = {"most": 3}
        self.flag = False
        self.value: float | str | None = None
        self.parts: tuple[int, ...] = ()
        self.pairs: list[list[int]] = []
        self.names: dict[str, list[int]] = {}
        self.inner = Inner([])
        self.inners: dict[int, Inner] = {}


class Derived(Outer):
    __slots__ = ("more",)

    def __init__(self) -> None:
        super().__init__()
        self.more: list[int] = []


class Queue(State):
    __slots__ = ("maybe", "unordered", "waiting")
    ORDERED = frozenset({"waiting"})

    def __init__(self, waiting: dict[str, Any] | None = None, unordered: dict[str, Any] | None = None) -> None:
        self.waiting = waiting or {}
        self.unordered = unordered or {}
        self.maybe: Any = None


class Longer(Queue):
    __slots__ = ("more",)

    def __init__(self, waiting: dict[str, Any]) -> None:
        super().__init__(waiting)
        self.more: list[int] = []


@st.composite
def outers(draw: st.DrawFn) -> Outer:
    """Fill every field; dictionaries in the order of their keys."""
    lists = st.lists(st.integers(0, 2), max_size=2)
    outer = Outer()
    outer.flag = draw(st.booleans())
    outer.value = draw(st.sampled_from([None, 0.5, "text", ""]))
    outer.parts = draw(lists.map(tuple))
    outer.pairs = draw(st.lists(lists, max_size=2))
    outer.names = dict(sorted(draw(st.dictionaries(st.sampled_from("ab"), lists)).items()))
    outer.inner = Inner(draw(lists))
    outer.inners = {at: Inner(items) for at, items in enumerate(draw(st.lists(lists, max_size=2)))}
    return outer


def plain(value: Any) -> Any:
    """Write a state out as what Python compares by itself."""
    if isinstance(value, State):
        return {name: plain(getattr(value, name)) for name in value._FIELDS}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def changes(outer: Outer) -> list[Any]:
    """Give changes of every field that can change, each at every depth."""

    def rebind() -> None:
        outer.inner = Inner([7])

    return [
        lambda: setattr(outer, "flag", not outer.flag),
        lambda: setattr(outer, "value", "other"),
        lambda: setattr(outer, "parts", (*outer.parts, 5)),
        lambda: outer.pairs.append([]),
        lambda: outer.pairs[-1].append(5),
        lambda: outer.names.update(c=[]),
        lambda: outer.names["c"].append(5),
        lambda: outer.inner.items.append(5),
        rebind,
        lambda: outer.inners.update({9: Inner([])}),
        lambda: outer.inners[9].items.append(5),
    ]


@given(outer=outers())
def test_a_copy_is_equal_and_of_the_same_class(outer: Outer) -> None:
    copy = outer.copy()
    assert type(copy) is Outer
    assert plain(copy) == plain(outer)
    assert copy.key() == outer.key()
    assert hash(copy.key()) == hash(outer.key())


@given(outer=outers())
def test_a_change_at_any_depth_shows_in_the_key_and_not_in_the_copy(outer: Outer) -> None:
    for change in changes(outer):
        copy, before = outer.copy(), plain(outer)
        change()
        assert plain(copy) == before
        assert copy.key() != outer.key()


@settings(max_examples=50)
@given(one=outers(), other=outers())
def test_keys_are_equal_exactly_if_the_states_are(one: Outer, other: Outer) -> None:
    assert (one.key() == other.key()) == (plain(one) == plain(other))


@settings(max_examples=50)
@given(one=outers(), other=outers(), field=st.sampled_from(Outer._MUTABLE))
def test_each_field_alone_tells_two_states_apart(one: Outer, other: Outer, field: str) -> None:
    mixed = one.copy()
    setattr(mixed, field, getattr(other, field))
    assert (mixed.key() == one.key()) == (plain(getattr(one, field)) == plain(getattr(other, field)))


def test_shared_fields_are_the_same_in_copies_and_left_out_of_keys() -> None:
    one, other = Outer(), Outer()
    assert one.copy().limits is one.limits
    other.limits = {"most": 4}
    assert one.key() == other.key()


def test_fields_of_parents_come_along() -> None:
    derived = Derived()
    derived.inner.items.append(1)
    copy = derived.copy()
    assert type(copy) is Derived
    assert copy.key() == derived.key()
    derived.more.append(1)
    assert copy.more == []
    assert copy.key() != derived.key()
    assert copy.limits is derived.limits


def test_keys_can_be_members_of_a_set() -> None:
    states = [Outer() for _ in range(3)]
    states[2].inners[1] = Inner([1])
    assert len({state.key() for state in states}) == 2


def test_a_state_without_fields_has_a_copy_and_a_key() -> None:
    assert State().copy().key() == ()


# Order


NOTHINGS: tuple[Any, ...] = (None, [], {})
items = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 2), max_size=2))


@given(one=items, data=st.data())
def test_the_order_of_a_dict_counts_where_it_is_named_and_nowhere_else(
    one: dict[str, list[int]], data: st.DataObject
) -> None:
    other = {name: one[name] for name in data.draw(st.permutations(list(one)))}
    same = list(one) == list(other)
    assert (Queue(waiting=one).key() == Queue(waiting=other).key()) == same
    assert (Longer(one).key() == Longer(other).key()) == same
    assert Queue(unordered=one).key() == Queue(unordered=other).key()
    assert hash(Queue(unordered=one).key()) == hash(Queue(unordered=other).key())


@given(one=items, other=items)
def test_dicts_with_and_without_order_tell_contents_apart(
    one: dict[str, list[int]], other: dict[str, list[int]]
) -> None:
    assert (Queue(unordered=one).key() == Queue(unordered=other).key()) == (one == other)
    assert (Queue(waiting=one).key() == Queue(waiting=other).key()) == (list(one.items()) == list(other.items()))


def test_order_counts_in_the_named_dict_and_not_in_those_within_it() -> None:
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert Queue(waiting={"x": one}).key() == Queue(waiting={"x": other}).key()
    assert Queue(unordered={"x": Queue(waiting=one)}).key() != Queue(unordered={"x": Queue(waiting=other)}).key()


def test_a_copy_keeps_the_order() -> None:
    queue = Queue(waiting={"b": [1], "a": [2]})
    copy = queue.copy()
    assert list(copy.waiting) == ["b", "a"]
    assert copy.key() == queue.key()
    copy.waiting["b"] = copy.waiting.pop("b")  # what is first becomes last
    assert copy.key() != queue.key()


def test_nothing_an_empty_list_and_an_empty_dict_are_three_things() -> None:
    keys = set()
    for value in NOTHINGS:
        queue = Queue()
        queue.maybe = value
        keys.add(queue.key())
    assert len(keys) == 3


def test_nothing_an_empty_list_and_an_empty_dict_differ_within_a_field_too() -> None:
    keys = {Queue(unordered={"x": value}).key() for value in NOTHINGS}
    assert len(keys) == 3


@pytest.mark.parametrize("role", [Prefill, Decode])
def test_legs_of_a_worker_are_served_in_order_so_that_the_order_shows_in_its_key(role: type[Prefill | Decode]) -> None:
    config = Config(Layout(4, (FULL, ROW)), {FULL: 4, ROW: 4}, 100)
    one = role(Address("here", 0), config, 1, 1)
    request, peer = Request("r", "s", (1, 2, 3)), Address("there", 0)
    other = one.copy()
    for ref in ("a", "b"):
        leg_of(one, ref, request, peer)
    for ref in ("b", "a"):
        leg_of(other, ref, request, peer)
    assert one.key() != other.key()
    other.legs["b"] = other.legs.pop("b")  # type: ignore[assignment]
    assert one.key() == other.key()


def leg_of(worker: Prefill | Decode, ref: str, request: Request, peer: Address) -> None:
    if isinstance(worker, Prefill):
        worker.legs[ref] = PrefillLeg(ref, request, peer, QUEUED)
    else:
        worker.legs[ref] = DecodeLeg(ref, request, peer, QUEUED)
