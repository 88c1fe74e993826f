"""Small tokenizers of every kind, as the content of a `tokenizer.json`."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
PRINT = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_CHARS = [chr(byte) for byte in PRINT] + [chr(0x100 + nth) for nth in range(256 - len(PRINT))]

TRICKY = (
    "\ufdfa\ufb03\u212a\u212b\u0344\u0958\u2adc\ufb1d\u0390\u1e69\u0323\u0307\u0301\u0f73\uac01\u1100\u1161\u11a8\u0130\u1e9e"
    "\u2581\u0120\U0001d160\U0001d400\U0002f81a\u4e00\u3000\u00a0\u200b\x00\x7f\u03a3"
)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(st.sampled_from("ab<x>s \n1A." + TRICKY), max_size=40),
    st.tuples(st.sampled_from(["a", " ", "\u2581", "<x>", "<s>", "ab", "x ", *TRICKY]), st.integers(0, 60)).map(
        lambda drawn: drawn[0] * drawn[1]
    ),
)


def _ids(entries: list[str]) -> dict[str, int]:
    return {entry: nth for nth, entry in enumerate(dict.fromkeys(entries))}


def bpe(entries: list[str], merges: list[str], **changed: Any) -> Json:
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False}
    return {**model, "vocab": _ids(entries), "merges": merges, **changed}


BYTE_BPE = bpe(
    [*BYTE_CHARS, "aa", "aaaa", "\u0120\u0120", "\u0120\u0120\u0120\u0120", "\u00cc\u0121"],
    ["a a", "aa aa", "\u0120 \u0120", "\u0120\u0120 \u0120\u0120"],
)
MARKED = ["\u2581", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "a", "aa", "b", "<unk>"]
MARKED_MERGES = ["\u2581 \u2581", "\u2581\u2581 \u2581\u2581", "a a"]
SENTENCE_BPE = bpe([*BYTES, *MARKED], MARKED_MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def unigram(*, byte_fallback: bool) -> Json:
    entries = [*(BYTES if byte_fallback else []), "<unk>", "\u2581", "a", "aaaa", "ab", "\u2581a"]
    vocab = [[entry, -1.0 - nth / 100] for nth, entry in enumerate(entries)]
    return {"type": "Unigram", "unk_id": entries.index("<unk>"), "vocab": vocab, "byte_fallback": byte_fallback}


MODELS: tuple[Json, ...] = (
    BYTE_BPE,
    {**BYTE_BPE, "ignore_merges": True},
    {**BYTE_BPE, "dropout": 0.5},
    bpe(["a", "b", "aa"], ["a a"]),
    bpe(["a", "b", "aa", "<unk>"], ["a a"], unk_token="<unk>"),
    bpe(["a", "b", "aa", "<unk>"], ["a a"], unk_token="<unk>", fuse_unk=True),
    bpe(["a", "b", "a</w>", "b</w>", "aa</w>", "<unk>"], ["a a</w>"], unk_token="<unk>", end_of_word_suffix="</w>"),
    SENTENCE_BPE,
    {**SENTENCE_BPE, "fuse_unk": False},
    bpe([*BYTES, "a", "<unk>"], [], unk_token="<unk>", byte_fallback=True),
    bpe([*list(BYTES)[:-1], "\u2581", "a", "<unk>"], [], unk_token="<unk>", byte_fallback=True),
    bpe([*BYTES, *BYTE_CHARS[:100], "<unk>"], [], unk_token="<unk>", byte_fallback=True),
    unigram(byte_fallback=True),
    unigram(byte_fallback=False),
    {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 10,
        "vocab": _ids(["[UNK]", "a", "##a", "b", "##b", "##1", "x", "<", ">", "##x"]),
    },
    {"type": "WordLevel", "unk_token": "[UNK]", "vocab": _ids(["[UNK]", "a", "ab", "b"])},
)


def sequence(kind: str, steps: list[Json]) -> Json | None:
    """Give the steps as a normalizer, pre-tokenizer or post-processor."""
    return None if not steps else steps[0] if len(steps) == 1 else {"type": "Sequence", kind: steps}


def replace(pattern: str, content: str) -> Json:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def prepend(text: str) -> Json:
    return {"type": "Prepend", "prepend": text}


NORMALIZERS: tuple[Json, ...] = (
    *({"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")),
    replace(" ", "\u2581"),
    replace("a", "bbb"),
    replace("ab", "b"),
    replace("a", ""),
    replace("\u2581", " "),
    replace("``", '"'),
    prepend("\u2581"),
    prepend("ab "),
    {"type": "Strip", "strip_left": True, "strip_right": True},
    *(
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": accents,
            "lowercase": lower,
        }
        for accents in (None, True, False)
        for lower in (True, False)
    ),
)
BYTE_LEVEL: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BEHAVIOURS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
PRE_TOKENIZERS: tuple[Json, ...] = (
    BYTE_LEVEL,
    {**BYTE_LEVEL, "add_prefix_space": True},
    {**BYTE_LEVEL, "add_prefix_space": True, "use_regex": False},
    *(
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}
        for scheme in ("always", "first", "never")
        for split in (True, False)
    ),
    *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")),
    {"type": "CharDelimiterSplit", "delimiter": "a"},
    *({"type": "Digits", "individual_digits": each} for each in (True, False)),
    *({"type": "Punctuation", "behavior": behaviour} for behaviour in _BEHAVIOURS),
    *(
        {"type": "Split", "pattern": {"Regex": "[ab]+|\\s"}, "behavior": behaviour, "invert": invert}
        for behaviour in _BEHAVIOURS
        for invert in (True, False)
    ),
)
TEMPLATE: Json = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<e>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
        "<e>": {"id": "<e>", "ids": [2, 3], "tokens": ["<e>", "<f>"]},
    },
}
POST_PROCESSORS: tuple[Json, ...] = (
    BYTE_LEVEL,
    TEMPLATE,
    {"type": "RobertaProcessing", "sep": ["b", 1], "cls": ["a", 0], "trim_offsets": True, "add_prefix_space": True},
    {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]},
)


def added(content: str, **changed: bool) -> Json:
    token = {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {**token, "special": True, **changed}


ADDED = (
    added("<x>"),
    added("<s>", normalized=True),
    added("x"),
    added("a", normalized=True, special=False),
    added("\ufdfa", normalized=True),
    added("\u212a" * 30, normalized=True),
    added("  "),
    added("<l>", lstrip=True),
    added("\n", rstrip=True),
    added("ab", single_word=True),
)


def document(
    model: Json,
    normalizers: list[Json] | None = None,
    pre_tokenizers: list[Json] | None = None,
    post_processors: list[Json] | None = None,
    added_tokens: list[Json] | None = None,
) -> Json:
    first = len(model["vocab"])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": first + nth, **one} for nth, one in enumerate(added_tokens or [])],
        "normalizer": sequence("normalizers", normalizers or []),
        "pre_tokenizer": sequence("pretokenizers", pre_tokenizers or []),
        "post_processor": sequence("processors", post_processors or []),
        "decoder": None,
        "model": model,
    }


def _some(of: tuple[Json, ...], most: int) -> st.SearchStrategy[list[Json]]:
    return st.lists(st.sampled_from(of), max_size=most)


DOCUMENTS = st.builds(
    document,
    st.sampled_from(MODELS),
    _some(NORMALIZERS, 3),
    _some(PRE_TOKENIZERS, 2),
    _some(POST_PROCESSORS, 2),
    st.lists(st.sampled_from(ADDED), max_size=3, unique_by=lambda one: one["content"]),
)
