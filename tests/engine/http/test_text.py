"""A model's text files: what they make of prompts, conversations and tokens, and damage to them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from kvfence.counting.template import UnwritableError
from kvfence.engine.http.text import Text
from kvfence.errors import InputError
from tests.engine.http.models import ASSISTANT, END, SPECIALS, TEMPLATE, USER, tokenizer, write_model

ASKED = [{"role": "user", "content": "hi"}]
BYTES = Tokenizer.from_str(json.dumps(tokenizer()))


def decoded(text: Text, tokens: list[int]) -> str:
    stream = text.stream()
    return "".join([*map(stream.push, tokens), stream.finish()])


def test_prompts_and_conversations_become_tokens(text: Text) -> None:
    assert text.encode("hé") == (104, 195, 169)
    assert text.chat(ASKED) == (USER, 104, 105, END, ASSISTANT)
    assert text.chat(ASKED, add_generation_prompt=False) == (USER, 104, 105, END)
    assert text.stop_tokens == (END,)
    assert text.vocabulary == 259


@given(tokens=st.lists(st.integers(0, 260), max_size=40))
def test_a_stream_gives_what_the_whole_does(text: Text, tokens: list[int]) -> None:
    assert decoded(text, tokens) == BYTES.decode([token for token in tokens if token < 259])


@given(words=st.text(max_size=20))
def test_a_character_comes_whole_or_not_at_all(text: Text, words: str) -> None:
    stream = text.stream()
    parts = [stream.push(token) for token in words.encode()]
    assert "".join(parts) == words
    assert stream.finish() == ""
    assert all(len(part) <= 1 for part in parts)


def test_wrong_bytes_do_not_hold_up_a_stream(text: Text) -> None:
    stream = text.stream()
    assert [stream.push(token) for token in (0xFF, 0xE4, 0xBD, 0x41)] == ["\ufffd", "", "", "\ufffdA"]
    assert stream.push(0xF0) == ""
    assert stream.finish() == "\ufffd"


def test_a_stream_takes_the_same_work_for_every_token(text: Text) -> None:
    calls = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            nonlocal calls
            calls += 1
            return getattr(pieces, name)

    pieces, stream = text._pieces, text.stream()
    stream._pieces = Counting()  # type: ignore[assignment]
    for token in random.Random(1).choices(range(259), k=5000):
        stream.push(token)
    assert calls == 5000
    assert len(stream._decoder.getstate()[0]) < 4


def test_tokens_have_names_of_bytes(text: Text) -> None:
    assert [text.name(token) for token in (65, 0xE4, END, 9999)] == [b"A", b"\xe4", b"<|end|>", b""]


def sentencepiece(decoder: list[dict[str, Any]]) -> dict[str, Any]:
    words = ["<unk>", "▁Hello", "▁", "a", "▁a", ",", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {word: index for index, word in enumerate(words)}
    model = tokenizer()["model"] | {"vocab": vocab, "unk_token": "<unk>", "byte_fallback": True}
    return tokenizer(
        model=model, added_tokens=[], pre_tokenizer=None, decoder={"type": "Sequence", "decoders": decoder}
    )


LLAMA = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]
METASPACE = [
    {"type": "ByteFallback"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
]


@pytest.mark.parametrize("decoder", [LLAMA, METASPACE])
def test_spaces_and_bytes_of_sentencepiece(tmp_path: Path, decoder: list[dict[str, Any]]) -> None:
    text = Text.open(write_model(tmp_path, tokenizer=sentencepiece(decoder)))
    assert decoded(text, [1, 5, 4, 3, 2, 3]) == " Hello, aa a"
    assert decoded(text, [3, *(6 + byte for byte in "你".encode()), 4]) == "a你 a"
    stream = text.stream()
    assert [stream.push(6 + byte) for byte in "é".encode()] == ["", "é"]


def test_words_of_a_wordpiece_vocabulary(tmp_path: Path) -> None:
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 99,
        "vocab": {"[UNK]": 0, "play": 1, "##ing": 2, ".": 3},
    }
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    made = tokenizer(model=model, decoder=decoder, added_tokens=[], pre_tokenizer={"type": "Whitespace"})
    text = Text.open(write_model(tmp_path, tokenizer=made))
    assert decoded(text, [1, 2, 3, 1]) == " playing. play"
    assert text.encode("playing ?") == (1, 2, 0)


def test_a_text_without_tokens_is_the_clients_error(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    text = Text.open(write_model(tmp_path, tokenizer=tokenizer(model=model, added_tokens=[], pre_tokenizer=None)))
    with pytest.raises(UnwritableError, match="no tokens"):
        text.encode("b")


def test_the_post_processor_adds_to_prompts_only(tmp_path: Path) -> None:
    first = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|user|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|user|>": {"id": "<|user|>", "ids": [USER], "tokens": ["<|user|>"]}},
    }
    text = Text.open(write_model(tmp_path, tokenizer=tokenizer(post_processor=first)))
    assert text.encode("a") == (USER, 97)
    assert text.chat(ASKED)[:2] == (USER, 104)


def test_a_saved_truncation_cuts_no_prompt(tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    text = Text.open(write_model(tmp_path, tokenizer=tokenizer(truncation=cut)))
    assert len(text.encode("abcdef")) == 6


def test_all_files_say_what_ends_an_answer(tmp_path: Path) -> None:
    files = {
        "generation_config": {"eos_token_id": [3, 1]},
        "config": {"eos_token_id": 2, "vocab_size": 300},
        "tokenizer_config": {"eos_token": {"content": "<|end|>", "__type": "AddedToken"}},
    }
    text = Text.open(write_model(tmp_path, **files))
    assert text.stop_tokens == (1, 2, 3, END)
    assert text.vocabulary == 259
    with pytest.raises(UnwritableError, match="no chat template"):
        text.chat(ASKED)


def test_a_model_may_know_fewer_tokens_than_its_tokenizer(tmp_path: Path) -> None:
    assert Text.open(write_model(tmp_path, config={"vocab_size": 100})).vocabulary == 100


def chat_with(directory: Path, template: object, **settings: object) -> str:
    made = write_model(directory, tokenizer_config={"chat_template": template} | settings)
    text = Text.open(made)
    return bytes(text.chat(ASKED)).decode()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ bos_token }}{{ tools is none }}", "<s>True"),
        ("{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ([{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
    ],
)
def test_templates_get_what_hugging_face_gives_them(tmp_path: Path, template: object, expected: str) -> None:
    assert chat_with(tmp_path, template, bos_token="<s>") == expected


def test_a_template_of_its_own_file_counts_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    assert chat_with(tmp_path, "setting") == "file"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "UndefinedError"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{% for x in range(10000000) %}{% endfor %}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_what_a_template_refuses_is_the_clients_error(tmp_path: Path, template: str, said: str) -> None:
    with pytest.raises(UnwritableError, match=said):
        chat_with(tmp_path, template)


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"tokenizer": None}, "tokenizer.json: cannot be read"),
        ({"tokenizer": "{"}, "tokenizer.json: is not JSON"),
        ({"tokenizer": "[]"}, "tokenizer.json: must be a JSON object"),
        ({"tokenizer": {}}, "tokenizer.json: is no tokenizer"),
        ({"tokenizer": tokenizer(decoder={"type": "x"})}, "tokenizer.json: is no tokenizer"),
        (
            {"tokenizer": tokenizer(decoder={"type": "Sequence", "decoders": [tokenizer()["decoder"], LLAMA[3]]})},
            "tokenizer.json: decoder: mixes ByteLevel",
        ),
        (
            {"tokenizer": tokenizer(added_tokens=[], model=tokenizer()["model"] | {"vocab": {}})},
            "tokenizer.json: model.vocab: has no tokens",
        ),
        ({"tokenizer_config": None}, "tokenizer_config.json: cannot be read"),
        ({"tokenizer_config": "[" * 100_000}, "tokenizer_config.json: is not JSON"),
        ({"tokenizer_config": {"eos_token": 3}}, "tokenizer_config.json: eos_token: must be a token's text"),
        ({"tokenizer_config": {"chat_template": "{% if %}"}}, "tokenizer_config.json: chat_template: is no Jinja"),
        (
            {"tokenizer_config": {"chat_template": "{{ x | nope }}"}},
            "tokenizer_config.json: chat_template: is no Jinja",
        ),
        ({"tokenizer_config": {"chat_template": 3}}, "tokenizer_config.json: chat_template: must be a template"),
        ({"tokenizer_config": {"chat_template": [{"name": "default"}]}}, "tokenizer_config.json: chat_template: must"),
        ({"generation_config": {"eos_token_id": "x"}}, "generation_config.json: eos_token_id: must be a token id"),
        ({"generation_config": {"eos_token_id": [True]}}, "generation_config.json: eos_token_id: must be a token id"),
        ({"config": {"eos_token_id": -1}}, "config.json: eos_token_id: must be a token id"),
        ({"config": {"vocab_size": "many"}}, "config.json: vocab_size: must be a number"),
    ],
)
def test_damage_is_named(tmp_path: Path, files: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as caught:
        Text.open(write_model(tmp_path, **files))
    assert place in str(caught.value)


def test_a_template_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"chat_template\.jinja: is not UTF-8"):
        Text.open(write_model(tmp_path))


def test_the_model_of_these_tests_is_what_it_says() -> None:
    assert BYTES.encode(TEMPLATE + SPECIALS[0]).ids[-1] == END
