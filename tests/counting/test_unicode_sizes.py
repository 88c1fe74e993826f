from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.counting.unicode_sizes import ONE, SPACE_MARK, Form, lowercase, normal_form, size
from tests.counting import small

FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
DIFFICULT = [
    chr(point)
    for point in range(0x110000)
    if not 0xD800 <= point <= 0xDFFF and (unicodedata.decomposition(chr(point)) or unicodedata.combining(chr(point)))
]
TEXTS = st.one_of(
    st.text(st.sampled_from(DIFFICULT), max_size=20),
    st.text(st.sampled_from("aeo\u1161\u11a8" + small.TRICKY), max_size=20),
    st.text(max_size=20),
)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=300)
@given(text=TEXTS)
def test_no_text_grows_or_shrinks_more(form: Form, text: str) -> None:
    change = normal_form(form)
    normal = unicodedata.normalize(form, text)
    assert size(normal) <= change.growth * size(text)
    assert change.shrink is not None
    assert size(text) <= change.shrink * size(normal)


@pytest.mark.parametrize("form", FORMS)
def test_the_worst_character_reaches_the_growth(form: Form) -> None:
    # As https://www.unicode.org/faq/normalization.html has it for UTF-8.
    growth = normal_form(form).growth
    assert growth == (11 if "K" in form else 3)
    assert any(size(unicodedata.normalize(form, char)) == growth * size(char) for char in DIFFICULT)


def test_lower_case() -> None:
    change = lowercase()
    assert change.shrink is not None
    for char in map(chr, [*range(0xD800), *range(0xE000, 0x20000)]):
        assert size(char) / change.shrink <= size(char.lower()) <= change.growth * size(char)
    assert change.growth > ONE


def test_the_space_mark_stays_what_it_is_beside_everything() -> None:
    for char in DIFFICULT:
        for form in FORMS:
            assert unicodedata.normalize(form, SPACE_MARK + char).startswith(SPACE_MARK)
            assert SPACE_MARK not in unicodedata.normalize(form, char)
    assert SPACE_MARK.lower() == SPACE_MARK
