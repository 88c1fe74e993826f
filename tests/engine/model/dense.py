"""The models once more, plainly: the whole sequence at once in float64, every score written out, no pages, no ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engine.model.checkpoints import Weights

Doubles = NDArray[np.float64]


def logits(config: dict[str, Any], tensors: Weights, tokens: tuple[int, ...]) -> Doubles:
    """Give the logits after each token, [n, vocab]."""
    weights = {name: values.astype(np.float64) for name, values in tensors.items()}
    state = weights["model.embed_tokens.weight"][list(tokens)]
    eps = config["rms_norm_eps"]
    for number in range(config["num_hidden_layers"]):
        own = {
            name.removeprefix(f"model.layers.{number}."): values
            for name, values in weights.items()
            if name.startswith(f"model.layers.{number}.")
        }
        rows = norm(state, own["input_layernorm.weight"], eps)
        state = state + (latent(config, own, rows) if "kv_lora_rank" in config else full(config, own, rows))
        rows = norm(state, own["post_attention_layernorm.weight"], eps)
        gate = linear(own, "mlp.gate_proj", rows)
        state = state + linear(own, "mlp.down_proj", gate / (1 + np.exp(-gate)) * linear(own, "mlp.up_proj", rows))
    out = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    found: Doubles = norm(state, weights["model.norm.weight"], eps) @ out.T
    return found


def norm(rows: Doubles, weight: Doubles, eps: float) -> Doubles:
    scaled: Doubles = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + eps) * weight
    return scaled


def linear(own: dict[str, Doubles], name: str, rows: Doubles) -> Doubles:
    mapped: Doubles = rows @ own[f"{name}.weight"].T
    return mapped + own[f"{name}.bias"] if f"{name}.bias" in own else mapped


def full(config: dict[str, Any], own: dict[str, Doubles], rows: Doubles) -> Doubles:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    query = linear(own, "self_attn.q_proj", rows).reshape(-1, heads, head_dim)
    key = linear(own, "self_attn.k_proj", rows).reshape(-1, kv_heads, head_dim)
    value = linear(own, "self_attn.v_proj", rows).reshape(-1, kv_heads, head_dim)
    mixed = []
    for head in range(heads):
        other = head // (heads // kv_heads)
        turned_query, turned_key = (turn(config, one, halves=True) for one in (query[:, head], key[:, other]))
        mixed.append(attend(turned_query, turned_key, value[:, other]))
    return linear(own, "self_attn.o_proj", np.concatenate(mixed, axis=1))


def latent(config: dict[str, Any], own: dict[str, Doubles], rows: Doubles) -> Doubles:
    heads, rank, nope = config["num_attention_heads"], config["kv_lora_rank"], config["qk_nope_head_dim"]
    halves = not config.get("rope_interleave", True)
    if config["q_lora_rank"] is None:
        query = linear(own, "self_attn.q_proj", rows)
    else:
        compressed = norm(linear(own, "self_attn.q_a_proj", rows), own["self_attn.q_a_layernorm.weight"], 1e-6)
        query = linear(own, "self_attn.q_b_proj", compressed)
    query = query.reshape(len(rows), heads, -1)
    both = linear(own, "self_attn.kv_a_proj_with_mqa", rows)
    shared = turn(config, both[:, rank:], halves=halves)
    unpacked = linear(own, "self_attn.kv_b_proj", norm(both[:, :rank], own["self_attn.kv_a_layernorm.weight"], 1e-6))
    unpacked = unpacked.reshape(len(rows), heads, -1)
    mixed = []
    for head in range(heads):
        turned = turn(config, query[:, head, nope:], halves=halves)
        asked = np.concatenate([query[:, head, :nope], turned], axis=1)
        mixed.append(
            attend(asked, np.concatenate([unpacked[:, head, :nope], shared], axis=1), unpacked[:, head, nope:])
        )
    return linear(own, "self_attn.o_proj", np.concatenate(mixed, axis=1))


def attend(query: Doubles, key: Doubles, value: Doubles) -> Doubles:
    scores = query @ key.T / math.sqrt(query.shape[1])
    scores[np.triu_indices(len(query), 1)] = -np.inf
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed: Doubles = shares / shares.sum(axis=1, keepdims=True) @ value
    return mixed


def turn(config: dict[str, Any], rows: Doubles, *, halves: bool) -> Doubles:
    """Rotate pair by pair, as complex numbers."""
    width = rows.shape[1]
    turned = np.empty_like(rows)
    for pair in range(width // 2):
        one, other = (pair, pair + width // 2) if halves else (2 * pair, 2 * pair + 1)
        angle = np.arange(len(rows)) * frequency(config, pair, width)
        product = (rows[:, one] + 1j * rows[:, other]) * np.exp(1j * angle)
        turned[:, one], turned[:, other] = product.real, product.imag
    return turned


def frequency(config: dict[str, Any], pair: int, width: int) -> float:
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    plain = float(given.get("rope_theta", config.get("rope_theta", 10000.0)) ** (-2 * pair / width))
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return plain
    factor: float = given["factor"]
    if kind == "linear":
        return plain / factor
    original, low, high = (
        given[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    length = 2 * math.pi / plain
    if length < original / high:
        return plain
    if length > original / low:
        return plain / factor
    smooth = (original / length - low) / (high - low)
    return float((1 - smooth) * plain / factor + smooth * plain)
