"""What bytes a token stands for, and the text of tokens that come one by one.

A token's bytes do not depend on its neighbours: they are what it adds in the middle of a text. An answer is the middle
of one, since a prompt is before it. So a stream decodes every token once, and joins bytes to characters.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

from tokenizers import Tokenizer

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_characters() -> dict[str, int]:
    """Give the byte for which each character stands in a byte-level vocabulary (as GPT-2 chose them)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTES: Final = _byte_characters()


class Pieces:
    """The bytes of a vocabulary's tokens.

    Args:
        tokenizer: whose tokens.
        decoders: the types of the tokenizer's decoders, in their order.

    Raises:
        ValueError: byte-level decoding is mixed with steps that need whole characters, so no token has bytes of
            its own.

    """

    def __init__(self, tokenizer: Tokenizer, decoders: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._byte_level = "ByteLevel" in decoders
        self._byte_fallback = "ByteFallback" in decoders
        if self._byte_level and set(decoders) - {"ByteLevel", "Fuse"}:
            raise ValueError("mixes ByteLevel with other steps")
        self._specials = {
            token: added.content.encode()
            for token, added in tokenizer.get_added_tokens_decoder().items()
            if added.special
        }
        self._known: dict[int, bytes] = {}
        self.longest = max(map(len, tokenizer.get_vocab()), default=1)  # characters of a token as it is spelled

    def text(self, token: int) -> bytes:
        """Give what a token adds to an answer: nothing if it is special, or not of this vocabulary."""
        return b"" if token in self._specials else self.name(token)

    def name(self, token: int) -> bytes:
        """Give what a token is written as where tokens are listed: as in a text, and a special one as it is called."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._specials.get(token) or self._decode(token)
        return found

    def _decode(self, token: int) -> bytes:
        spelled = self._tokenizer.id_to_token(token)
        if spelled is None:
            return b""
        if self._byte_level:
            codes = [_BYTES.get(character) for character in spelled]
            return bytes(code for code in codes if code is not None) if None not in codes else spelled.encode()
        if self._byte_fallback and (byte := _BYTE_TOKEN.fullmatch(spelled)):
            return bytes([int(byte[1], 16)])
        # At the start of a text, some decoders take a space away: so ask for what the token adds to itself.
        once = self._tokenizer.decode([token], skip_special_tokens=False)
        return self._tokenizer.decode([token, token], skip_special_tokens=False)[len(once) :].encode()


class Stream:
    """Turns an answer's tokens into text, never with half a character."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Take a token, and give the characters that are complete with it; wrong bytes become U+FFFD."""
        return self._decoder.decode(self._pieces.text(token))

    def finish(self) -> str:
        """Give what stands for half a character, when no more tokens come."""
        return self._decoder.decode(b"", final=True)
