"""How many tokens a tokenizer's model makes of what it is given, at most and at least.

Every model here makes one token at most of a *unit* (`flow.py`), because each of its tokens takes one unit at least.
How many bytes a token can stand for depends on what becomes of characters that are not in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvfence.counting.json_parts import Part, UnboundedError, part, steps
from kvfence.counting.unicode_sizes import SPACE_MARK, size

# How GPT-2 writes the 256 bytes as characters: those that print as themselves, the others from U+0100 on.
_PRINT = frozenset((*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)))
_BYTE_CHARS = (*map(chr, sorted(_PRINT)), *(chr(0x100 + nth) for nth in range(256 - len(_PRINT))))
_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
_LONGEST_CHARACTER = 4  # bytes of UTF-8


@dataclass(frozen=True)
class ModelUnits:
    """What a model makes of what it is given.

    Args:
        mark_units: the most tokens that a space mark becomes.
        longest: most bytes given to it that one of its tokens stands for; None where that is unbounded.
        loses: why it is.

    """

    mark_units: int
    longest: Fraction | None
    loses: str = ""

    @staticmethod
    def of(document: Part) -> ModelUnits:
        """Read the model of a `tokenizer.json`.

        Raises:
            UnboundedError: it is not known, or can make more tokens than it is given units.

        """
        model = part(document, "model") or {}
        vocabulary, byte_level = _vocabulary(model), _is_byte_level(document)
        _require_units(model, vocabulary, byte_level=byte_level)
        match model.get("type"):
            case "BPE":
                loses = _bpe_loses(model, vocabulary, byte_level=byte_level)
            case "Unigram":  # neighbouring unknown characters become one unknown, unless each has its bytes
                loses = "" if _has_bytes(model, vocabulary) else "any number of unknown characters become one token"
            case "WordPiece" | "WordLevel":
                loses = "a word of any length becomes one unknown"
            case other:
                raise UnboundedError(f"model {other}")
        whole = SPACE_MARK in vocabulary or model.get("byte_fallback") is not True
        mark_units = 1 if whole and not byte_level else 3
        if loses:
            return ModelUnits(mark_units, None, loses)
        longest = max((len(entry) if byte_level else size(entry) for entry in vocabulary), default=1)
        return ModelUnits(mark_units, Fraction(max(longest, _LONGEST_CHARACTER)))


def _vocabulary(model: Part) -> frozenset[str]:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        entries = list(vocabulary)
    elif isinstance(vocabulary, list) and all(isinstance(one, list) and one for one in vocabulary):
        entries = [one[0] for one in vocabulary]
    else:
        raise UnboundedError("a model without vocabulary")
    if not all(isinstance(entry, str) and entry for entry in entries):
        raise UnboundedError("a vocabulary with an entry without text")
    return frozenset(entries)


def _is_byte_level(document: Part) -> bool:
    """Tell whether the model is given bytes, each written as a character."""
    both = (
        *steps(part(document, "normalizer"), "normalizers"),
        *steps(part(document, "pre_tokenizer"), "pretokenizers"),
    )
    return any(step.get("type") == "ByteLevel" for step in both)


def _has_bytes(model: Part, vocabulary: frozenset[str]) -> bool:
    return model.get("byte_fallback") is True and vocabulary.issuperset(_BYTE_TOKENS)


def _affixes(model: Part) -> bool:
    """Tell whether the characters of a word are looked up with something before or after them."""
    return any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix"))


def _require_units(model: Part, vocabulary: frozenset[str], *, byte_level: bool) -> None:
    """Require that a character becomes no more tokens than it has units."""
    if model.get("byte_fallback") is not True:
        return
    if _affixes(model):
        raise UnboundedError("bytes of an affix in the place of an unknown character")
    if byte_level and not vocabulary.issuperset(_BYTE_CHARS):
        raise UnboundedError("two bytes in the place of an unknown byte")


def _bpe_loses(model: Part, vocabulary: frozenset[str], *, byte_level: bool) -> str:
    """Tell how characters that are not in the vocabulary are lost, if they are."""
    if _has_bytes(model, vocabulary) or (byte_level and not _affixes(model) and vocabulary.issuperset(_BYTE_CHARS)):
        return ""
    if model.get("unk_token") is None:
        return "unknown characters vanish"
    return "any number of unknown characters become one token" if model.get("fuse_unk") is True else ""
