from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from kvfence.counting.bounds import Bounds, ascii_bounds_of, bounds_of
from tests.counting import small

BYTES = [small.BYTE_LEVEL]
PREFIXED = {**small.BYTE_LEVEL, "add_prefix_space": True}
UNACCENTED = {
    "type": "BertNormalizer",
    "clean_text": False,
    "handle_chinese_chars": False,
    "strip_accents": True,
    "lowercase": False,
}
KELVINS = small.added("\u212a" * 30, normalized=True)
WORDS = small.bpe(["a", "b", "aa", "<unk>"], ["a a"], unk_token="<unk>")


def loaded(document: dict[str, Any]) -> Tokenizer | None:
    try:
        return Tokenizer.from_str(json.dumps(document))
    except Exception:  # noqa: BLE001 (what the library does not load has no count)
        return None


def counted(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> int | None:
    try:
        return len(tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0])
    except BaseException as error:  # an unknown word without a token for it, and panics
        if type(error).__name__ not in ("Exception", "PanicException"):
            raise
        return None


def assert_holds(bounds: Bounds, tokenizer: Tokenizer, text: str) -> None:
    for add_special_tokens in (True, False):
        number = counted(tokenizer, text, add_special_tokens=add_special_tokens)
        if number is None:
            continue
        nbytes = len(text.encode())
        high = bounds.high(nbytes, add_special_tokens=add_special_tokens)
        assert bounds.low(nbytes, add_special_tokens=add_special_tokens) <= number
        assert high is None or number <= high


@settings(max_examples=800)
@given(small.DOCUMENTS, st.lists(small.TEXTS, min_size=3, max_size=8))
def test_every_text_is_within_the_bounds(document: dict[str, Any], texts: list[str]) -> None:
    tokenizer = loaded(document)
    if tokenizer is None:
        return
    bounds, ascii_bounds = bounds_of(document), ascii_bounds_of(document)
    for text in texts:
        assert_holds(bounds, tokenizer, text)
        if text.isascii():
            assert_holds(ascii_bounds, tokenizer, text)


def most(document: dict[str, Any], nbytes: int) -> int | None:
    return bounds_of(document).high(nbytes, add_special_tokens=True)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (small.document(small.BYTE_BPE, None, BYTES), "\u00e9x1"),
        (small.document(small.BYTE_BPE, [{"type": "NFKC"}], BYTES), "\ufdfa"),
        (small.document(small.BYTE_BPE, [{"type": "NFKD"}], BYTES), "\ufdfa"),
        (small.document(small.BYTE_BPE, [{"type": "NFC"}], BYTES), "\U0001d160"),
        (small.document(small.BYTE_BPE, [{"type": "NFD"}], BYTES), "\u0390"),
        (small.document(small.BYTE_BPE, [{"type": "Lowercase"}], BYTES), "\u023a"),
        (small.document(small.BYTE_BPE, [small.replace("a", "bbb")], BYTES), "a"),
        (small.document(small.BYTE_BPE, [small.replace("a", "bbb"), small.replace("b", "123")], BYTES), "a"),
        (small.document(small.SENTENCE_BPE), "\u00e9\U0001f600"),
        (small.document(small.SENTENCE_BPE, [small.replace(" ", "\u2581")], None), "a b x"),
        (small.document(WORDS), "ab"),
        (small.document(small.BYTE_BPE, None, [{"type": "Digits", "individual_digits": True}, PREFIXED]), "123"),
        (small.document(small.BYTE_BPE, [UNACCENTED], BYTES), "\uac01"),
    ],
)
def test_some_text_has_as_many_tokens_as_the_bound_allows(document: dict[str, Any], text: str) -> None:
    tokenizer = loaded(document)
    assert tokenizer is not None
    assert counted(tokenizer, text, add_special_tokens=True) == most(document, len(text.encode()))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        # A special token makes what follows begin anew, with a prefix of its own.
        (small.document(small.SENTENCE_BPE, [small.prepend("\u2581")], None, None, [small.added("x")]), "xb" * 20),
        (small.document(small.BYTE_BPE, None, [PREFIXED], None, [small.added("a", normalized=True)]), "ax" * 20),
        # What is looked for in normalized text can stand for more bytes than it has.
        (small.document(small.BYTE_BPE, [{"type": "NFKC"}], BYTES, None, [KELVINS]), "\u212a" * 300),
        # An unknown character is one token, however long.
        (small.document(small.bpe(["a", "?"], [], unk_token="?")), "\U0001f600" * 50),
    ],
)
def test_bounds_hold_for_the_rare(document: dict[str, Any], text: str) -> None:
    tokenizer = loaded(document)
    assert tokenizer is not None
    bounds = bounds_of(document)
    assert bounds.growth is not None
    assert bounds.reach is not None
    assert_holds(bounds, tokenizer, text)


