"""Texts on which tokenizers that are meant to agree have been seen to differ.

The same seed gives the same texts, so that a disagreement can be found again. A text mixes pieces of several kinds:
what one kind alone does not show (a normalizer that composes across the end of a special token, say) neighbours do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

_Kind = Callable[[random.Random], str]

_CODE = """\
def fib(n: int) -> int:
\treturn n if n < 2 else fib(n - 1) + fib(n - 2)  # O(1.618**n)

    if (a && !b || c[i] >> 0x1F) { return "it's\\n" + 'don\\'t'; }
SELECT * FROM t WHERE x<>'' AND y IN (1,22,333,4444);\r\n
<div class="row">&nbsp;<!-- TODO: we'll -->https://example.org/a_b?c=%20&d=#e</div>
{"name": "x", "list": [1.5e-9, null, true, -0], "nested": {"k": "\\u00e9"}}
#include <stdint.h>\n\n\n   /* ---------- */ ++i; --j; ===>  ...___...  ~/bin/../$HOME
"""
_SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
# What normal forms, case and scripts make difficult: U+FDFA (33 bytes in NFKC), ligatures, Kelvin and Angstrom signs,
# characters that composition excludes, Hangul, dotless i, final sigma, the space mark of SentencePiece.
_TRICKY = (
    "\ufdfa\ufb03\u212a\u212b\u2126\u0344\u0958\u0f43\u2adc\ufb1d\ufb2c\u0390\u03b0\u1e69\u1e9b\u0323\u0f73\u0f75\u0f81\u1fef"
    "\uac00\ud7a3\u1100\u1161\u11a8\u115f\u1160\u3164\uffa0\u0130\u0131\u1e9e\u03a3\u03c2\u01c5\u2581\u0120\u010a\u2460\u00bd"
    "\U0001d15e\U0001d160\U0001d400\U0002f81a\U00016d68\U00010400\U0001e900\ufffd\ufffe\uffff\U0010ffff\u0000\u007f"
)
_EMOJI = (
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f44d\U0001f3fd",
    "1\ufe0f\u20e3",
    "\U0001f1e9\U0001f1ea\U0001f1eb",
    "\u2764\ufe0f",
)
_WORDS = tuple(
    word
    for line in (
        "the quick brown fox; it's we'll I'D they'RE 'S 't na\u00efve Stra\u00dfe \u0130stanbul Vi\u1ec7t Nam",
        "Ωμέγα Привет мир שלום עולם السلام عليكم नमस्ते दुनिया สวัสดีชาวโลก ကမ္ဘာ ខ្មែរ",
        "你好世界 漢字かな交じり文 한국어 문장 e\u0301te\u0301 q\u0323\u0307",
    )
    for word in line.split()
)


def _any_plane(rng: random.Random) -> str:
    return "".join(
        chr(_scalar(rng.choice((0x7F, 0x7FF, 0xFFFF, 0x1FFFF, 0x10FFFF)), rng)) for _ in range(rng.randrange(1, 40))
    )


def _scalar(top: int, rng: random.Random) -> int:
    """Give a random code point up to `top` that is no surrogate."""
    point = rng.randrange(top + 1)
    return point if not 0xD800 <= point <= 0xDFFF else point - 0x800


def _marks(rng: random.Random) -> str:
    marks = [rng.randrange(0x300, 0x370) for _ in range(rng.randrange(1, 9))]
    return rng.choice("aeqOsK\u00e9\u05d0\u0f40 ") + "".join(map(chr, marks))


def _hangul(rng: random.Random) -> str:
    jamo = ((0x1100, 0x1113), (0x1161, 0x1176), (0x11A7, 0x11C3), (0xAC00, 0xD7A4))
    return "".join(chr(rng.randrange(*rng.choice(jamo))) for _ in range(rng.randrange(1, 12)))


def _code(rng: random.Random) -> str:
    start = rng.randrange(len(_CODE))
    return _CODE[start : start + rng.randrange(1, 200)]


def _repeated(rng: random.Random) -> str:
    unit = rng.choice(
        (rng.choice("aA-_=.*#/\\'1 \n\t<|e"), rng.choice(_TRICKY), rng.choice(_EMOJI), rng.choice(_WORDS))
    )
    return unit * rng.choice((2, 3, 7, 16, 17, 64, 65, 200))


def _spaces(rng: random.Random) -> str:
    return "".join(rng.choice(_SPACES) * rng.choice((1, 1, 2, 5, 33)) for _ in range(rng.randrange(1, 5)))


def _controls(rng: random.Random) -> str:
    return "".join(chr(rng.choice((rng.randrange(32), rng.randrange(0x7F, 0xA0)))) for _ in range(rng.randrange(1, 9)))


def _digits(rng: random.Random) -> str:
    zero = rng.choice((0x30, 0x30, 0x660, 0x966, 0xFF10, 0x1D7CE))
    return "".join(chr(zero + rng.randrange(10)) for _ in range(rng.randrange(1, 12))) + rng.choice(
        ("", ".", ",", "%", "²")
    )


def _tricky(rng: random.Random) -> str:
    return "".join(rng.choices(_TRICKY, k=rng.randrange(1, 12)))


def _emoji(rng: random.Random) -> str:
    return "".join(rng.choices(_EMOJI, k=rng.randrange(1, 5)))


def _words(rng: random.Random) -> str:
    return rng.choice((" ", "  ", "\n", "", "-")).join(rng.choices(_WORDS, k=rng.randrange(1, 12)))


_KINDS: tuple[_Kind, ...] = (
    *(_any_plane, _marks, _hangul, _code, _repeated, _spaces, _controls, _digits, _tricky, _emoji, _words),
    *(_code, _words, _spaces),  # what real prompts are made of, and where pre-tokenizers differ, more often
)


def texts(seed: int, number: int, specials: Sequence[str] = ()) -> Iterator[str]:
    """Give `number` texts of up to a few KB each, the first of them empty.

    Args:
        seed: the same seed gives the same texts.
        number: how many.
        specials: texts of special tokens, spelled out, cut and glued together in some of the texts.

    """
    rng = random.Random(seed)  # noqa: S311 (repeatable texts, no secrets)
    if number > 0:
        yield ""
    for _ in range(number - 1):
        pieces = [rng.choice(_KINDS)(rng) for _ in range(rng.choice((1, 1, 2, 3, 5, 8, 13)))]
        if specials and rng.random() < 0.4:
            for _ in range(rng.randrange(1, 4)):
                special = rng.choice(specials)
                pieces.insert(
                    rng.randrange(len(pieces) + 1), special[: rng.choice((len(special), len(special), -1, 3))]
                )
        yield "".join(pieces)
