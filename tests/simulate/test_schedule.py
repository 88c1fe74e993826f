"""Schedules: names, reading back, shrinking and telling."""

from __future__ import annotations

import pytest

from kvfence.errors import InputError
from kvfence.fence import ALL
from kvfence.simulate.document import ScheduleDocument, read_schedule, schedule_of
from kvfence.simulate.faults import choices
from kvfence.simulate.scenarios import SCENARIOS, drawn, scenario
from kvfence.simulate.schedule import Choice, due, enabled, find, named, read, replay, take
from kvfence.simulate.search import search_one
from kvfence.simulate.shrink import shrink
from kvfence.simulate.story import tell
from kvfence.simulate.walk import walk
from kvfence.simulate.world import World


@pytest.mark.parametrize("seed", range(0, 120, 3))
def test_the_choices_of_a_world_have_names_of_their_own(seed: int) -> None:
    record: list[Choice] = []
    walk(drawn(seed), seed, record)
    world = World(drawn(seed))
    for choice in record:
        names = [named(offered) for offered in enabled(world)]
        assert len(set(names)) == len(names)
        assert find(world, named(choice)) == choice
        take(world, choice)


def test_a_schedule_is_read_back_by_its_names() -> None:
    record: list[Choice] = []
    world, _ = walk(drawn(11), 11, record)
    again, taken, unknown = read(drawn(11), [named(choice) for choice in record])
    assert unknown is None
    assert taken == record
    assert again.key() == world.key()


def test_a_name_that_is_not_offered_is_given_back() -> None:
    world, taken, unknown = read(drawn(11), ["fence D0 1"])
    assert (taken, unknown) == ([], "fence D0 1")
    assert world.breach is None


def test_what_is_not_offered_changes_nothing() -> None:
    world = World(SCENARIOS["one-request"](ALL))
    before = world.key()
    for choice in (
        ("task", ("copy",)),
        ("late", ("land",)),
        ("timer", None, "h"),
        ("resume",),
        ("fault", "drop", "nowhere", "nobody"),
    ):
        assert not take(world, choice)
    world.keys.clear()
    assert world.key() == before


def test_shrinking_leaves_nothing_that_can_be_left_out() -> None:
    broken = SCENARIOS["reuse"](ALL.without("source-hold"))
    seed = next(seed for seed in range(1000) if walk(broken, seed)[0].breach is not None)
    record: list[Choice] = []
    world, _ = walk(broken, seed, record)
    assert world.breach is not None
    short = shrink(broken, record, world.breach)
    assert len(short) < len(record)
    again, taken = replay(broken, short)
    assert taken == short
    assert again.breach is not None
    assert again.breach.property == "P1"
    for index in range(len(short)):
        less, _ = replay(broken, [*short[:index], *short[index + 1 :]])
        assert less.breach is None or less.breach.property != "P1" or less.breach.via != "wire"


def test_a_story_says_who_did_what_with_whose_bytes() -> None:
    found = search_one(
        SCENARIOS["over-length"](ALL.without("admission", "binding", "coverage", "canary", "scrub")), 10, 200
    )
    assert found.finding is not None
    story = tell(found.finding.scenario, found.finding.schedule)
    assert any(line.startswith("B (tenant B, 3 tokens) comes to") for line in story)
    assert any("P0 computes B's tokens 0-0" in line for line in story)  # the stub
    assert any(line.startswith("D0 answers B from") and "A's full" in line for line in story)
    assert story[-1].startswith("P1 broken: B read A's full")


def test_a_long_story_is_cut_in_the_middle() -> None:
    record: list[Choice] = []
    walk(drawn(3), 3, record)
    walk(drawn(7), 7, record := [])
    story = tell(drawn(7), record)
    if len(record) > 100:
        assert len(story) <= 25
        assert any(line.startswith("... ") for line in story)


