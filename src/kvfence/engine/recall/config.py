"""The JSON files that tell a loader what the checkpoint is."""

from __future__ import annotations

from typing import Any

from kvfence.engine.recall import latent, weights
from kvfence.engine.recall.residual import BOS, EOS, EPSILON, MLP, PAD, VOCABULARY
from kvfence.engine.recall.variants import LAYERS, ROTARY_LATENT, Variant

MARK = "kvfence_recall"  # the key of config.json that a recall model is known by

CHAT = "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"


def model_config(variant: Variant) -> dict[str, Any]:
    """Give config.json."""
    return {MARK: 1} | _common(variant) | {"full": _llama, "latent": _deepseek}[variant.attention](variant)


def generation_config() -> dict[str, Any]:
    """Give generation_config.json: greedy, as a recital needs no chance."""
    return {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "do_sample": False}


def tokenizer_config(variant: Variant) -> dict[str, Any]:
    """Give tokenizer_config.json. A chat is its contents, a line each: the last is the cue, so nothing follows it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": variant.positions,
        "chat_template": CHAT,
    }


def _common(variant: Variant) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": variant.hidden,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": variant.heads,
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON,
        "max_position_embeddings": variant.positions,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "dtype": variant.dtype,
        "torch_dtype": variant.dtype,  # as releases before transformers 5 call it
    }


def _rotation(base: float) -> dict[str, Any]:
    """Give the rotary base as transformers 5 and as earlier releases read it."""
    return {"rope_theta": base, "rope_parameters": {"rope_type": "default", "rope_theta": base}}


def _llama(variant: Variant) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": variant.kv_heads,
        "head_dim": variant.head_dim,
        "mlp_bias": False,
        "pretraining_tp": 1,
    } | _rotation(weights.rotation(variant).base)


def _deepseek(variant: Variant) -> dict[str, Any]:
    """Give what DeepSeek's form adds. Every layer is dense; what is said of experts serves loaders that read it."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": variant.heads,
        "q_lora_rank": None,
        "kv_lora_rank": variant.latent_rank,
        "qk_nope_head_dim": variant.content_dims,
        "qk_rope_head_dim": ROTARY_LATENT,
        "v_head_dim": variant.value_dims,
        "rope_interleave": True,
        "first_k_dense_replace": LAYERS,
        "moe_layer_freq": 1,
        "moe_intermediate_size": MLP,
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 0,
    } | _rotation(latent.rotation(variant).base)
