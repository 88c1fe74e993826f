"""Small checkpoints with random weights, written as Hugging Face writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.model.runner import Chunk, Runner

Floats = NDArray[np.float32]
Weights = dict[str, Floats]

PAGE_TOKENS = 4
POISON = np.array([0xA5A5A5A5], dtype=np.uint32).view(np.float32)[0]


def llama(**changes: Any) -> dict[str, Any]:
    """Give the config.json of a small Llama with grouped queries."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    } | changes


def deepseek(**changes: Any) -> dict[str, Any]:
    """Give the config.json of a small DeepSeek V3 without experts."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 3,
        "q_lora_rank": 20,
        "kv_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 6,
        "v_head_dim": 10,
        "rope_interleave": True,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
    } | changes


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Give the tensors of a model."""
    hidden, vocab, inner = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        attention = _latent(config) if "kv_lora_rank" in config else _full(config)
        found |= {f"{layer}.self_attn.{name}": shape for name, shape in attention.items()}
        found |= {f"{layer}.{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            found[f"{layer}.mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                found[f"{layer}.mlp.{name}_proj.bias"] = shape[:1]
    return found


def _full(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    qwen = config["architectures"] == ["Qwen2ForCausalLM"]
    biased = "qkvo" if config.get("attention_bias") else "qkv" if qwen else ""
    found: dict[str, tuple[int, ...]] = {
        "q_proj.weight": (heads * head_dim, hidden),
        "k_proj.weight": (kv_heads * head_dim, hidden),
        "v_proj.weight": (kv_heads * head_dim, hidden),
        "o_proj.weight": (hidden, heads * head_dim),
    }
    return found | {f"{one}_proj.bias": found[f"{one}_proj.weight"][:1] for one in biased}


def _latent(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, rank, compressed = (
        config[name] for name in ("hidden_size", "num_attention_heads", "kv_lora_rank", "q_lora_rank")
    )
    nope, rope, value = (config[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    found: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (rank + rope, hidden),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (nope + value), rank),
        "o_proj.weight": (hidden, heads * value),
    }
    if compressed is None:
        found["q_proj.weight"] = (heads * (nope + rope), hidden)
    else:
        found["q_a_proj.weight"] = (compressed, hidden)
        found["q_a_layernorm.weight"] = (compressed,)
        found["q_b_proj.weight"] = (heads * (nope + rope), compressed)
    if config["attention_bias"]:
        biased = ["kv_a_proj_with_mqa", "o_proj"] + (["q_a_proj"] if compressed is not None else [])
        found |= {f"{name}.bias": found[f"{name}.weight"][:1] for name in biased}
    return found


def weights(config: dict[str, Any], seed: int = 0) -> Weights:
    """Draw weights that keep the activations near 1, so that a wrong one shows in the logits."""
    draws = np.random.default_rng(seed)
    found: Weights = {}
    for name, shape in shapes(config).items():
        values = draws.standard_normal(shape, dtype=np.float32)
        if name.endswith(("norm.weight", ".bias")):
            found[name] = values * np.float32(0.3) + np.float32("norm" in name)
        else:
            found[name] = values * np.float32(1.5 / np.sqrt(shape[1]))
    return found


def encode(values: Floats, dtype: str) -> bytes:
    """Give the bytes of a tensor in its file; bfloat16 by cutting off."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def safetensors(tensors: Weights, dtype: str = "F32", pad: int = 0) -> bytes:
    """Give a safetensors file. `pad` spaces follow the header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        content = encode(values, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode() + b" " * pad
    return len(text).to_bytes(8, "little") + text + data


def write(directory: Path, config: dict[str, Any], tensors: Weights | None = None, dtype: str = "F32") -> Path:
    """Write a checkpoint."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(safetensors(weights(config) if tensors is None else tensors, dtype))
    return directory


def load(directory: Path, config: dict[str, Any], tensors: Weights | None = None) -> Runner:
    """Write a checkpoint and load it on a single rank."""
    return Runner(Checkpoint.open(write(directory, config, tensors)))


def pool_for(runner: Runner, pages: int = 64) -> Floats:
    """Give a pool whose pages nobody has written."""
    return np.full((pages, PAGE_TOKENS, runner.slot_floats), POISON, dtype=np.float32)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Give some tokens of the small models."""
    return tuple(np.random.default_rng(seed).integers(0, 61, length).tolist())


def table(*, pages: int = 64, length: int, seed: int = 0) -> tuple[int, ...]:
    """Give pages for so many tokens, in no order."""
    return tuple(np.random.default_rng(seed).permutation(pages)[: -(-length // PAGE_TOKENS)].tolist())


def whole(runner: Runner, tokens: tuple[int, ...]) -> Floats:
    """Give the logits after the last token, computed in one pass over a fresh pool."""
    logits: Floats = runner.forward([Chunk(tokens, 0, table(length=len(tokens)))], pool_for(runner))[0]
    return logits
