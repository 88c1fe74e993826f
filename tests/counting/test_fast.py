from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import tokenizers

from kvfence.counting import nasty
from kvfence.counting.bounds import ascii_bounds_of, bounds_of
from kvfence.counting.errors import UncountableTextError
from kvfence.counting.fast import FastTokenizer, UnsupportedError, require_agreement
from kvfence.counting.reference import Reference
from tests.counting import real

EACH = 2500


@contextmanager
def reference_of(content: bytes) -> Iterator[Reference]:
    reference = Reference(content)
    try:
        yield reference
    finally:
        reference.close_now()


@pytest.mark.parametrize("name", real.ALL)
def test_real_tokenizers_agree_and_keep_to_their_bounds(name: str) -> None:
    content = real.ALL[name]()
    document, reference = json.loads(content), tokenizers.Tokenizer.from_str(content.decode())
    bounds, ascii_bounds = bounds_of(document), ascii_bounds_of(document)
    assert bounds.growth is not None
    assert bounds.reach is not None
    fast = FastTokenizer(content.decode()) if name != "anthropic" else None  # it has NFKC
    for nth, text in enumerate(nasty.texts(sum(name.encode()), EACH, real.specials_of(content))):
        add_special_tokens = nth % 2 == 0
        (encoding,) = reference.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        nbytes, number = len(text.encode()), len(encoding)
        for one in (bounds, ascii_bounds) if text.isascii() else (bounds,):
            high = one.high(nbytes, add_special_tokens=add_special_tokens)
            assert high is not None
            assert one.low(nbytes, add_special_tokens=add_special_tokens) <= number <= high, ascii(text)
        if fast is not None:
            assert fast.count(text, add_special_tokens=add_special_tokens) == number, ascii(text)


def test_the_test_at_the_start_accepts_who_agrees() -> None:
    content = real.sentence_piece()
    with reference_of(content) as reference:
        require_agreement(FastTokenizer(content.decode()), reference, real.specials_of(content))


@pytest.mark.parametrize(
    "changed",
    [
        {"normalizer": {"type": "Prepend", "prepend": "\u2581"}},
        {"normalizer": None},
        {"post_processor": None},
        {"added_tokens": []},
        {"pre_tokenizer": {"type": "Digits", "individual_digits": False}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_the_test_at_the_start_notices_a_difference(changed: dict[str, object]) -> None:
    content = real.sentence_piece()
    other = json.dumps({**json.loads(content), **changed})
    with reference_of(content) as reference, pytest.raises(UnsupportedError, match="disagrees"):
        require_agreement(FastTokenizer(other), reference, real.specials_of(content))


def test_a_normalizer_that_it_does_not_know_is_not_supported() -> None:
    with pytest.raises(UnsupportedError, match="NFKC"):
        FastTokenizer(real.anthropic().decode())


def test_half_a_surrogate_pair_is_refused() -> None:
    fast = FastTokenizer(real.sentence_piece().decode())
    with pytest.raises(UncountableTextError):
        fast.count("a\ud800b", add_special_tokens=False)


def test_truncation_and_padding_are_off() -> None:
    document = json.loads(real.sentence_piece())
    whole = FastTokenizer(json.dumps(document)).count("a b " * 50, add_special_tokens=True)
    document["truncation"] = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    document["padding"] = {
        "strategy": {"Fixed": 4000},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    content = json.dumps(document)
    assert FastTokenizer(content).count("a b " * 50, add_special_tokens=True) == whole
    with reference_of(content.encode()) as reference:
        (told,) = reference.check([b"a b " * 50], add_special_tokens=True)
    assert told.number == whole
