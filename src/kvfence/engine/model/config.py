"""What the runner needs of a checkpoint's config.json. What it cannot compute exactly is refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvfence.engine.model.fields import Fields
from kvfence.fence.units import FULL, LATENT

DEFAULT: Final = "default"
LINEAR: Final = "linear"
LLAMA3: Final = "llama3"


@dataclass(frozen=True)
class RopeConfig:
    """How positions become angles.

    Attributes:
        theta: the base.
        kind: `DEFAULT`; `LINEAR`: every angle is divided by `factor`; `LLAMA3`: those of long wavelengths are.
        factor: see there.
        low: for `LLAMA3`: wavelengths above original / low, in tokens, are divided by the whole factor.
        high: for `LLAMA3`: those below original / high are kept; between the two it is interpolated.
        original: for `LLAMA3`: tokens of the context that the model was first trained for.

    """

    theta: float
    kind: str = DEFAULT
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192


@dataclass(frozen=True)
class LatentConfig:
    """Widths of multi-head latent attention (MLA), per head where they are of heads.

    Attributes:
        query_rank: width of the compressed query; None if it is not compressed.
        rank: width of the latent of keys and values.
        nope: width of the part of query and key without position.
        rope: width of the rotated part; of the key it is shared by all heads.
        value: width of the value.
        interleaved: whether the pairs to rotate lie side by side in the checkpoint, rather than half a width apart.

    """

    query_rank: int | None
    rank: int
    nope: int
    rope: int
    value: int
    interleaved: bool


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model.

    Attributes:
        architecture: its name in config.json.
        vocab: token ids are in [0, vocab).
        hidden: width of the residual stream.
        layers: how many there are.
        heads: query heads.
        kv_heads: key and value heads; with latents, as many as heads.
        head_dim: width of a head; with latents, that of a query.
        intermediate: width of the MLP.
        positions: tokens of the longest context that the model is made for.
        epsilon: of the RMS norms.
        rope: how positions become angles.
        tied: whether the embeddings are the output weights too.
        input_bias: whether the projections into attention have biases (of MLA: those into the compressed spaces).
        output_bias: whether the one out of attention has one.
        mlp_bias: whether those of the MLP have.
        latent: the widths of latent attention; None for full attention.

    """

    architecture: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    positions: int
    epsilon: float
    rope: RopeConfig
    tied: bool = False
    input_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    latent: LatentConfig | None = None

    @property
    def kind(self) -> str:
        """The cache kind, `kvfence.fence.units.FULL` or `LATENT`."""
        return FULL if self.latent is None else LATENT


def parse(fields: Fields) -> ModelConfig:
    """Read a config.json.

    Raises:
        InputError: a member is missing or wrong, or asks for something that the runner does not compute.

    """
    names = fields.values.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.fail("architectures", "is no list of one name")
    reader = _READERS.get(names[0])
    if reader is None:
        raise fields.fail("architectures", f"is not supported; supported are {', '.join(_READERS)}")
    if fields.has("quantization_config"):
        raise fields.fail("quantization_config", "quantized weights are not supported")
    if fields.text("hidden_act", "silu") != "silu":
        raise fields.fail("hidden_act", "is not supported; only silu is")
    return reader(names[0], fields)


