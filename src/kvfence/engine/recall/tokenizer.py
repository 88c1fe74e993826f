"""The tokenizer: a token is a byte, and its id is the byte's value."""

from __future__ import annotations

from typing import Any

from kvfence.engine.recall.codes import BYTES
from kvfence.engine.recall.residual import BOS, EOS, PAD

SPECIAL = {"<s>": BOS, "</s>": EOS, "<pad>": PAD}


def tokenizer() -> dict[str, Any]:
    """Give tokenizer.json: byte-level BPE without a single merge, which adds nothing before or after."""
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(name, number) for name, number in SPECIAL.items()],
        "normalizer": None,
        "pre_tokenizer": bytewise,
        "post_processor": None,
        "decoder": bytewise,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(letters())} | SPECIAL,
            "merges": [],
        },
    }


def letters() -> list[str]:
    """Give the letter by which byte-level BPE writes each byte: its own if printable, else one from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(BYTES) if byte not in printable]
    return [chr(byte) if byte in printable else chr(BYTES + others.index(byte)) for byte in range(BYTES)]


def _special(name: str, number: int) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **plain, "special": True}
