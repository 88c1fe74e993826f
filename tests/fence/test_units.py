"""A prompt needs the units that decode reads, no more and no fewer, and a unit is ready when its last token is."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.fence.units import FULL, KINDS, LATENT, PAGED, RECURRENT, ROW, WINDOW, Layout, Unit

SUBSETS = [kinds for size in range(len(KINDS) + 1) for kinds in combinations(KINDS, size)]
layouts = st.builds(
    Layout, st.integers(1, 8), st.sampled_from(SUBSETS), st.integers(1, 20), st.integers(1, 4), st.just("bf16")
)
lengths = st.integers(0, 60)
FOUR = Layout(4, KINDS, window_tokens=6)


def positions(layout: Layout, kind: str, length: int) -> range:
    """Give the positions whose keys and values of a paged kind the step after the prompt attends to."""
    return range(max(0, length - layout.window_tokens) if kind == WINDOW else 0, length)


def needed(layout: Layout, length: int) -> list[Unit]:
    """Give the units that hold any of those positions, by looking at each position."""
    units = []
    for kind in layout.kinds:
        if kind in PAGED:
            pages = {position // layout.page_tokens for position in positions(layout, kind, length)}
            units += [Unit(kind, page) for page in sorted(pages)]
        else:
            units.append(Unit(kind, 0))
    return units


# What is required


@given(layout=layouts, length=lengths)
def test_required_units_are_those_that_hold_a_position_which_is_read(layout: Layout, length: int) -> None:
    assert list(layout.required(length)) == needed(layout, length)


@pytest.mark.parametrize(("length", "pages"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (7, 2), (8, 2), (9, 3)])
@pytest.mark.parametrize("kind", [FULL, LATENT])
def test_every_page_up_to_the_last_token_is_required(kind: str, length: int, pages: int) -> None:
    assert Layout(4, (kind,)).required(length) == tuple(Unit(kind, index) for index in range(pages))


@pytest.mark.parametrize(
    ("length", "pages"),
    [
        (0, []),
        (1, [0]),
        (5, [0, 1]),  # shorter than the window
        (6, [0, 1]),  # the window starts at 0
        (9, [0, 1, 2]),  # at 3, the last token of page 0
        (10, [1, 2]),  # at 4, the first of page 1
        (12, [1, 2]),
        (13, [1, 2, 3]),  # at 7, the last of page 1
        (14, [2, 3]),
    ],
)
def test_a_window_requires_the_pages_that_hold_any_of_its_last_tokens(length: int, pages: list[int]) -> None:
    assert Layout(4, (WINDOW,), window_tokens=6).required(length) == tuple(Unit(WINDOW, index) for index in pages)


@given(length=lengths)
def test_a_state_and_the_row_are_required_once_at_any_length(length: int) -> None:
    assert Layout(4, (RECURRENT, ROW)).required(length) == (Unit(RECURRENT, 0), Unit(ROW, 0))


def test_units_come_in_the_order_of_the_kinds() -> None:
    assert Layout(4, (ROW, LATENT, FULL)).required(5) == (
        Unit(ROW, 0),
        Unit(LATENT, 0),
        Unit(LATENT, 1),
        Unit(FULL, 0),
        Unit(FULL, 1),
    )


@given(layout=layouts, length=lengths)
def test_no_unit_is_required_twice(layout: Layout, length: int) -> None:
    units = layout.required(length)
    assert len(set(units)) == len(units)


# What is reserved


@given(layout=layouts, length=lengths, steps=st.integers(0, 40))
def test_every_unit_that_is_read_or_filled_on_the_way_is_reserved_and_none_beside(
    layout: Layout, length: int, steps: int
) -> None:
    """A page that a step fills is one that the next step reads."""
    on_the_way = {unit for more in range(steps + 1) for unit in needed(layout, length + more)}
    reserved = layout.reserved(length, steps)
    assert len(reserved) == len(set(reserved))
    assert set(reserved) == on_the_way


@given(layout=layouts, length=lengths)
def test_without_steps_what_is_read_is_reserved(layout: Layout, length: int) -> None:
    assert sorted(layout.reserved(length, 0)) == sorted(layout.required(length))


@given(layout=layouts, length=lengths, steps=st.integers(0, 9))
def test_what_the_prompt_needs_is_reserved_whatever_the_answer_needs(layout: Layout, length: int, steps: int) -> None:
    assert set(layout.required(length)) <= set(layout.reserved(length, steps))


@pytest.mark.parametrize(
    ("length", "steps", "pages"),
    [
        (3, 1, [0]),
        (4, 1, [0, 1]),
        (8, 0, [0, 1]),
        (8, 5, [0, 1, 2, 3]),
        (4, 12, [0, 1, 2, 3]),  # page 1 is filled on the way and left behind at the end
        (4, 16, [0, 1, 2, 3, 4]),
    ],
)
def test_pages_of_a_window_are_reserved_for_prompt_and_answer(length: int, steps: int, pages: list[int]) -> None:
    layout = Layout(4, (WINDOW,), window_tokens=6)
    assert layout.reserved(length, steps) == tuple(Unit(WINDOW, index) for index in pages)


# What is ready


@given(layout=layouts, length=lengths, computed=st.integers(0, 70))
def test_a_page_is_ready_when_its_last_token_is_computed(layout: Layout, length: int, computed: int) -> None:
    units = layout.required(length)
    expected = []
    for unit in units:
        held = range(length)
        if unit.kind in PAGED:
            held = range(unit.index * layout.page_tokens, min(length, (unit.index + 1) * layout.page_tokens))
        if all(position < computed for position in held):
            expected.append(unit)
    assert list(layout.ready(units, computed, length)) == expected


@pytest.mark.parametrize(("computed", "pages"), [(0, 0), (3, 0), (4, 1), (5, 1), (7, 1), (8, 2), (9, 2), (10, 3)])
def test_the_last_page_is_ready_with_the_whole_prompt_and_not_before(computed: int, pages: int) -> None:
    layout = Layout(4, (FULL, RECURRENT, ROW))
    ready = layout.ready(layout.required(10), computed, 10)
    assert [unit for unit in ready if unit.kind == FULL] == [Unit(FULL, index) for index in range(pages)]


@pytest.mark.parametrize("computed", [0, 8, 9])
def test_a_state_and_the_row_are_not_ready_one_token_before_the_end(computed: int) -> None:
    units = (Unit(RECURRENT, 0), Unit(ROW, 0))
    assert FOUR.ready(units, computed, 10) == ()
    assert FOUR.ready(units, 10, 10) == units


@given(layout=layouts, length=lengths, data=st.data())
def test_only_units_that_were_asked_for_are_ready_and_none_is_taken_back(
    layout: Layout, length: int, data: st.DataObject
) -> None:
    asked = tuple(unit for unit in layout.required(length) if data.draw(st.booleans()))
    before: set[Unit] = set()
    for computed in range(length + 2):
        ready = layout.ready(asked, computed, length)
        assert set(asked) >= set(ready) >= before
        before = set(ready)
    assert before == set(asked)


# What is valid


@given(layout=layouts, length=lengths, index=st.integers(0, 70))
def test_a_page_holds_the_tokens_of_the_prompt_that_lie_in_it(layout: Layout, length: int, index: int) -> None:
    held = [position for position in range(length) if position // layout.page_tokens == index]
    for kind in PAGED:
        assert layout.valid(Unit(kind, index), length) == len(held)


@pytest.mark.parametrize(("length", "tokens"), [(0, 0), (4, 0), (5, 1), (7, 3), (8, 4), (9, 4)])
def test_tokens_of_the_second_page(length: int, tokens: int) -> None:
    assert FOUR.valid(Unit(FULL, 1), length) == tokens


@given(length=lengths)
def test_a_state_and_the_row_hold_all_tokens(length: int) -> None:
    assert FOUR.valid(Unit(RECURRENT, 0), length) == FOUR.valid(Unit(ROW, 0), length) == length


@given(layout=layouts, length=lengths)
def test_no_required_page_is_empty_and_full_pages_hold_the_prompt(layout: Layout, length: int) -> None:
    units = [unit for unit in layout.required(length) if unit.kind in PAGED]
    assert all(layout.valid(unit, length) > 0 for unit in units)
    for kind in {FULL, LATENT} & set(layout.kinds):
        assert sum(layout.valid(unit, length) for unit in units if unit.kind == kind) == length


# What can be shared, and with whom


@pytest.mark.parametrize("kinds", SUBSETS)
def test_a_prefix_is_shared_only_if_every_kind_but_the_row_keeps_all_tokens(kinds: tuple[str, ...]) -> None:
    assert Layout(4, kinds, window_tokens=6).shareable() == (WINDOW not in kinds and RECURRENT not in kinds)


@given(layout=layouts)
def test_equal_layouts_have_all_units_in_common(layout: Layout) -> None:
    assert layout.common(layout._replace())


@given(one=layouts, other=layouts)
def test_having_units_in_common_is_mutual(one: Layout, other: Layout) -> None:
    assert one.common(other) == other.common(one)


def test_pages_of_latents_are_common_to_any_two_widths() -> None:
    layout = Layout(64, (LATENT, ROW), head_shards=8)
    assert layout.common(layout._replace(head_shards=1))
    assert layout.common(layout._replace(head_shards=16))


@pytest.mark.parametrize("kind", [FULL, WINDOW, RECURRENT])
def test_what_is_split_by_head_is_not_common_to_two_widths(kind: str) -> None:
    for kinds in ((kind, ROW), (kind, LATENT, ROW)):
        layout = Layout(64, kinds, window_tokens=128, head_shards=8)
        assert not layout.common(layout._replace(head_shards=4))


@pytest.mark.parametrize("kinds", [(LATENT, ROW), (FULL, ROW)])
def test_layouts_that_differ_in_more_than_width_have_nothing_in_common(kinds: tuple[str, ...]) -> None:
    layout = Layout(64, kinds, head_shards=8)
    for other in (
        layout._replace(page_tokens=32),
        layout._replace(dtype="fp8"),
        layout._replace(kinds=(*kinds, RECURRENT)),
        layout._replace(kinds=(ROW,)),
    ):
        assert not layout.common(other)
        assert not layout.common(other._replace(head_shards=1))


def test_there_is_no_window_and_one_shard_unless_given() -> None:
    assert Layout(4, (FULL,)) == Layout(4, (FULL,), window_tokens=0, head_shards=1, dtype="bf16")


def test_paged_kinds_are_those_that_are_counted_in_pages() -> None:
    assert len(set(KINDS)) == len(KINDS) == 5
    assert set(KINDS) - PAGED == {RECURRENT, ROW}
