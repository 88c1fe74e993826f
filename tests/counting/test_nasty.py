from __future__ import annotations

from kvfence.counting import nasty


def test_a_seed_gives_the_same_texts() -> None:
    assert list(nasty.texts(1, 50, ["<s>"])) == list(nasty.texts(1, 50, ["<s>"]))
    assert list(nasty.texts(1, 50)) != list(nasty.texts(2, 50))


def test_there_are_as_many_as_asked_for() -> None:
    assert list(nasty.texts(1, 0)) == []
    assert list(nasty.texts(1, 1)) == [""]
    assert len(list(nasty.texts(1, 123))) == 123


def test_every_kind_is_among_them() -> None:
    together = "".join(nasty.texts(1, 1000, ["<|special|>"]))
    together.encode()  # no halves of surrogate pairs
    assert "<|special|>" in together
    assert {ord(char) >> 16 for char in together} == set(range(17))
    for text in ("\ufdfa", "\u1100", "\uac00", "\u200d", "\x00", " " * 33, "a" * 64, "def fib", "\u0301", "\r\n"):
        assert text in together, ascii(text)