DOCUMENT = ScheduleDocument("over-length", ["admission"], 0.0, orderly=False, steps=["submit 0 P0"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no schedule"),
        ("{", "holds no schedule"),
        ("kvfence.schedule/1", "holds no schedule"),
        ('{"schema":"kvfence.schedule/1"}', "cannot be read"),
        (
            '{"schema":"kvfence.schedule/1","scenario":"x","without":[],"release_after":0,"orderly":false,"steps":[]}',
            "no sc",
        ),
        (
            '{"schema":"kvfence.schedule/1","scenario":"reuse","without":["x"],"release_after":0,"orderly":false,"steps":[]}',
            "no mechanism",
        ),
        (
            '{"schema":"kvfence.schedule/1","scenario":"reuse","without":[],"release_after":0,"orderly":0,"steps":[1]}',
            "cannot be read",
        ),
        ("[" * 100_000 + '"kvfence.schedule/1"', "holds no schedule"),
    ],
)
def test_a_file_that_holds_no_schedule_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read_schedule(text, "file")
    assert "file" in str(caught.value)


def test_a_schedule_is_found_in_a_report_and_in_what_was_printed() -> None:
    line = '{"schema":"kvfence.schedule/1","scenario":"over-length","without":["admission"],"release_after":0.0,'
    line += '"orderly":false,"steps":["submit 0 P0"]}'
    assert read_schedule(f"story\n{line}\nmore", "file") == DOCUMENT
    assert read_schedule(f'{{"breach": {{"schedule": {line}}}}}', "file") == DOCUMENT


def test_a_schedule_names_its_scenario_and_mechanisms() -> None:
    on = ALL.without("release-on-proof", release_after=30.0)
    made = schedule_of(scenario("random:5", on), [("resume",)])
    assert made == ScheduleDocument("random:5", ["release-on-proof"], 30.0, orderly=False, steps=["resume"])


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("two-ranks", "rank-agreement"),
        ("refused", "cancel-both"),
        ("reuse", "source-hold"),
        ("many-pages", "bounded-batches"),
    ],
)
def test_a_shrunk_breach_is_read_back_by_its_names(name: str, off: str) -> None:
    broken = SCENARIOS[name](ALL.without(off))
    read_back = 0
    for seed in range(400):
        record: list[Choice] = []
        world, _ = walk(broken, seed, record)
        if world.breach is None:
            continue
        schedule = shrink(broken, record, world.breach)
        again, taken, unknown = read(broken, [named(choice) for choice in schedule])
        assert unknown is None
        assert taken == schedule
        assert again.breach is not None
        assert (again.breach.property, again.breach.via) == (world.breach.property, world.breach.via)
        read_back += 1
        if read_back == 4:
            return
    assert read_back


def test_what_is_found_at_the_end_is_found_in_a_replay() -> None:
    on = ALL.without("rank-agreement", "scrub")
    ends = 0
    for seed in range(190, 1200):
        record: list[Choice] = []
        world, _ = walk(drawn(seed, on), seed, record)
        if world.breach is not None and world.breach.property == "P5" and world.breach.via in {"time", "page"}:
            again, _, unknown = read(drawn(seed, on), [named(choice) for choice in record])
            assert unknown is None
            assert again.breach is not None
            assert again.breach.property == "P5"
            ends += 1
            if ends == 2:
                return
    pytest.fail("no request was left without an end")


def test_while_a_worker_is_stopped_its_timers_stand_still_and_few_others_run_out() -> None:
    world = World(SCENARIOS["one-request"](ALL))
    for choice in enabled(world)[:2]:
        take(world, choice)
    assert take(world, ("fault", "stop", "P0"))
    world.left = 99
    waited = 0
    while (due_now := due(world)) and waited < 50:
        assert all(address.worker != "P0" for address, _ in due_now)
        take(world, ("timer", *due_now[0]))
        waited += 1
        while world.tasks:
            world.run(0)
    assert waited <= 3
    assert world.patience >= 0
    assert not any(way[0] == "clock" and way[1].worker == "P0" for way in choices(world))
