"""The two architectures as their definitions read, in NumPy, over the files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def load(directory: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read config.json and the tensors, bfloat16 widened to float32."""
    raw = (directory / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            piece = data[slice(*entry["data_offsets"])]
            if entry["dtype"] == "BF16":
                flat = (np.frombuffer(piece, "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                flat = np.frombuffer(piece, "<f4")
            tensors[name] = flat.reshape(entry["shape"])
    return json.loads((directory / "config.json").read_text()), tensors


def norm(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight)


def turned(x: Array, y: Array, positions: Array, base: float) -> list[Array]:
    """Rotate the pairs (x, y), whose last axis counts them, by position times frequency."""
    pairs = x.shape[-1]
    angle = positions[:, None, None] * np.float32(base) ** (-np.arange(pairs, dtype=np.float32) / pairs)
    return [x * np.cos(angle) - y * np.sin(angle), y * np.cos(angle) + x * np.sin(angle)]


class Model:
    """A checkpoint with a cache of keys and values per layer."""

    def __init__(self, directory: Path) -> None:
        self.config, self.w = load(directory)
        self.cache: list[tuple[Array, Array] | None] = [None] * self.config["num_hidden_layers"]
        self.seen = 0

    def forward(self, tokens: list[int]) -> Array:
        """Take tokens after those seen, and give the logits of each."""
        x = self.w["model.embed_tokens.weight"][tokens]
        positions = np.arange(self.seen, self.seen + len(tokens), dtype=np.float32)
        for layer in range(len(self.cache)):
            at = f"model.layers.{layer}."
            h = norm(x, self.w[at + "input_layernorm.weight"])
            made = self.latent if "kv_lora_rank" in self.config else self.full
            q, k, v = made(h, positions, at + "self_attn.")
            if (old := self.cache[layer]) is not None:
                k, v = np.concatenate([old[0], k]), np.concatenate([old[1], v])
            self.cache[layer] = k, v
            x = x + self.attend(q, k, v, positions) @ self.w[at + "self_attn.o_proj.weight"].T
            h = norm(x, self.w[at + "post_attention_layernorm.weight"])
            gate = h @ self.w[at + "mlp.gate_proj.weight"].T
            x = (
                x
                + (gate / (1 + np.exp(-gate)) * (h @ self.w[at + "mlp.up_proj.weight"].T))
                @ self.w[at + "mlp.down_proj.weight"].T
            )
        self.seen += len(tokens)
        return norm(x, self.w["model.norm.weight"]) @ self.w["lm_head.weight"].T

    def attend(self, q: Array, k: Array, v: Array, positions: Array) -> Array:
        groups = np.arange(q.shape[1]) * k.shape[1] // q.shape[1]  # the key-value head of each query head
        score = q.swapaxes(0, 1) @ k[:, groups].transpose(1, 2, 0) / np.sqrt(np.float32(q.shape[-1]))
        score[:, np.arange(len(k)) > positions[:, None]] = -np.inf
        share = np.exp(score - score.max(-1, keepdims=True))
        out = share / share.sum(-1, keepdims=True) @ v[:, groups].swapaxes(0, 1)
        return np.asarray(out.swapaxes(0, 1).reshape(len(q), -1))

    def full(self, h: Array, positions: Array, at: str) -> tuple[Array, Array, Array]:
        dim, base = self.config["head_dim"], self.config["rope_theta"]
        q, k, v = ((h @ self.w[f"{at}{name}_proj.weight"].T).reshape(len(h), -1, dim) for name in ("q", "k", "v"))
        half = dim // 2
        q, k = (np.concatenate(turned(x[..., :half], x[..., half:], positions, base), axis=-1) for x in (q, k))
        return q, k, v

    def latent(self, h: Array, positions: Array, at: str) -> tuple[Array, Array, Array]:
        c = self.config
        heads, nope, rank, base = c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"], c["rope_theta"]
        q = (h @ self.w[at + "q_proj.weight"].T).reshape(len(h), heads, -1)
        down = h @ self.w[at + "kv_a_proj_with_mqa.weight"].T
        up = norm(down[:, :rank], self.w[at + "kv_a_layernorm.weight"]) @ self.w[at + "kv_b_proj.weight"].T
        up = up.reshape(len(h), heads, -1)
        rot_q, rot_k = (
            np.concatenate(turned(x[..., 0::2], x[..., 1::2], positions, base), axis=-1)
            for x in (q[..., nope:], down[:, None, rank:])
        )
        rot_k = np.repeat(rot_k, heads, axis=1)
        keys = np.concatenate([up[..., :nope], rot_k], axis=-1)
        return np.concatenate([q[..., :nope], rot_q], axis=-1), keys, up[..., nope:]

    def generate(self, prompt: bytes, count: int) -> bytes:
        """Answer greedily; ids above 255 show as a question mark."""
        tokens, out = list(prompt), []
        for _ in range(count):
            tokens = [int(self.forward(tokens)[-1].argmax())]
            out.append(min(tokens[0], ord("?")) if tokens[0] > 255 else tokens[0])
        return bytes(out)