@pytest.mark.parametrize(
    ("pre_tokenizer", "extra"),
    [
        ({**small.BYTE_LEVEL, "add_prefix_space": True}, 1),
        ({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}, 1),
        ({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}, 1),
        ({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": True}, 0),
    ],
)
def test_a_prefix_counts(pre_tokenizer: dict[str, Any], extra: int) -> None:
    model = small.BYTE_BPE if pre_tokenizer["type"] == "ByteLevel" else small.SENTENCE_BPE
    document = small.document(model, None, [pre_tokenizer])
    tokenizer = loaded(document)
    assert tokenizer is not None
    assert counted(tokenizer, "xyz", add_special_tokens=True) == most(document, 3) == 3 + extra


def test_special_tokens_count_only_where_they_are_added() -> None:
    bounds = bounds_of(small.document(small.BYTE_BPE, None, BYTES, [small.BYTE_LEVEL, small.TEMPLATE]))
    assert (bounds.low(1, add_special_tokens=True), bounds.high(1, add_special_tokens=True)) == (4, 4)
    assert (bounds.low(1, add_special_tokens=False), bounds.high(1, add_special_tokens=False)) == (1, 1)


def test_the_longest_token_bounds_from_below() -> None:
    document = small.document(small.BYTE_BPE, None, BYTES, None, [small.added("<" + "x" * 98 + ">")])
    bounds = bounds_of(document)
    assert [bounds.low(nbytes, add_special_tokens=False) for nbytes in (0, 1, 100, 101, 201)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("document", "unit"),
    [
        (small.document(small.BYTE_BPE, [{"type": "Strip", "strip_left": True, "strip_right": True}], BYTES), " "),
        (small.document(small.BYTE_BPE, [{"type": "NFD"}, {"type": "StripAccents"}], BYTES), "\u0301"),
        (small.document(small.BYTE_BPE, [{"type": "Nmt"}], BYTES), "\x01"),
        (small.document(small.BYTE_BPE, [small.NORMALIZERS[-1]], BYTES), "\x01"),
        (small.document(small.BYTE_BPE, [small.replace("a", "")], BYTES), "a"),
        (small.document(WORDS, None, [{"type": "Whitespace"}]), " "),
        (small.document(WORDS, None, [{"type": "WhitespaceSplit"}]), " "),
        (small.document(WORDS, None, [{"type": "BertPreTokenizer"}]), " "),
        (small.document(WORDS, None, [{"type": "UnicodeScripts"}]), " "),
        (small.document(WORDS, None, [{"type": "CharDelimiterSplit", "delimiter": "a"}]), "a"),
        (small.document(WORDS, None, [{"type": "Punctuation", "behavior": "Removed"}]), "."),
        (
            small.document(
                WORDS, None, [{"type": "Split", "pattern": {"String": "a"}, "behavior": "Removed", "invert": False}]
            ),
            "a",
        ),
        (small.document(small.BYTE_BPE, None, BYTES, None, [small.added("<x>", rstrip=True)]), "<x>" + " " * 99),
        (small.document(small.BYTE_BPE, None, BYTES, None, [small.added("<x>", lstrip=True)]), " " * 99 + "<x>"),
        (small.document(small.bpe(["a"], [])), "x"),
        (small.document({**small.BYTE_BPE, "end_of_word_suffix": "</w>"}, None, BYTES), "x1"),
        (small.document({**WORDS, "fuse_unk": True}), "x"),
        (small.document(small.unigram(byte_fallback=False)), "x"),
        (small.document(small.MODELS[-2]), "x"),
        (small.document(small.MODELS[-1]), "x"),
    ],
)
def test_where_text_vanishes_there_is_no_lower_bound(document: dict[str, Any], unit: str) -> None:
    tokenizer = loaded(document)
    assert tokenizer is not None
    text = unit * 200
    assert (counted(tokenizer, text, add_special_tokens=False) or 0) * 50 <= len(text)
    bounds = bounds_of(document)
    assert bounds.low(len(text), add_special_tokens=False) == 0
    assert bounds.unbounded
    assert bounds.growth is not None


SPLIT_TEMPLATE = {**small.TEMPLATE, "single": small.TEMPLATE["single"] * 2}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "Precompiled"),
        ({"normalizer": {"type": "Unheard"}}, "normalizer Unheard"),
        ({"normalizer": small.replace("", "a")}, "replacement of nothing"),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}},
            "Replace of a regular expression",
        ),
        (
            {
                "normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}, {"type": "NFD"}]},
                "pre_tokenizer": None,
            },
            "normalizer NFD",
        ),
        ({"normalizer": {"type": "ByteLevel"}}, "twice"),
        ({"pre_tokenizer": {"type": "Unheard"}}, "pre-tokenizer Unheard"),
        ({"post_processor": {"type": "Unheard"}}, "post-processor Unheard"),
        ({"post_processor": {"type": "Sequence", "processors": [small.TEMPLATE] * 2}}, "several steps"),
        ({"post_processor": SPLIT_TEMPLATE}, "give the text once"),
        ({"model": {"type": "Unheard", "vocab": {}}}, "model Unheard"),
        ({"model": {"vocab": {}}}, "model None"),
        ({"model": {"type": "BPE", "vocab": {"": 1}}}, "without text"),
        ({"model": {"type": "BPE"}}, "without vocabulary"),
        ({"model": {**small.SENTENCE_BPE, "end_of_word_suffix": "</w>"}}, "affix"),
        ({"model": small.SENTENCE_BPE}, "two bytes"),
        ({"added_tokens": [small.added("")]}, "without text"),
        ({"added_tokens": {}}, "added_tokens"),
        ({"added_tokens": [small.added("a", normalized=True)], "normalizer": {"type": "StripAccents"}}, "vanish"),
    ],
)
def test_what_is_not_understood_bounds_nothing(changed: dict[str, Any], reason: str) -> None:
    document = {**small.document(small.BYTE_BPE, None, BYTES), **changed}
    for bounds in (bounds_of(document), ascii_bounds_of(document)):
        assert bounds.high(1, add_special_tokens=True) is None
        assert bounds.low(1000, add_special_tokens=True) == 0
        assert reason in bounds.unbounded[0]


def test_normal_forms_do_not_touch_ascii() -> None:
    document = small.document(small.BYTE_BPE, [{"type": "NFKC"}, {"type": "Lowercase"}], BYTES)
    assert ascii_bounds_of(document) == bounds_of(small.document(small.BYTE_BPE, None, BYTES))
    assert ascii_bounds_of(document) != bounds_of(document)


@pytest.mark.parametrize(
    "document",
    [
        small.document(small.BYTE_BPE, [small.prepend("\ufdfa"), {"type": "NFKC"}], BYTES),
        small.document(small.BYTE_BPE, [{"type": "NFKC"}], BYTES, None, [small.added("\u247d", normalized=True)]),
    ],
)
def test_normal_forms_touch_what_is_put_into_ascii_or_looked_for_in_it(document: dict[str, Any]) -> None:
    assert ascii_bounds_of(document) == bounds_of(document)
