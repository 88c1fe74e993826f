"""A cached page serves only the prefix it was made for, and a bad one takes along what was derived from it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.fence.mechanisms import ALL, Mechanisms
from kvfence.fence.prefix import ROOT, PrefixIndex
from kvfence.fence.statement import Request
from kvfence.fence.units import FULL, LATENT

PAGE = 2
REQUEST = Request("r", "tenant", (1, 2, 3, 4, 5, 6, 7))
SWITCHES = [ALL, ALL.without("clean-cache"), ALL.without("scope-salt"), ALL.without("clean-cache", "scope-salt")]

requests = st.builds(
    Request,
    id=st.sampled_from(["a", "b"]),
    scope=st.sampled_from(["s", "t"]),
    tokens=st.lists(st.integers(0, 1), max_size=9).map(tuple),
    adapter=st.sampled_from(["", "lora"]),
    content=st.sampled_from(["", "image"]),
    steps=st.integers(1, 2),
)
kinds = st.sampled_from([FULL, LATENT])
filled = st.lists(st.tuples(requests, kinds), max_size=8)
any_switches = pytest.mark.parametrize("on", SWITCHES, ids=lambda on: "+".join(on.off) or "all")


def fill(index: PrefixIndex, request: Request, kind: str = FULL, first: int = 0) -> list[int]:
    """Enter every whole page of a request, and give those that were not there."""
    return list(index.insert(request, kind, range(first, first + request.length // PAGE)))


def compared(on: Mechanisms, request: Request) -> tuple[str, ...]:
    """Give what beside kind and tokens must be equal."""
    clean = (request.content, request.adapter) if on.clean_cache else ()
    return (*clean, request.scope) if on.scope_salt else clean


# Hits


@any_switches
@settings(max_examples=40)
@given(entered=filled, asked=requests, kind=kinds)
def test_hits_are_the_pages_of_the_longest_cached_prefix(
    on: Mechanisms, entered: list[tuple[Request, str]], asked: Request, kind: str
) -> None:
    index = PrefixIndex(on, PAGE)
    cached: dict[object, int] = {}
    for number, (request, of) in enumerate(entered):
        fill(index, request, of, 100 * number)
        for page, end in enumerate(range(PAGE, request.length + 1, PAGE), 100 * number):
            cached.setdefault((of, request.tokens[:end], compared(on, request)), page)
    expected: list[int] = []
    for end in range(PAGE, asked.length, PAGE):
        prefix = kind, asked.tokens[:end], compared(on, asked)
        if prefix not in cached:
            break
        expected.append(cached[prefix])
    assert list(index.match(asked, kind)) == expected


@pytest.mark.parametrize(("length", "hits"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3)])
def test_at_least_the_last_token_is_left_to_compute(length: int, hits: int) -> None:
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST)
    asked = REQUEST._replace(tokens=REQUEST.tokens[:length])
    assert index.match(asked, FULL) == tuple(range(hits))


@pytest.mark.parametrize(
    ("other", "ignored_without"),
    [
        (REQUEST._replace(scope="another"), "scope-salt"),
        (REQUEST._replace(adapter="lora"), "clean-cache"),
        (REQUEST._replace(content="image"), "clean-cache"),
    ],
)
def test_another_scope_adapter_or_content_is_a_hit_only_with_its_switch_off(
    other: Request, ignored_without: str
) -> None:
    for on, (cached, asked) in product(SWITCHES, ((REQUEST, other), (other, REQUEST))):
        index = PrefixIndex(on, PAGE)
        fill(index, cached)
        assert bool(index.match(asked, FULL)) == (ignored_without in on.off)


@any_switches
def test_other_tokens_and_other_kinds_are_never_a_hit(on: Mechanisms) -> None:
    index = PrefixIndex(on, PAGE)
    fill(index, REQUEST)
    assert index.match(REQUEST, LATENT) == ()
    for at in range(6):
        tokens = (*REQUEST.tokens[:at], 99, *REQUEST.tokens[at + 1 :])
        assert index.match(REQUEST._replace(tokens=tokens), FULL) == tuple(range(at // PAGE))
    assert index.match(REQUEST._replace(tokens=REQUEST.tokens[2:]), FULL) == ()


def test_another_id_or_answer_length_is_a_hit() -> None:
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST)
    assert index.match(REQUEST._replace(id="other", steps=9), FULL) == (0, 1, 2)


def test_a_page_behind_a_gap_is_no_hit_and_does_not_stay() -> None:
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST)
    assert set(index.remove(1)) == {1, 2}
    assert index.match(REQUEST, FULL) == (0,)
    assert index.oldest() == (0,)


# Entering, and leaving


def test_a_prefix_has_one_page() -> None:
    index = PrefixIndex(ALL, PAGE)
    assert index.insert(REQUEST, FULL, [5]) == (5,)
    assert index.insert(REQUEST._replace(id="again"), FULL, [6]) == ()
    assert index.oldest() == (5,)
    assert index.insert(REQUEST, LATENT, [7]) == (7,)
    assert index.match(REQUEST, FULL) == (5,)


@pytest.mark.parametrize("of", [FULL, LATENT])
def test_a_page_is_entered_only_behind_the_page_before_it(of: str) -> None:
    index = PrefixIndex(ALL, PAGE)
    assert index.insert(REQUEST, of, []) == ()
    assert index.insert(REQUEST, of, [None, 1, 2]) == ()
    assert index.insert(REQUEST, of, [0, None, 2]) == (0,)
    assert index.insert(REQUEST, FULL if of == LATENT else LATENT, [None, 1, 2]) == ()
    assert index.insert(REQUEST, of, [None, 1, None]) == (1,)
    assert index.insert(REQUEST, of, [7, 8, 2]) == (2,)
    assert index.match(REQUEST, of) == (0, 1, 2)


@pytest.mark.parametrize("before", [{"scope": "another"}, {"adapter": "lora"}, {"content": "image"}], ids=str)
def test_the_page_before_it_is_one_that_would_be_a_hit(before: dict[str, str]) -> None:
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST._replace(**before))  # type: ignore[arg-type]
    assert index.insert(REQUEST, FULL, [None, 7, 8]) == ()


def test_pages_are_given_least_recently_used_first() -> None:
    index = PrefixIndex(ALL, PAGE)
    other = REQUEST._replace(scope="other")
    fill(index, REQUEST, first=0)
    fill(index, other, first=10)
    assert set(index.oldest()[:3]) == {0, 1, 2}
    assert set(index.oldest()[3:]) == {10, 11, 12}
    index.match(other, FULL)
    index.match(REQUEST, FULL)
    assert index.oldest() == (12, 11, 10, 2, 1, 0)
    index.match(other._replace(tokens=REQUEST.tokens[:5]), FULL)
    assert index.oldest() == (12, 2, 1, 0, 11, 10)
    index.match(REQUEST._replace(scope="nobody"), FULL)
    assert index.oldest() == (12, 2, 1, 0, 11, 10)


def orphans(index: PrefixIndex) -> list[int]:
    """Give the pages that no request can hit, as the page before them is not there, and those older than what is."""
    age = {page: number for number, page in enumerate(index.oldest())}
    before = {page: prefix.before for prefix, page in index.pages.items()}
    return [page for page, root in before.items() if root != ROOT and not age.get(root, -1) > age[page]]


def test_a_prefix_that_was_hit_is_given_up_from_its_end() -> None:
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST)
    for left in ((0, 1, 2), (0, 1), (0,), ()):
        assert index.copy().match(REQUEST, FULL) == left
        index.match(REQUEST, FULL)
        for page in index.oldest()[:1]:
            index.remove(page)


def test_a_page_that_goes_on_from_cached_ones_does_not_outlive_them() -> None:
    """As a worker does it: hit what is there, compute the rest, and enter it all."""
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST._replace(tokens=REQUEST.tokens[:2]))
    assert index.match(REQUEST, FULL) == (0,)
    assert fill(index, REQUEST, first=0) == [1, 2]
    for left in ((0, 1), (0,), ()):
        index.remove(index.oldest()[0])
        assert index.copy().match(REQUEST, FULL) == left


steps = st.lists(
    st.one_of(
        st.tuples(st.just("match"), requests, kinds),
        st.tuples(st.just("insert"), requests, kinds),
        st.tuples(st.just("evict"), requests, kinds),
    ),
    max_size=25,
)


@given(steps=steps)
def test_giving_up_the_oldest_takes_one_page_and_leaves_none_that_nothing_can_hit(
    steps: list[tuple[str, Request, str]],
) -> None:
    index = PrefixIndex(ALL, PAGE)
    for number, (step, request, kind) in enumerate(steps):
        if step == "match":
            index.match(request, kind)
        elif step == "insert":
            fill(index, request, kind, 100 * number)
        elif index.pages:
            oldest = index.oldest()[0]
            assert index.remove(oldest) == (oldest,)
        assert orphans(index) == []
    for page in index.oldest():
        assert index.remove(page) == (page,)
        assert orphans(index) == []


@settings(max_examples=50)
@given(entered=filled, data=st.data())
def test_removing_takes_a_page_out_with_all_that_goes_on_from_it_and_keeps_the_order(
    entered: list[tuple[Request, str]], data: st.DataObject
) -> None:
    index = PrefixIndex(ALL, PAGE)
    made: dict[int, tuple[Request, str, int]] = {}
    for number, (request, kind) in enumerate(entered):
        for page in fill(index, request, kind, 100 * number):
            made[page] = request, kind, PAGE * (page % 100 + 1)
    before = index.oldest()
    page = data.draw(st.sampled_from([*before, 999]))
    gone = set()
    if page in made:
        asked, of, end = made[page]
        ends = {other: (request, stop) for other, (request, kind, stop) in made.items() if kind == of}
        gone = derived(ALL, ends, asked, end)
    removed = index.remove(page)
    assert len(removed) == len(gone)
    assert set(removed) == gone
    assert index.oldest() == tuple(one for one in before if one not in gone)
    assert index.remove(page) == ()


# Bad pages


def derived(on: Mechanisms, made: dict[int, tuple[Request, int]], bad: Request, end: int) -> set[int]:
    """Give the pages, each with what it was made for and up to where, that go on from the first tokens of a request."""
    return {
        page
        for page, (request, stop) in made.items()
        if stop >= end and request.tokens[:end] == bad.tokens[:end] and compared(on, request) == compared(on, bad)
    }


@any_switches
@settings(max_examples=60)
@given(entered=filled, other=requests, data=st.data())
def test_a_bad_page_drops_what_was_derived_from_it_and_nothing_else(
    on: Mechanisms, entered: list[tuple[Request, str]], other: Request, data: st.DataObject
) -> None:
    """Whether the page that is bad is in the index, was given up, was there already, or is the partial last one.

    Of a page that is not whole nothing is derived: no other request goes on from it.
    """
    index = PrefixIndex(on, PAGE)
    made: dict[int, tuple[Request, int]] = {}
    for number, (request, kind) in enumerate(entered):
        for page in fill(index, request, kind, 100 * number):
            made[page] = request, PAGE * (page % 100 + 1)
    for page in data.draw(st.sets(st.sampled_from(sorted(made)), max_size=2) if made else st.just(set())):
        for gone in index.remove(page):
            del made[gone]
    bad = data.draw(st.sampled_from([*(request for request, _ in entered), other]))
    end = data.draw(st.integers(1, max(1, bad.length)))
    whole = end <= bad.length and end % PAGE == 0
    before, lost = index.oldest(), derived(on, made, bad, end) if whole else set()
    dropped = index.taint(bad, end)
    assert len(dropped) == len(set(dropped))
    assert set(dropped) == lost
    assert index.oldest() == tuple(page for page in before if page not in lost)
    assert orphans(index) == []
    assert index.taint(bad, end) == ()


def test_pages_before_a_bad_one_stay() -> None:
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST)
    assert set(index.taint(REQUEST, 4)) == {1, 2}
    assert index.match(REQUEST, FULL) == (0,)


def test_other_branches_stay_and_other_kinds_of_the_same_tokens_go() -> None:
    index = PrefixIndex(ALL, PAGE)
    branch = REQUEST._replace(tokens=(1, 2, 9, 9, 9))
    fill(index, REQUEST, first=0)
    fill(index, branch, first=10)  # shares page 0, so that only 11 is new
    fill(index, REQUEST, LATENT, first=20)
    fill(index, REQUEST._replace(scope="other"), first=30)
    fill(index, REQUEST._replace(adapter="lora"), first=40)
    fill(index, REQUEST._replace(content="image"), first=50)
    others = {page for first in (30, 40, 50) for page in range(first, first + 3)}
    assert set(index.taint(REQUEST, 4)) == {1, 2, 21, 22}
    assert set(index.oldest()) == {0, 11, 20} | others
    assert set(index.taint(REQUEST, 2)) == {0, 11, 20}
    assert set(index.oldest()) == others


def test_a_bad_page_whose_prefix_had_a_page_already_takes_along_what_goes_on_from_it() -> None:
    """Two requests computed the same prefix; the second's page is bad, is not in the index, and was built upon."""
    index = PrefixIndex(ALL, PAGE)
    assert index.insert(REQUEST, FULL, [5]) == (5,)
    again = REQUEST._replace(id="again")
    assert index.insert(again, FULL, [6, 7]) == (7,)
    assert set(index.taint(again, 2)) == {5, 7}
    assert index.oldest() == ()