def _full(name: str, fields: Fields, *, in_bias: bool, out_bias: bool, mlp_bias: bool) -> ModelConfig:
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.fail("num_key_value_heads", f"{kv_heads} do not divide the {heads} attention heads")
    if not fields.has("head_dim") and hidden % heads:
        raise fields.fail("head_dim", f"is missing, and {heads} heads do not divide the hidden size {hidden}")
    head_dim = fields.whole("head_dim", hidden // heads or None)
    if head_dim % 2:
        raise fields.fail("head_dim", f"{head_dim} is odd, and cannot be rotated in pairs")
    return ModelConfig(
        architecture=name,
        vocab=fields.whole("vocab_size"),
        hidden=hidden,
        layers=fields.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.whole("intermediate_size"),
        positions=fields.whole("max_position_embeddings"),
        epsilon=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(fields),
        tied=fields.flag("tie_word_embeddings"),
        input_bias=in_bias,
        output_bias=out_bias,
        mlp_bias=mlp_bias,
    )


def _llama(name: str, fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    return _full(name, fields, in_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def _mistral(name: str, fields: Fields) -> ModelConfig:
    if fields.has("sliding_window"):
        raise fields.fail("sliding_window", "sliding window attention is not supported")
    return _full(name, fields, in_bias=False, out_bias=False, mlp_bias=False)


def _qwen2(name: str, fields: Fields) -> ModelConfig:
    if fields.flag("use_sliding_window"):
        raise fields.fail("use_sliding_window", "sliding window attention is not supported")
    kinds = fields.values.get("layer_types") or ()
    if not isinstance(kinds, list | tuple) or any(kind != "full_attention" for kind in kinds):
        raise fields.fail("layer_types", "only full_attention is supported")
    return _full(name, fields, in_bias=True, out_bias=False, mlp_bias=False)


def _deepseek2(name: str, fields: Fields) -> ModelConfig:
    return _deepseek(name, fields, interleaved=True, mlp_bias=fields.flag("mlp_bias"))


def _deepseek3(name: str, fields: Fields) -> ModelConfig:
    return _deepseek(name, fields, interleaved=fields.flag("rope_interleave", default=True), mlp_bias=False)


def _deepseek(name: str, fields: Fields, *, interleaved: bool, mlp_bias: bool) -> ModelConfig:
    layers, heads = fields.whole("num_hidden_layers"), fields.whole("num_attention_heads")
    dense = fields.values.get("first_k_dense_replace")
    if not isinstance(dense, int) or dense < layers:
        raise fields.fail(
            "first_k_dense_replace", f"mixture-of-experts layers are not supported: it must be {layers} or more"
        )
    rope = _rope(fields)
    if rope.kind != DEFAULT:
        raise fields.fail("rope_scaling", f"{rope.kind} is not supported with latent attention")
    if "q_lora_rank" not in fields.values:
        raise fields.fail("q_lora_rank", "is missing; null says that queries are not compressed")
    latent = LatentConfig(
        query_rank=fields.whole("q_lora_rank") if fields.has("q_lora_rank") else None,
        rank=fields.whole("kv_lora_rank"),
        nope=fields.whole("qk_nope_head_dim"),
        rope=fields.whole("qk_rope_head_dim"),
        value=fields.whole("v_head_dim"),
        interleaved=interleaved,
    )
    if latent.rope % 2:
        raise fields.fail("qk_rope_head_dim", f"{latent.rope} is odd, and cannot be rotated in pairs")
    bias = fields.flag("attention_bias")
    return ModelConfig(
        architecture=name,
        vocab=fields.whole("vocab_size"),
        hidden=fields.whole("hidden_size"),
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=latent.nope + latent.rope,
        intermediate=fields.whole("intermediate_size"),
        positions=fields.whole("max_position_embeddings"),
        epsilon=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        tied=fields.flag("tie_word_embeddings"),
        input_bias=bias,
        output_bias=bias,
        mlp_bias=mlp_bias,
        latent=latent,
    )


def _rope(fields: Fields) -> RopeConfig:
    """Read the angles: `rope_parameters` holds all of them, or `rope_scaling` all but theta."""
    given = fields.child("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    if any(isinstance(value, dict) for value in given.values.values()):
        raise given.fail("rope_type", "angles that differ by layer are not supported")
    for holder in (fields, given):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            raise holder.fail("partial_rotary_factor", "heads that are rotated in part are not supported")
    theta = given.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = given.text("rope_type", given.text("type", DEFAULT))
    if kind == DEFAULT:
        return RopeConfig(theta)
    if kind == LINEAR:
        return RopeConfig(theta, LINEAR, given.number("factor"))
    if kind != LLAMA3:
        raise given.fail("rope_type", f"is not supported; supported are {DEFAULT}, {LINEAR} and {LLAMA3}")
    low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
    if high <= low:
        raise given.fail("high_freq_factor", "is not above low_freq_factor")
    return RopeConfig(theta, LLAMA3, given.number("factor"), low, high, given.whole("original_max_position_embeddings"))


_READERS: Final[dict[str, Callable[[str, Fields], ModelConfig]]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "DeepseekV2ForCausalLM": _deepseek2,
    "DeepseekV3ForCausalLM": _deepseek3,
}
