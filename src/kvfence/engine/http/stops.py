"""Find stop strings in text that arrives in parts."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Passes text on until a stop string ends in it; that string and what follows it is dropped.

    Text that may begin a stop string is held back until it is known not to. The string that is complete first counts,
    and of those complete at once the longest: so how the text is split makes no difference. Time is linear in the
    text, whatever the strings (Knuth, Morris and Pratt's automaton, one a string).

    Attributes:
        found: whether a stop string was found; nothing is passed on from then on.

    """

    def __init__(self, strings: Sequence[str]) -> None:
        """Look for some strings, none of them empty."""
        self.found = False
        self._strings = tuple(strings)
        self._fallbacks = tuple(_fallback(string) for string in strings)
        self._begun = [0] * len(self._strings)
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next part of the text, and give what can be passed on."""
        if self.found:
            return ""
        if not self._strings:
            return text
        known = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            longest = self._step(character)
            if longest:
                self.found = True
                self._held = ""
                return known[: end - longest]
        held = max(self._begun)
        self._held = known[len(known) - held :]
        return known[: len(known) - held]

    def finish(self) -> str:
        """Give what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> int:
        """Read a character: the length of the longest stop string that ends with it, or 0."""
        longest = 0
        for index, (string, fallback) in enumerate(zip(self._strings, self._fallbacks, strict=True)):
            begun = self._begun[index]
            while begun and string[begun] != character:
                begun = fallback[begun - 1]
            begun += string[begun] == character
            if begun == len(string):
                longest = max(longest, begun)
                begun = fallback[begun - 1]
            self._begun[index] = begun
        return longest


def _fallback(string: str) -> list[int]:
    """For each beginning of a string, the length of the longest shorter beginning that it ends with."""
    lengths = [0] * len(string)
    length = 0
    for index in range(1, len(string)):
        while length and string[index] != string[length]:
            length = lengths[length - 1]
        length += string[index] == string[length]
        lengths[index] = length
    return lengths
