"""What pages hold: each kind of event, in and out of order, and which reads are of somebody else's bytes."""

from __future__ import annotations

from kvfence.drill.document import Event
from kvfence.drill.html import pagemap
from kvfence.drill.html.pagemap import NEVER, POISON, UNKNOWN, Cell, PageMap, Space, frames, ranges

TENANTS = {"a": "A", "b": "B", "c": "C"}


def replay(*events: tuple[float, str, str, int, str], tenants: dict[str, str] | None = None) -> PageMap:
    return frames([Event(*event) for event in events], TENANTS if tenants is None else tenants)


def cell(made: PageMap, worker: str, page: int, *, landing: bool = False, index: int | None = None) -> Cell:
    for space, part in made.split(made.at(len(made.frames) - 1 if index is None else index)):
        if (space.worker, space.landing) == (worker, landing):
            return dict(part)[page]
    raise AssertionError(f"no {worker}")


def test_nothing_seen_is_no_map() -> None:
    made = replay()
    assert made == PageMap((), (), ())
    assert made.at(-1) == []
    assert made.leaking() is None


def test_a_state_leaves_what_a_page_holds() -> None:
    made = replay(
        (0.0, "decode-0", "scrubbed", 3, ""),
        (0.1, "decode-0", "state", 3, "leased"),
        (0.2, "decode-0", "state", 3, "free"),
    )
    assert [cell(made, "decode-0", 3, index=index) for index in (-1, 0, 1, 2)] == [
        Cell(NEVER, "free"),
        Cell(POISON, "free"),
        Cell(POISON, "leased"),
        Cell(POISON, "free"),
    ]
    assert [frame.said for frame in made.frames] == [
        ("decode-0 has poisoned page 3",),
        ("page 3 of decode-0 is leased",),
        ("page 3 of decode-0 is free",),
    ]


def test_computed_pages_are_of_the_handoffs_tenant() -> None:
    made = replay((0.0, "prefill-0", "computed", 0, "a"), (0.0, "prefill-0", "computed", 1, "a"))
    assert cell(made, "prefill-0", 1) == Cell("A", "free")
    assert made.frames[0].said == ("prefill-0 has computed pages 0\N{EN DASH}1 for A",)


def test_without_an_arena_a_write_lands_in_the_page_of_decode() -> None:
    made = replay((0.0, "decode-0", "state", 5, "landing"), (0.1, "prefill-1", "landed", 5, "b"))
    assert made.spaces == (Space("decode-0", landing=False, pages=(5,)),)
    assert cell(made, "decode-0", 5) == Cell("B", "landing")
    assert made.frames[-1].said == ("B's bytes landed in page 5 of decode-0",)


def test_with_an_arena_it_lands_in_a_slot_and_is_copied() -> None:
    made = replay(
        (0.0, "decode-0", "state", 5, "leased"),
        (0.1, "prefill-0", "landed", 64, "b"),
        (0.2, "decode-0", "copied", 5, "64"),
        (0.3, "prefill-0", "landed", 64, "a"),
    )
    assert [space.title for space in made.spaces] == ["decode-0, landing slots", "decode-0"]
    assert cell(made, "decode-0", 5, index=1) == Cell(NEVER, "leased")
    assert cell(made, "decode-0", 5) == Cell("B", "leased")
    assert cell(made, "decode-0", 64, landing=True) == Cell("A", "")
    assert made.frames[1].said == ("B's bytes landed in slot 64 of decode-0",)
    assert made.frames[2].said == ("decode-0 has copied B's bytes to page 5",)


def test_a_refused_write_changes_nothing_and_is_said() -> None:
    made = replay(
        (0.0, "decode-0", "state", 5, "landing"), *[(0.1, "prefill-0", "refused", page, "a") for page in (5, 6)]
    )
    assert cell(made, "decode-0", 5) == Cell(NEVER, "landing")
    assert made.frames[-1].said == ("2 writes of prefill-0 were refused",)
    assert made.frames[-1].changes == {}


def test_a_read_of_ones_own_bytes_is_no_leak() -> None:
    made = replay((0.0, "prefill-0", "landed", 0, "b"), (0.1, "decode-0", "read", 0, "b"))
    assert made.leaks == ()
    assert cell(made, "decode-0", 0) == Cell("B", "free")
    assert made.frames[-1].said == ("tenant B reads page 0 of decode-0, all of them its own",)


def test_a_read_of_foreign_bytes_is_a_leak_until_they_are_overwritten() -> None:
    made = replay(
        *[(0.0, "prefill-0", "landed", page, "a") for page in (0, 1, 2)],
        (0.1, "prefill-0", "landed", 0, "b"),
        (0.2, "decode-0", "scrubbed", 4, ""),
        *[(0.3, "decode-0", "read", page, "b") for page in (0, 1, 2, 3, 4)],
        (0.4, "decode-0", "state", 1, "quarantined"),
        (0.5, "prefill-0", "landed", 2, "b"),
    )
    (leak,) = made.leaks
    assert str(leak) == (
        "At 0.300 s, pages 1\N{EN DASH}2 of decode-0 were read for tenant B and held tenant A's bytes."
    )
    assert made.leaking() == 3
    assert made.frames[3].read == "B"
    (said,) = made.frames[3].said
    assert said.startswith("tenant B reads pages 0\N{EN DASH}4 of decode-0: 1\N{EN DASH}2 hold A's bytes, 3 holds")
    assert said.endswith("3 holds what nobody was seen to write, 4 holds poison")
    assert cell(made, "decode-0", 1) == Cell("A", "quarantined", foreign=True)
    assert cell(made, "decode-0", 2) == Cell("B", "free")
    assert not cell(made, "decode-0", 0).foreign


