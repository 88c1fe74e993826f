"""What a config.json asks for is computed or refused, with the field that asks."""

from __future__ import annotations

from typing import Any

import pytest

from kvfence.engine.model.config import RopeConfig, parse
from kvfence.engine.model.fields import Fields
from kvfence.errors import InputError
from tests.engine.model.checkpoints import deepseek, llama

LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


def without(config: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != name}


def test_a_config_is_read() -> None:
    config = parse(Fields("config.json", llama(eos_token_id=[1, 2], torch_dtype="bfloat16")))
    assert (config.vocab, config.hidden, config.layers, config.intermediate, config.positions) == (61, 32, 3, 48, 256)
    assert (config.heads, config.kv_heads, config.head_dim) == (4, 2, 8)
    assert config.rope == RopeConfig(10000.0)
    assert (config.tied, config.latent) == (False, None)


def test_what_is_left_out_is_as_in_a_plain_llama() -> None:
    given = llama()
    for name in ("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "tie_word_embeddings"):
        given = without(given, name)
    config = parse(Fields("config.json", given))
    assert (config.kv_heads, config.head_dim, config.epsilon, config.rope.theta) == (4, 8, 1e-6, 10000.0)


@pytest.mark.parametrize("theta", [{"rope_theta": 7}, {"rope_theta": 9, "rope_parameters": {"rope_theta": 7}}])
def test_theta_is_found_in_either_place(theta: dict[str, Any]) -> None:
    assert parse(Fields("config.json", llama(**theta))).rope.theta == 7


REFUSED = [
    ("architectures", llama(architectures=["GPT2LMHeadModel"]), "supported are LlamaForCausalLM"),
    ("architectures", llama(architectures=[]), "no list of one name"),
    ("architectures", llama(architectures=[3]), "no list of one name"),
    ("architectures", llama(architectures="LlamaForCausalLM"), "no list of one name"),
    ("architectures", without(llama(), "architectures"), "no list of one name"),
    ("hidden_act", llama(hidden_act="gelu"), "only silu"),
    ("hidden_act", llama(hidden_act=["silu"]), "no string"),
    ("quantization_config", llama(quantization_config={"quant_method": "fp8"}), "not supported"),
    ("hidden_size", llama(hidden_size=None), "missing"),
    ("hidden_size", llama(hidden_size="32"), "no whole number"),
    ("hidden_size", llama(hidden_size=32.0), "no whole number"),
    ("hidden_size", llama(hidden_size=True), "no whole number"),
    ("hidden_size", llama(hidden_size=0), "no whole number"),
    ("hidden_size", llama(hidden_size=1 << 40), "no whole number"),
    ("num_hidden_layers", llama(num_hidden_layers=-1), "no whole number"),
    ("max_position_embeddings", llama(max_position_embeddings=None), "missing"),
    ("num_key_value_heads", llama(num_key_value_heads=3), "do not divide"),
    ("head_dim", llama(head_dim=7), "odd"),
    ("head_dim", llama(head_dim=None, num_attention_heads=6), "do not divide"),
    ("rms_norm_eps", llama(rms_norm_eps=0), "finite number above 0"),
    ("rms_norm_eps", llama(rms_norm_eps=False), "finite number above 0"),
    ("rms_norm_eps", llama(rms_norm_eps="1e-5"), "finite number above 0"),
    ("rms_norm_eps", llama(rms_norm_eps=10**400), "finite number above 0"),
    ("rms_norm_eps", llama(rms_norm_eps=float("nan")), "finite number above 0"),
    ("tie_word_embeddings", llama(tie_word_embeddings=1), "neither true nor false"),
    ("attention_bias", llama(attention_bias="no"), "neither true nor false"),
    ("partial_rotary_factor", llama(partial_rotary_factor=0.5), "rotated in part"),
    ("rope_parameters.partial_rotary_factor", llama(rope_parameters={"partial_rotary_factor": 0.5}), "in part"),
    ("rope_scaling", llama(rope_scaling="linear"), "no object"),
    ("rope_scaling.rope_type", llama(rope_scaling={"rope_type": "yarn", "factor": 4}), "linear and llama3"),
    ("rope_scaling.rope_type", llama(rope_scaling={"type": "dynamic", "factor": 4}), "linear and llama3"),
    ("rope_scaling.rope_type", llama(rope_scaling={"rope_type": 3}), "no string"),
    ("rope_scaling.factor", llama(rope_scaling={"type": "linear"}), "missing"),
    ("rope_scaling.factor", llama(rope_scaling={"type": "linear", "factor": -1}), "above 0"),
    ("rope_scaling.original_max_position_embeddings", llama(rope_scaling=LLAMA3), "missing"),
    ("rope_scaling.high_freq_factor", llama(rope_scaling=LLAMA3 | {"high_freq_factor": 1}), "not above"),
    ("rope_parameters.rope_type", llama(rope_parameters={"full_attention": {"rope_theta": 1}}), "differ by layer"),
    ("sliding_window", llama(architectures=["MistralForCausalLM"], sliding_window=8), "sliding window"),
    ("use_sliding_window", llama(architectures=["Qwen2ForCausalLM"], use_sliding_window=True), "sliding window"),
    ("layer_types", llama(architectures=["Qwen2ForCausalLM"], layer_types=["sliding_attention"]), "full_attention"),
    ("layer_types", llama(architectures=["Qwen2ForCausalLM"], layer_types=7), "full_attention"),
    ("first_k_dense_replace", deepseek(first_k_dense_replace=2), "mixture-of-experts"),
    ("first_k_dense_replace", deepseek(first_k_dense_replace=0), "mixture-of-experts"),
    ("first_k_dense_replace", without(deepseek(), "first_k_dense_replace"), "mixture-of-experts"),
    ("q_lora_rank", without(deepseek(), "q_lora_rank"), "missing"),
    ("q_lora_rank", deepseek(q_lora_rank=0), "no whole number"),
    ("kv_lora_rank", deepseek(kv_lora_rank=None), "missing"),
    ("qk_rope_head_dim", deepseek(qk_rope_head_dim=5), "odd"),
    ("rope_scaling", deepseek(rope_scaling={"type": "linear", "factor": 4}), "latent attention"),
    ("rope_scaling.rope_type", deepseek(rope_scaling={"type": "yarn", "factor": 40}), "not supported"),
]


@pytest.mark.parametrize(
    ("field", "config", "words"), REFUSED, ids=[f"{number}-{one[0]}" for number, one in enumerate(REFUSED)]
)
def test_what_cannot_be_computed_is_refused(field: str, config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse(Fields("config.json", config))
    assert (caught.value.source, caught.value.field) == ("config.json", field)
