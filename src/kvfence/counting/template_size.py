"""How long a text of a template may be: a linear form in what is not known before a conversation comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final


class NotLinearError(Exception):
    """A template cannot be shown to write a text whose length is linear in the conversation's."""


@dataclass(frozen=True, slots=True)
class Size:
    """An upper bound of a length, in bytes of UTF-8.

    Attributes:
        const: always.
        turn: times the bytes of the message that a loop is at.
        each: times the number of messages.
        total: times the bytes of all messages.
        once_each: in the first pass of a loop and in no other, times the number of messages.
        once_total: likewise, times the bytes of all messages.
        kept: times the length of a variable of a namespace when a pass of a loop began.

    """

    const: int = 0
    turn: int = 0
    each: int = 0
    total: int = 0
    once_each: int = 0
    once_total: int = 0
    kept: Mapping[tuple[int, str], int] = field(default_factory=dict)

    def __add__(self, other: Size) -> Size:
        return Size(
            self.const + other.const,
            self.turn + other.turn,
            self.each + other.each,
            self.total + other.total,
            self.once_each + other.once_each,
            self.once_total + other.once_total,
            {key: self.kept.get(key, 0) + other.kept.get(key, 0) for key in {**self.kept, **other.kept}},
        )

    def __or__(self, other: Size) -> Size:
        """Bound both: whichever of two texts it is."""
        return Size(
            max(self.const, other.const),
            max(self.turn, other.turn),
            max(self.each, other.each),
            max(self.total, other.total),
            max(self.once_each, other.once_each),
            max(self.once_total, other.once_total),
            {key: max(self.kept.get(key, 0), other.kept.get(key, 0)) for key in {**self.kept, **other.kept}},
        )

    def times(self, factor: int) -> Size:
        """Bound as many texts as long as this one."""
        return Size(
            self.const * factor,
            self.turn * factor,
            self.each * factor,
            self.total * factor,
            self.once_each * factor,
            self.once_total * factor,
            {key: count * factor for key, count in self.kept.items()},
        )

    def in_first_pass(self) -> Size:
        """Bound a text that only the first pass of a loop has."""
        return replace(
            self,
            each=0,
            total=0,
            once_each=self.once_each + self.each,
            once_total=self.once_total + self.total,
        )

    def of_any_turn(self) -> Size:
        """Bound it after the loop: no message is longer than all are."""
        return Size(
            self.const,
            0,
            self.each + self.once_each,
            self.turn + self.total + self.once_total,
            kept=self.kept,
        )

    def over_all_turns(self) -> Size:
        """Bound the sum over a pass for every message.

        Raises:
            NotLinearError: a pass has what grows with the conversation.

        """
        if self.each or self.total or any(self.kept.values()):
            raise NotLinearError
        return Size(0, 0, self.const + self.once_each, self.turn + self.once_total)

    @property
    def none(self) -> bool:
        """Whether the text is empty."""
        known = (self.const, self.turn, self.each, self.total, self.once_each, self.once_total)
        return not any(known) and not any(self.kept.values())


NOTHING: Final = Size()


class Value:
    """What is known of a variable: by itself nothing. It may be asked about, and not written."""


@dataclass(frozen=True, slots=True)
class Known(Value):
    """A constant of the template."""

    value: object


@dataclass(frozen=True, slots=True)
class Missing(Value):
    """Not defined: written as nothing, and false."""


@dataclass(frozen=True, slots=True)
class String(Value):
    """A text of which only the length is bounded.

    Attributes:
        size: its length.
        sure: whether it is a text at all: else it may also be missing, or null, true, false or a number, each no
            longer when it is written.

    """

    size: Size
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Falsy(Value):
    """Counts as false; nothing else is known of it."""


@dataclass(frozen=True, slots=True)
class Number(Value):
    """A small whole number: an index, a count, a sum or difference of them."""


@dataclass(frozen=True, slots=True)
class Truth(Value):
    """True or false."""


@dataclass(frozen=True, slots=True)
class Turns(Value):
    """The messages, or some of them."""


@dataclass(frozen=True, slots=True)
class TurnOf(Value):
    """One message: the one that a loop is at or, if there is one, any."""

    at: bool


@dataclass(frozen=True, slots=True)
class Pieces(Value):
    """A text that was split: no piece is longer than it."""

    size: Size


@dataclass(frozen=True, slots=True)
class LoopOf(Value):
    """What a loop tells of itself."""


@dataclass(frozen=True, slots=True)
class Namespace(Value):
    """A namespace; what is in it is part of the state."""

    key: int


UNKNOWN: Final = Value()
MISSING: Final = Missing()
_NUMBER_BYTES: Final = 32
_FALSE_BYTES: Final = 5
_MOST: Final = 10**15


def size_of(value: Value) -> Size:
    """Bound the length of a value when it is written.

    Raises:
        NotLinearError: its length is not known.

    """
    match value:
        case String(size, _):
            return size
        case Missing():
            return NOTHING
        case Number():
            return Size(_NUMBER_BYTES)
        case Truth():
            return Size(_FALSE_BYTES)
        case Known(constant):
            return Size(len(str(constant).encode()))
        case _:
            raise NotLinearError


def is_number(value: Value) -> bool:
    """Whether it is a small whole number."""
    if isinstance(value, Known):
        return isinstance(value.value, int) and not isinstance(value.value, bool) and abs(value.value) < _MOST
    return isinstance(value, Number)


def is_string(value: Value) -> bool:
    """Whether it is a text."""
    return isinstance(value, String) or (isinstance(value, Known) and isinstance(value.value, str))


def joined(one: Value, other: Value) -> Value:
    """Give what is known of a value that is one or the other."""
    if one == other and not (isinstance(one, Known) and _differ(one, other)):
        return one
    values = (one, other)
    if isinstance(one, TurnOf) and isinstance(other, TurnOf):
        return TurnOf(at=False)
    if is_number(one) and is_number(other):
        return Number()
    if all(is_truth(value) for value in values):
        return Truth()
    if all(_is_scalar(value) for value in values):
        return String(size_of(one) | size_of(other), sure=is_sure(one) and is_sure(other))
    return UNKNOWN


def _differ(one: Known, other: Value) -> bool:
    """Whether two constants that Python calls equal are not the same: 1 and True."""
    return not isinstance(other, Known) or type(one.value) is not type(other.value) or isinstance(one.value, list)


def _is_scalar(value: Value) -> bool:
    constant = isinstance(value, Known) and isinstance(value.value, str | int | float | None)
    return constant or isinstance(value, String | Missing | Number | Truth)


def is_truth(value: Value) -> bool:
    """Whether it is true or false, and nothing that counts as such."""
    return isinstance(value, Truth) or (isinstance(value, Known) and isinstance(value.value, bool))


def is_sure(value: Value) -> bool:
    """Whether it is a text that is there."""
    return is_string(value) and not (isinstance(value, String) and not value.sure)


def is_opaque(value: Value) -> bool:
    """Whether not even its type is known."""
    return type(value) is Value or isinstance(value, Falsy)


def truth_of(value: Value) -> bool | None:
    """Tell whether a value counts as true, or None if that is not known."""
    match value:
        case Known(constant):
            return bool(constant)
        case Missing() | Falsy():
            return False
        case TurnOf(True) | Namespace() | LoopOf():
            return True
        case _:
            return None
