"""What is written: shapes, bytes, and what is not written over."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from kvfence.engine.recall.files import FILES, parameters, tensors_of, write_recall
from kvfence.engine.recall.storage import bfloat16
from kvfence.engine.recall.variants import CLASSIC, SMALL, Variant
from kvfence.errors import InputError
from tests.engine.recall.memos import label
from tests.engine.recall.reference import load

LATENT = replace(SMALL, attention="latent")
ALL = [SMALL, LATENT, CLASSIC, replace(CLASSIC, attention="latent"), replace(SMALL, kv_heads=1, dtype="float32")]


def shapes(config: dict[str, int], layer: str) -> dict[str, list[int]]:
    """Give the shapes that the architecture of a configuration asks of a layer's attention."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if "kv_lora_rank" in config:
        nope, rope, value = (config[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        rank = config["kv_lora_rank"]
        wanted = {
            "q_proj": [heads * (nope + rope), hidden],
            "kv_a_proj_with_mqa": [rank + rope, hidden],
            "kv_a_layernorm": [rank],
            "kv_b_proj": [heads * (nope + value), rank],
            "o_proj": [hidden, heads * value],
        }
    else:
        wide, narrow = heads * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
        wanted = {
            "q_proj": [wide, hidden],
            "k_proj": [narrow, hidden],
            "v_proj": [narrow, hidden],
            "o_proj": [hidden, wide],
        }
    return {f"model.layers.{layer}.self_attn.{name}.weight": shape for name, shape in wanted.items()}


@pytest.mark.parametrize("variant", ALL, ids=label)
def test_the_tensors_are_those_of_the_configuration(tmp_path: Path, variant: Variant) -> None:
    began = time.perf_counter()
    write_recall(tmp_path / "m", variant)
    assert time.perf_counter() - began < 2
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    with safe_open(tmp_path / "m" / "model.safetensors", "numpy") as opened:
        found = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (it is no dictionary)
        seen = {name: list(entry.get_shape()) for name, entry in found.items()}
        dtypes = {entry.get_dtype() for entry in found.values()}
    hidden, middle = config["hidden_size"], config["intermediate_size"]
    wanted = shapes(config, "0") | shapes(config, "1")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        wanted[name] = [config["vocab_size"], hidden]
    for at in ("model.layers.0", "model.layers.1"):
        wanted |= {f"{at}.{norm}_layernorm.weight": [hidden] for norm in ("input", "post_attention")}
        wanted |= {f"{at}.mlp.{name}_proj.weight": [middle, hidden] for name in ("gate", "up")}
        wanted[f"{at}.mlp.down_proj.weight"] = [hidden, middle]
    assert seen == wanted | {"model.norm.weight": [hidden]}
    assert dtypes == {"BF16" if variant.dtype == "bfloat16" else "F32"}
    assert sum(int(np.prod(shape)) for shape in seen.values()) == parameters(variant)
    assert hidden % config["num_attention_heads"] == 0


def test_the_sizes_are_what_is_told() -> None:
    assert (parameters(SMALL), SMALL.kv_bytes_per_token) == (360_768, 1024)
    assert (parameters(LATENT), LATENT.kv_bytes_per_token) == (371_136, 320)


@pytest.mark.parametrize("variant", [SMALL, LATENT], ids=label)
def test_every_half_of_the_heads_fills_slots_and_says_a_part(variant: Variant) -> None:
    made = tensors_of(variant)
    for layer in (0, 1):
        output = made[f"model.layers.{layer}.self_attn.o_proj.weight"].reshape(variant.hidden, 2, -1)
        written = [set(np.nonzero(output[:, half].any(axis=-1))[0]) for half in (0, 1)]
        assert written[0]
        assert written[1]
        assert not written[0] & written[1]


@pytest.mark.parametrize("variant", [SMALL, LATENT], ids=label)
def test_the_same_bytes_every_time(tmp_path: Path, variant: Variant) -> None:
    for name in ("a", "b", "a"):
        write_recall(tmp_path / name, variant)
    assert sorted(entry.name for entry in (tmp_path / "a").iterdir()) == sorted(FILES)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_rounding_is_to_nearest_and_even() -> None:
    given = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF818000, 0], "<u4").view("<f4")
    assert bfloat16(given).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF82, 0]


def test_the_tensors_read_back_to_within_the_rounding(tmp_path: Path) -> None:
    write_recall(tmp_path, SMALL)
    for name, tensor in load(tmp_path)[1].items():
        np.testing.assert_allclose(tensor, tensors_of(SMALL)[name], rtol=2**-8)


def test_a_token_is_a_byte(tmp_path: Path) -> None:
    write_recall(tmp_path, SMALL)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Grüße, 5 € <b>\n\t\x00 zwei  Leerzeichen 🜚"
    encoded = tokenizer.encode(text)
    assert encoded.ids == list(text.encode())
    assert tokenizer.decode(encoded.ids) == text
    assert [tokenizer.token_to_id(name) for name in ("<s>", "</s>", "<pad>")] == [256, 257, 258]
    assert tokenizer.get_vocab_size() == 259


def test_a_chat_is_its_contents_a_line_each(tmp_path: Path) -> None:
    write_recall(tmp_path, SMALL)
    template = json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    messages = [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]
    assert environment.from_string(template).render(messages=messages) == "one\ntwo"


@pytest.mark.parametrize("name", ["config.json", "notes.txt"])
def test_something_else_is_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="holds something other than a recall model"):
        write_recall(tmp_path, SMALL)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "{}"


def test_a_recall_model_with_a_file_of_the_users_is_left_alone(tmp_path: Path) -> None:
    write_recall(tmp_path, SMALL)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something other"):
        write_recall(tmp_path, LATENT)


@pytest.mark.parametrize("under", ["file", "file/below"])
def test_a_place_that_is_no_directory_is_refused(tmp_path: Path, under: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"is no directory|cannot be written"):
        write_recall(tmp_path / under, SMALL)


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"kv_heads": 3}, "3 key-value heads do not divide 16 heads"),
        ({"kv_heads": 0}, "0 key-value heads"),
        ({"positions": 63}, "63 positions are not from 64 to 131072"),
        ({"slots": 0}, "0 slots recognise nothing"),
        ({"slots": 12}, "too small for the 65 in use"),
        ({"slot_dims": 3}, "3 dimensions per slot"),
        ({"word_dims": 20}, "20 dimensions per byte"),
        ({"head_dim": 48}, "a head of 48 dimensions has no room"),
        ({"hidden": 72}, "no multiple of 16 heads"),
        ({"word_dims": 256, "hidden": 320}, "cannot say 128"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(SMALL, **sizes)
