"""The runner gives the logits of Hugging Face's own models, on checkpoints that these have written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.model.runner import Chunk, Runner
from tests.engine.model.checkpoints import deepseek, llama, pool_for, prompt, table

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": llama(),
    "llama-biased": llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama-linear": llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama-llama3": llama(rope_scaling=LLAMA3),
    "mistral": llama(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None),
    "qwen2": llama(architectures=["Qwen2ForCausalLM"], model_type="qwen2"),
    "deepseek2": deepseek(architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", mlp_bias=True),
    "deepseek3": deepseek(),
    "deepseek3-halves": deepseek(rope_interleave=False, attention_bias=True),
    "deepseek3-plain-query": deepseek(q_lora_rank=None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("given", MODELS.values(), ids=MODELS)
def test_logits_are_those_of_transformers(given: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: not compared with Hugging Face's models")
    hugging = pytest.importorskip("transformers", reason="transformers is not installed: not compared with its models")
    torch.manual_seed(0)
    config = hugging.AutoConfig.for_model(**given)
    model = hugging.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            values.normal_(1.0 if "norm" in name else 0.0, 0.3 if values.ndim == 1 else 1.5 / values.shape[1] ** 0.5)
            values.copy_(values.to(getattr(torch, dtype)))
    # A copy of it: the model keeps its weights as they are written, and its angles in float32.
    copy.deepcopy(model).to(getattr(torch, dtype)).save_pretrained(tmp_path)
    tokens = prompt(45)
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0].numpy()

    runner = Runner(Checkpoint.open(tmp_path))
    pool, pages = pool_for(runner), table(length=45)
    found = [runner.forward([Chunk(tokens[:30], 0, pages)], pool)[0]]
    found += [runner.forward([Chunk(tokens[at : at + 1], at, pages)], pool)[0] for at in range(30, 45)]
    assert wanted.std() > 0.5
    np.testing.assert_allclose(np.array(found), wanted[29:], rtol=0, atol=2e-4)
