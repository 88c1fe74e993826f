from __future__ import annotations

from tests.facts.sglang.growth import is_linear


def test_counting_is_linear() -> None:
    assert is_linear(lambda text: text.count("b"), lambda length: "a" * length, 100_000)


def test_comparing_every_three_is_not() -> None:
    assert not is_linear(lambda text: sum(1 for _ in text for _ in text for _ in text), lambda length: "a" * length, 20)
