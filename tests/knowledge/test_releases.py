"""Release numbers order as releases do, and a range decides only what all of it agrees on."""

from __future__ import annotations

import pytest

from kvfence.knowledge.releases import Version, VersionRange, before, newest, oldest, sglang_releases, since


def version(text: str) -> Version:
    return Version.parse(text)


def test_releases_are_in_order_and_whole() -> None:
    known = [str(release) for release in sglang_releases()]
    assert known[0] == "0.4.6"
    assert known[-1] == "0.5.23"
    assert len(known) == len(set(known)) == 62
    assert known.index("0.5.15") + 1 == known.index("0.5.15.post1")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0.5.19", "0.5.19"),
        ("v0.5.13.post1", "0.5.13.post1"),
        ("v0.5.19-cu126", "0.5.19"),
        ("0.5.3.post2+cpu", "0.5.3.post2"),
    ],
)
def test_spellings_of_a_release(text: str, shown: str) -> None:
    assert str(version(text)) == shown


@pytest.mark.parametrize("text", ["", "latest", "dev", "5", "0.5.x", "v"])
def test_no_release_number(text: str) -> None:
    with pytest.raises(ValueError, match="not a release number"):
        version(text)


def test_prerelease_comes_before_its_release() -> None:
    assert version("0.5.19rc1") < version("0.5.19") < version("0.5.19.post1") < version("0.5.20")


def test_range_decides_what_all_of_it_agrees_on() -> None:
    fixed = version("0.5.20")
    assert since("0.5.20").decide(lambda v: v >= fixed) is True
    assert before("0.5.20").decide(lambda v: v >= fixed) is False
    assert VersionRange(version("0.5.19"), version("0.5.20")).decide(lambda v: v >= fixed) is None


@pytest.mark.parametrize("text", ["0.5.24", "0.6.0", "0.3.0"])
def test_release_the_tables_do_not_know_decides_nothing(text: str) -> None:
    assert VersionRange.exactly(version(text)).decide(lambda _: True) is None


def test_intersection() -> None:
    assert (since("0.5.19") & before("0.5.20")) == VersionRange.exactly(version("0.5.19"))
    assert (since("0.5.20") & before("0.5.20")) is None


def test_range_that_nothing_bounds_from_below_says_so() -> None:
    assert str(before("0.5.13")) == "0.5.12.post1 or older"
    assert str(VersionRange(version("0.5.7"), newest())) == "0.5.7 to 0.5.23"
    assert before("0.5.13").open_below
    assert not VersionRange.exactly(oldest()).open_below
