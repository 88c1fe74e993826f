"""What of a text reaches a tokenizer's model, at most and at least: its normalizer and pre-tokenizer.

Soundness comes step by step: a step is here only if its effect on every text can be bounded, and a step that is not
here bounds nothing. What the steps do is read from the source of Hugging Face `tokenizers` 0.20 to 0.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from kvfence.counting.json_parts import Part, UnboundedError, part, steps, string
from kvfence.counting.unicode_sizes import ONE, SPACE_MARK, Change, Form, lowercase, normal_form, size

_SAME = Change(ONE, ONE)
# Chinese characters, of 3 bytes at least, get a space on either side.
_SPACED_CHINESE = Fraction(5, 3)


@dataclass(frozen=True)
class Flow:
    """From the bytes of a segment (a stretch of text without special tokens) to what the model is given.

    A *unit* is what can become one token of its own: a byte of UTF-8; but a space mark is one, if `mark_units` is 1.

    Args:
        mark_units: the most tokens that a space mark can become.
        growth: most units for one byte of text.
        shrink: most bytes of text for one byte given to the model; None where text can vanish.
        per_segment: most units put in front of a segment.
        per_piece: most units put in front of a stretch of normalized text without added tokens.
        byte_level: each byte was written as a character of its own.
        split: the text is in pieces already, each of one unit at least.

    """

    mark_units: int
    growth: Fraction = ONE
    shrink: Fraction | None = ONE
    per_segment: Fraction = Fraction(0)
    per_piece: Fraction = Fraction(0)
    byte_level: bool = False
    split: bool = False

    def units(self, text: str) -> int:
        """Give the most tokens that a text, given to the model as it is, can become."""
        return size(text) - text.count(SPACE_MARK) * (3 - self.mark_units)

    def changed(self, change: Change) -> Flow:
        """Give the flow with a change of all the text that has come so far, what was put in front too."""
        shrink = None if self.shrink is None or change.shrink is None else self.shrink * change.shrink
        per_segment, per_piece = self.per_segment * change.growth, self.per_piece * change.growth
        growth = self.growth * change.growth
        return replace(self, growth=growth, shrink=shrink, per_segment=per_segment, per_piece=per_piece)

    def prefixed(self, text: str) -> Flow:
        """Give the flow with a text put in front of every piece that there is."""
        units = self.units(text)
        if self.split:  # as many pieces as units, at worst
            return self.changed(Change(Fraction(1 + units), ONE))
        return replace(self, per_piece=self.per_piece + units)


def _loses(flow: Flow) -> Flow:
    """Let text vanish: any number of bytes may give nothing."""
    return replace(flow, shrink=None)


def _replaced(flow: Flow, pattern: str, content: str) -> Flow:
    if not pattern:
        raise UnboundedError("a replacement of nothing")
    growth = Fraction(flow.units(content), flow.units(pattern))
    return flow.changed(Change(max(ONE, growth), max(ONE, Fraction(size(pattern), size(content))) if content else None))


def _replace(flow: Flow, step: Part) -> Flow:
    pattern = part(step, "pattern") or {}
    if "String" not in pattern:  # an expression may match nothing, or any length
        raise UnboundedError("normalizer Replace of a regular expression")
    return _replaced(flow, string(pattern, "String"), string(step, "content"))


def _prepend(flow: Flow, step: Part) -> Flow:
    return replace(flow, per_segment=flow.per_segment + flow.units(string(step, "prepend")))


def _bert(flow: Flow, step: Part) -> Flow:
    """Control characters vanish, and accents; the rest is what the switches say, at most all of it."""
    growth = _SPACED_CHINESE if step.get("handle_chinese_chars") is not False else ONE
    if step.get("strip_accents") is not False:
        growth *= normal_form("NFD").growth
    if step.get("lowercase") is not False:
        growth *= lowercase().growth
    return flow.changed(Change(growth, None))


def _form(form: Form) -> Callable[[Flow, Part], Flow]:
    return lambda flow, _: flow.changed(normal_form(form))


_NORMALIZERS: Mapping[str, Callable[[Flow, Part], Flow]] = {
    "NFC": _form("NFC"),
    "NFD": _form("NFD"),
    "NFKC": _form("NFKC"),
    "NFKD": _form("NFKD"),
    "Lowercase": lambda flow, _: flow.changed(lowercase()),
    "Prepend": _prepend,
    "Replace": _replace,
    "Strip": lambda flow, _: _loses(flow),
    "StripAccents": lambda flow, _: _loses(flow),
    "Nmt": lambda flow, _: _loses(flow),  # control characters vanish or become spaces
    "BertNormalizer": _bert,
    "ByteLevel": lambda flow, _: replace(flow, byte_level=True),
}


def normalized(flow: Flow, normalizer: Part | None) -> Flow:
    """Give the flow after the normalizer.

    Raises:
        UnboundedError: a step is not known, or can do anything (`Precompiled`: SentencePiece's compiled table).

    """
    for step in steps(normalizer, "normalizers"):
        known = _NORMALIZERS.get(str(step.get("type")))
        if known is None or flow.byte_level:  # what would work on bytes written as characters was never seen
            raise UnboundedError(f"normalizer {step.get('type')}")
        flow = known(flow, step)
    return flow


def _split(flow: Flow, step: Part) -> Flow:
    flow = replace(flow, split=True)
    return _loses(flow) if step.get("behavior") == "Removed" else flow


def _dropping(flow: Flow, _: Part) -> Flow:
    return _loses(replace(flow, split=True))


def _byte_level(flow: Flow, step: Part) -> Flow:
    if flow.byte_level:
        raise UnboundedError("bytes are written as characters twice")
    if step.get("add_prefix_space") is not False:
        flow = flow.prefixed(" ")
    return replace(flow, byte_level=True, split=True)


def _metaspace(flow: Flow, step: Part) -> Flow:
    if flow.byte_level:
        raise UnboundedError("pre-tokenizer Metaspace after ByteLevel")
    mark = string(step, "replacement")
    flow = _replaced(flow, " ", mark)
    if step.get("prepend_scheme") != "never":
        flow = flow.prefixed(mark)
    return replace(flow, split=True)


_PRE_TOKENIZERS: Mapping[str, Callable[[Flow, Part], Flow]] = {
    "BertPreTokenizer": _dropping,
    "ByteLevel": _byte_level,
    "CharDelimiterSplit": _dropping,
    "Digits": _split,
    "FixedLength": _split,
    "Metaspace": _metaspace,
    "Punctuation": _split,
    "Split": _split,
    "UnicodeScripts": _dropping,  # as written, drops a text of nothing but what belongs to no script
    "Whitespace": _dropping,
    "WhitespaceSplit": _dropping,
}


def pre_tokenized(flow: Flow, pre_tokenizer: Part | None) -> Flow:
    """Give the flow after the pre-tokenizer.

    Raises:
        UnboundedError: a step is not known.

    """
    for step in steps(pre_tokenizer, "pretokenizers"):
        known = _PRE_TOKENIZERS.get(str(step.get("type")))
        if known is None:
            raise UnboundedError(f"pre-tokenizer {step.get('type')}")
        flow = known(flow, step)
    return flow
