"""The words of bytes."""

from __future__ import annotations

import numpy as np

from kvfence.engine.recall.codes import BYTES, WORD, byte_words
from kvfence.engine.recall.residual import Residual
from kvfence.engine.recall.variants import CLASSIC, SMALL


def test_no_two_words_are_nearer_than_a_quarter() -> None:
    words = byte_words()
    cosines = words @ words.T / WORD
    assert words.shape == (BYTES, WORD)
    assert set(np.unique(words)) == {-1.0, 1.0}
    assert (cosines.diagonal() == 1).all()
    np.fill_diagonal(cosines, 0)
    assert set(np.unique(cosines)) == {-1.0, -0.25, 0.0, 0.25}


def test_no_two_ascii_words_are_opposite() -> None:
    ascii_words = byte_words()[:128]
    assert (ascii_words @ ascii_words.T).min() == -WORD / 4


def test_the_first_coordinates_show_the_low_bits() -> None:
    for byte, word in enumerate(byte_words()):
        assert list(word[:4] < 0) == [bool(byte >> bit & 1) for bit in range(4)]
        assert (word[8] < 0) == (byte >= 128)


def test_a_slot_reads_the_same_off_either_form() -> None:
    for variant in (SMALL, CLASSIC):
        residual = Residual(variant)
        read = residual.words @ residual.to_slot.T
        np.testing.assert_array_equal(read[1:], byte_words()[1:, : variant.slot_dims])
        assert not read[0].any()
