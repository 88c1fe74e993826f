"""The drill's documents are what the scenarios take them for."""

from __future__ import annotations

import re
from collections import Counter

from kvfence.drill.texts import BOARD, CUE, GARDEN, LEAST_VERBATIM, OWN, QUESTION, SECRET, filler


def test_documents_have_their_secret_at_one_place_and_one_length() -> None:
    assert len(BOARD) == len(GARDEN)
    assert BOARD.index(SECRET) == GARDEN.index(OWN)
    assert len(SECRET) == len(OWN)


def test_nothing_of_tenant_a_stands_in_what_tenant_b_sends() -> None:
    sent = QUESTION + filler(4000)
    assert SECRET not in sent
    pieces = {BOARD[start : start + LEAST_VERBATIM] for start in range(len(BOARD) - LEAST_VERBATIM + 1)}
    assert not any(piece in sent for piece in pieces)


def test_question_is_answered_by_the_document_before_it() -> None:
    assert QUESTION.count(CUE[1:]) == 2
    assert QUESTION.index(f"{CUE[1:]} {OWN}") < QUESTION.rindex(CUE)


def test_filler_repeats_no_ten_words() -> None:
    words = re.findall(r"\S+", filler(4000))
    runs = Counter(tuple(words[start : start + 10]) for start in range(len(words) - 9))
    assert max(runs.values()) == 1
    assert len(filler(777)) == 777