def test_a_bad_page_that_was_given_up_takes_along_the_pages_of_other_kinds() -> None:
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST)
    fill(index, REQUEST, LATENT, first=20)
    assert set(index.remove(0)) == {0, 1, 2}
    assert set(index.taint(REQUEST, 2)) == {20, 21, 22}
    assert index.oldest() == ()


def test_a_bad_last_page_that_is_not_whole_takes_nothing_along_for_nobody_goes_on_from_it() -> None:
    index = PrefixIndex(ALL, PAGE)
    longer = REQUEST._replace(tokens=(*REQUEST.tokens, 8, 9))
    fill(index, longer)
    assert index.taint(REQUEST, 7) == ()
    assert set(index.taint(REQUEST, 6)) == {2, 3}


@pytest.mark.parametrize("other", [{"scope": "another"}, {"adapter": "lora"}, {"content": "image"}], ids=str)
def test_a_bad_page_takes_along_another_scope_adapter_or_content_only_where_that_is_a_hit(
    other: dict[str, str],
) -> None:
    for on in SWITCHES:
        index = PrefixIndex(on, PAGE)
        fill(index, REQUEST)
        asked = REQUEST._replace(**other)  # type: ignore[arg-type]
        hits = bool(index.copy().match(asked, FULL))
        assert set(index.taint(asked, 2)) == ({0, 1, 2} if hits else set())


# Copies


def test_a_copy_changes_alone() -> None:
    index = PrefixIndex(ALL, PAGE)
    fill(index, REQUEST)
    copy = index.copy()
    assert copy.key() == index.key()
    copy.remove(0)
    assert copy.key() != index.key()
    assert index.match(REQUEST, FULL) == (0, 1, 2)


def test_which_page_was_used_last_shows_in_the_key() -> None:
    """Two indexes with the same pages give up different ones."""
    one = PrefixIndex(ALL, PAGE)
    other = REQUEST._replace(scope="other")
    fill(one, REQUEST, first=0)
    fill(one, other, first=10)
    two = one.copy()
    for index in (one, two):
        index.match(REQUEST, FULL)
        index.match(other, FULL)
    assert one.key() == two.key()
    two.match(REQUEST, FULL)
    assert one.key() != two.key()
    one.match(REQUEST, FULL)
    assert one.key() == two.key()