def test_the_bytes_of_two_tenants_are_two_leaks() -> None:
    made = replay(
        (0.0, "prefill-0", "landed", 0, "a"),
        (0.0, "prefill-0", "landed", 1, "b"),
        *[(0.1, "decode-0", "read", page, "c") for page in (0, 1)],
    )
    assert [(leak.owner, leak.reader, leak.pages) for leak in made.leaks] == [("A", "C", (0,)), ("B", "C", (1,))]


def test_times_out_of_order_are_put_in_order() -> None:
    made = replay(
        (0.3, "decode-0", "read", 0, "b"), (0.2, "prefill-0", "landed", 0, "b"), (0.1, "prefill-0", "landed", 0, "a")
    )
    assert [frame.seconds for frame in made.frames] == [0.1, 0.2, 0.3]
    assert made.leaks == ()


def test_events_of_one_time_stay_in_their_order() -> None:
    made = replay(
        (0.1, "prefill-0", "landed", 0, "b"), (0.1, "prefill-0", "landed", 0, "a"), (0.1, "decode-0", "read", 0, "b")
    )
    assert len(made.leaks) == 1


def test_a_handoff_without_a_tenant_is_nobodys_and_no_leak() -> None:
    made = replay(
        (0.0, "prefill-0", "landed", 0, "z"), (0.1, "decode-0", "read", 0, "a"), (0.2, "decode-0", "read", 0, "y")
    )
    assert cell(made, "decode-0", 0) == Cell(UNKNOWN, "free")
    assert made.leaks == ()
    assert made.frames[1].said == ("tenant A reads page 0 of decode-0: 0 holds bytes of a tenant not known",)


def test_a_worker_may_serve_another_tenant_under_a_reference() -> None:
    events = (
        (0.0, "prefill-0", "computed", 0, "a"),
        (0.1, "prefill-0", "landed", 0, "a"),
        (0.2, "decode-0", "read", 0, "a"),
    )
    assert replay(*events).leaks == ()
    assert [leak.reader for leak in replay(*events, tenants={**TENANTS, "a@decode-0": "B"}).leaks] == ["B"]


def test_of_a_scope_the_tenant_is_what_follows_the_key() -> None:
    made = replay(
        (0.0, "prefill-0", "computed", 0, "r"), (0.1, "prefill-0", "computed", 1, "s"), tenants={"r": ":A", "s": "5f:"}
    )
    assert [cell(made, "prefill-0", page).owner for page in (0, 1)] == ["A", "5f:"]


def test_what_was_copied_from_a_slot_that_nobody_wrote_is_not_written() -> None:
    made = replay((0.0, "decode-0", "copied", 1, "70"), (0.1, "decode-0", "copied", 2, "?"))
    assert cell(made, "decode-0", 1) == Cell(NEVER, "free")
    assert cell(made, "decode-0", 2) == Cell(UNKNOWN, "free")


def test_a_target_is_of_the_decode_worker_that_has_it() -> None:
    made = replay(
        (0.0, "decode-0", "state", 1, "landing"),
        (0.0, "decode-1", "state", 2, "landing"),
        (0.1, "prefill-0", "landed", 2, "a"),
        (0.2, "prefill-0", "landed", 99, "b"),
    )
    assert cell(made, "decode-1", 2) == Cell("A", "landing")
    assert cell(made, "decode-0", 99, landing=True) == Cell("B", "")


def test_a_write_to_a_decode_of_which_nothing_else_was_seen() -> None:
    made = replay((0.0, "prefill-0", "landed", 7, "a"))
    assert made.spaces == (Space("decode-0", landing=True, pages=(7,)),)


def test_what_is_not_known_is_left_out() -> None:
    made = replay((0.0, "decode-0", "sneezed", 1, "a"), (0.1, "decode-0", "state", 1, "live"))
    assert len(made.frames) == 1


def test_pages_that_are_freed_and_taken_again_at_once_make_two_frames() -> None:
    made = replay(
        (0.0, "decode-0", "state", 1, "live"),
        (0.1, "decode-0", "state", 1, "free"),
        (0.1, "decode-0", "state", 1, "leased"),
    )
    assert [cell(made, "decode-0", 1, index=index).state for index in range(3)] == ["live", "free", "leased"]


def test_frames_are_few() -> None:
    steps = [
        Event(number / 10, "decode-0", "state", number % 7, ("leased", "live")[number % 2]) for number in range(2000)
    ]
    made = frames(steps, {})
    assert 10 < len(made.frames) <= pagemap.MOST_FRAMES
    assert made.at(len(made.frames) - 1)[1999 % 7].state == "live"


def test_the_frame_of_a_time() -> None:
    made = replay((0.1, "decode-0", "state", 1, "live"), (0.2, "decode-0", "state", 1, "free"))
    assert [made.index(seconds) for seconds in (0.0, 0.1, 0.15, 9.0)] == [-1, 0, 0, 1]


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([3]) == "3"
    assert ranges([2, 0, 1, 9, 9]) == "0\N{EN DASH}2, 9"
    assert ranges(range(0, 20, 2)) == "0, 2, 4, 6, 8 and 5 more"
