"""How many tokens a text can have, at most and at least, from nothing but its length.

Worked out from `tokenizer.json` alone, and only where it can be proven for every text; where it cannot, there is no
bound and the reason is told. Every model here gives at most one token for a unit of what reaches it (`flow.py`),
because each of its tokens takes one at least; and no token stands for more bytes than the longest entry of the
vocabulary, unless text can vanish on the way. Truncation and padding are not looked at: engines switch both off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvfence.counting.flow import Flow, normalized, pre_tokenized
from kvfence.counting.json_parts import Part, UnboundedError, objects, part, steps, string
from kvfence.counting.model_units import ModelUnits
from kvfence.counting.unicode_sizes import SPACE_MARK, size

# What leaves ASCII text as long as it is, and ASCII.
_ASCII_KEEPS = frozenset(("NFC", "NFD", "NFKC", "NFKD", "Lowercase"))


@dataclass(frozen=True)
class Bounds:
    """Bounds on the tokens of a text by its bytes of UTF-8.

    Args:
        growth: most tokens a byte; None where there is no upper bound.
        extra: most tokens that any text has beside those.
        reach: most bytes that one token stands for; None where there is no lower bound.
        specials: tokens that a text is given with `add_special_tokens`.
        unbounded: why a bound is missing.

    """

    growth: Fraction | None
    extra: int
    reach: Fraction | None
    specials: int
    unbounded: tuple[str, ...] = ()

    def high(self, nbytes: int, *, add_special_tokens: bool) -> int | None:
        """Give the most tokens of any text of `nbytes` bytes, None if unknown."""
        if self.growth is None:
            return None
        specials = self.specials if add_special_tokens else 0
        return nbytes * self.growth.numerator // self.growth.denominator + self.extra + specials

    def low(self, nbytes: int, *, add_special_tokens: bool) -> int:
        """Give the least tokens of any text of `nbytes` bytes, 0 if unknown."""
        if self.reach is None:
            return 0
        specials = self.specials if add_special_tokens else 0
        return -(-nbytes * self.reach.denominator // self.reach.numerator) + specials


def bounds_of(document: Part) -> Bounds:
    """Work out the bounds that hold for every text, from the content of a `tokenizer.json`."""
    try:
        specials = _specials_added(part(document, "post_processor"))
        model = ModelUnits.of(document)
        before = normalized(Flow(model.mark_units), part(document, "normalizer"))
        flow = pre_tokenized(before, part(document, "pre_tokenizer"))
        added = objects(document, "added_tokens") if document.get("added_tokens") is not None else []
        growth, extra = _most(flow, before, added)
        reach, why = _reach(model, flow, before, added)
    except UnboundedError as error:
        return Bounds(None, 0, None, 0, (f"{error}: what it does to a text's length is unknown",))
    return Bounds(growth, extra, reach, specials, why)


def ascii_bounds_of(document: Part) -> Bounds:
    """Work out the bounds that hold for every text of ASCII characters alone: normal forms do not touch it."""
    try:
        given = list(steps(part(document, "normalizer"), "normalizers"))
        added = objects(document, "added_tokens") if document.get("added_tokens") is not None else []
        put_in = [str(step[key]) for step in given for key in ("prepend", "content") if key in step]
        looked_for = [string(one, "content") for one in added if one.get("normalized") is not False]
    except UnboundedError:
        return bounds_of(document)
    stays_ascii = all(text.replace(SPACE_MARK, "").isascii() for text in (*put_in, *looked_for))
    if not stays_ascii or any(step.get("type") == "ByteLevel" for step in given):
        return bounds_of(document)
    left = [step for step in given if step.get("type") not in _ASCII_KEEPS]
    return bounds_of({**document, "normalizer": {"type": "Sequence", "normalizers": left}})


def _most(flow: Flow, before: Flow, added: Sequence[Part]) -> tuple[Fraction, int]:
    """Give the most tokens a byte, and the most beside those.

    An added token found in the text is one token, and what follows it, if anything, begins anew: with the prefixes of
    a segment (found in the text as it is) or of a piece (found in the normalized text). Most tokens a byte come of it
    where one byte or unit follows, or none.
    """
    growth, piece = flow.growth, flow.per_piece
    in_normalized = [one for one in added if one.get("normalized") is not False]
    if in_normalized and before.shrink is None:
        raise UnboundedError("an added token looked for in normalized text could vanish and be found anywhere")
    shortest = min((len(string(one, "content")) for one in added), default=1)
    if not shortest:
        raise UnboundedError("an added token without text")
    if in_normalized:  # normalized, it takes one unit at least, and costs itself and the prefix of what follows
        growth *= 1 + piece / 2
    per_segment = flow.per_segment * (1 + piece / 2 if in_normalized else 1) + piece
    most = growth
    for one in added:
        if one.get("normalized") is False:
            length = size(string(one, "content"))
            most = max(most, Fraction(1, length), (1 + per_segment + growth) / (1 + length))
    return most, math.ceil(per_segment)


def _reach(
    model: ModelUnits, flow: Flow, before: Flow, added: Sequence[Part]
) -> tuple[Fraction | None, tuple[str, ...]]:
    """Give the most bytes of text that one token stands for, or why that is unknown."""
    if flow.shrink is None or before.shrink is None:
        return None, ("text can vanish before it reaches the model: no lower bound",)
    if any(one.get("lstrip") is not False or one.get("rstrip") is not False for one in added):
        return None, ("an added token takes the spaces beside it along: no lower bound",)
    if model.longest is None:
        return None, (f"{model.loses}: no lower bound",)
    reach = [model.longest * flow.shrink]
    for one in added:
        length = size(string(one, "content"))
        if one.get("normalized") is False:
            reach.append(Fraction(length))
        else:  # what it was normalized to, at most, and the most text that this can come from
            units = length * before.growth + before.per_segment
            reach.append(units * (1 if model.mark_units == 3 else 3) * before.shrink)
    return max(reach), ()


def _specials_added(post_processor: Part | None) -> int:
    """Give the tokens that the post-processor adds to one text."""
    # ByteLevel only shifts offsets.
    adding = [step for step in steps(post_processor, "processors") if step.get("type") != "ByteLevel"]
    if len(adding) > 1:  # the second adds to each part that the first made
        raise UnboundedError("a post-processor of several steps")
    match adding[0].get("type") if adding else None:
        case None:
            return 0
        case "BertProcessing" | "RobertaProcessing":  # one before and one after
            return 2
        case "TemplateProcessing":
            return _template_specials(adding[0])
        case other:
            raise UnboundedError(f"post-processor {other}")


def _template_specials(step: Part) -> int:
    """Give the special tokens of a template for one text."""
    known, texts, total = part(step, "special_tokens") or {}, 0, 0
    for piece in objects(step, "single"):
        special = part(piece, "SpecialToken")
        if special is None:
            texts += 1
            continue
        ids = (part(known, string(special, "id")) or {}).get("ids")
        if not isinstance(ids, list):
            raise UnboundedError("a special token of the post-processor without ids")
        total += len(ids)
    if texts != 1:
        raise UnboundedError("a post-processor that does not give the text once")
    return total
