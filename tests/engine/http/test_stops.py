"""Stop strings: however the text is split, the same text comes out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvfence.engine.http.stops import Stops

LETTERS = st.text("ab", max_size=30)
STRINGS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def passed(parts: list[str], strings: list[str]) -> tuple[str, bool]:
    stops = Stops(strings)
    text = "".join(stops.push(part) for part in parts)
    return text + stops.finish(), stops.found


def expected(text: str, strings: list[str]) -> tuple[str, bool]:
    for end in range(len(text) + 1):
        ending = [string for string in strings if text[:end].endswith(string)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(st.lists(LETTERS, max_size=6), STRINGS)
def test_a_split_makes_no_difference(parts: list[str], strings: list[str]) -> None:
    whole = "".join(parts)
    assert passed(parts, strings) == passed([whole], strings) == passed(list(whole), strings)
    assert passed(parts, strings) == expected(whole, strings)


@given(st.lists(LETTERS, max_size=6), STRINGS)
def test_nothing_is_passed_on_that_may_begin_a_stop_string(parts: list[str], strings: list[str]) -> None:
    stops = Stops(strings)
    seen = given_out = ""
    for part in parts:
        given_out += stops.push(part)
        seen += part
        if not stops.found:
            held = seen[len(given_out) :]
            assert seen == given_out + held
            beginnings = {string[:length] for string in strings for length in range(1, len(string))}
            longest = max((len(start) for start in beginnings if seen.endswith(start)), default=0)
            assert len(held) == longest


def test_text_is_passed_on_as_soon_as_it_cannot_be_a_stop_string() -> None:
    stops = Stops(["###", "END"])
    assert [stops.push(part) for part in ("a#", "#", "b", "EN", "D tail", "more")] == ["a", "", "##b", "", "", ""]
    assert stops.found
    assert stops.finish() == ""


def test_what_is_held_back_comes_at_the_end() -> None:
    stops = Stops(["###"])
    assert stops.push("a##") == "a"
    assert stops.finish() == "##"
    assert not stops.found


def test_the_first_to_be_complete_counts_and_of_those_the_longest() -> None:
    assert passed(["xabc"], ["abc", "b"]) == ("xa", True)
    assert passed(["xabc"], ["c", "abc"]) == ("x", True)
