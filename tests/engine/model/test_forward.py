"""The runner gives the logits of the plain models, however a sequence is cut, batched and spread over pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.model.runner import Chunk, Runner
from kvfence.fence.units import FULL, LATENT
from tests.engine.model import dense
from tests.engine.model.checkpoints import (
    PAGE_TOKENS,
    POISON,
    Floats,
    deepseek,
    llama,
    load,
    pool_for,
    prompt,
    table,
    weights,
    whole,
    write,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "grouped": llama(),
    "multi-head": llama(num_key_value_heads=None) | {"num_key_value_heads": 4},
    "multi-query": llama(num_key_value_heads=1),
    "biased": llama(attention_bias=True, mlp_bias=True),
    "tied": llama(tie_word_embeddings=True),
    "one-layer": llama(num_hidden_layers=1),
    "wide-heads": llama(head_dim=24),
    "no-head-dim": llama(head_dim=None),
    "linear": llama(rope_scaling={"type": "linear", "factor": 4.0}),
    "llama3": llama(rope_scaling=LLAMA3, rope_theta=500.0),
    "rope-parameters": llama(rope_theta=None, rope_parameters=LLAMA3 | {"rope_theta": 500.0}),
    "mistral": llama(architectures=["MistralForCausalLM"], sliding_window=None),
    "qwen2": llama(architectures=["Qwen2ForCausalLM"], use_sliding_window=False, sliding_window=4),
    "latent": deepseek(),
    "latent-plain-query": deepseek(q_lora_rank=None),
    "latent-halves": deepseek(rope_interleave=False),
    "latent-biased": deepseek(attention_bias=True),
    "latent-biased-plain-query": deepseek(attention_bias=True, q_lora_rank=None, tie_word_embeddings=True),
    "deepseek2": deepseek(architectures=["DeepseekV2ForCausalLM"], mlp_bias=True),
}
TWO = {name: MODELS[name] for name in ("grouped", "latent")}

each_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
each_kind = pytest.mark.parametrize("config", TWO.values(), ids=TWO)


def close(found: Floats, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-5)


@each_model
def test_logits_are_those_of_the_plain_model(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = weights(config)
    runner = load(tmp_path, config, tensors)
    tokens = prompt(45)
    wanted = dense.logits(config, tensors, tokens)
    close(whole(runner, tokens), wanted[-1])
    assert wanted[-1].std() > 0.5  # the comparison is of something


@each_model
def test_decode_continues_as_the_plain_model_does(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = weights(config)
    runner = load(tmp_path, config, tensors)
    tokens = prompt(23)
    wanted = dense.logits(config, tensors, tokens)
    pool, pages = pool_for(runner), table(length=23)
    close(runner.forward([Chunk(tokens[:18], 0, pages)], pool)[0], wanted[17])
    for place in range(18, 23):
        close(runner.forward([Chunk((tokens[place],), place, pages)], pool)[0], wanted[place])


@each_kind
@pytest.mark.parametrize("size", [1, 3, 4, 7, 16, 29])
def test_a_chunked_prompt_is_the_whole_prompt(config: dict[str, Any], size: int, tmp_path: Path) -> None:
    runner = load(tmp_path, config)
    tokens, pages = prompt(30), table(length=30)
    at_once, in_parts = pool_for(runner), pool_for(runner)
    wanted = runner.forward([Chunk(tokens, 0, pages)], at_once)
    found = wanted
    for start in range(0, 30, size):
        found = runner.forward([Chunk(tokens[start : start + size], start, pages)], in_parts)
    close(found, wanted)
    close(in_parts, at_once)


@each_kind
def test_requests_of_a_batch_are_what_they_are_alone(config: dict[str, Any], tmp_path: Path) -> None:
    """A pass mixes a prompt, a later part of one, and single tokens; the pages of each lie among the others'."""
    runner = load(tmp_path, config)
    pool = pool_for(runner)
    free = np.random.default_rng(3).permutation(64).tolist()
    chunks, wanted = [], []
    for number, (before, count) in enumerate([(0, 9), (11, 6), (17, 1), (4, 1), (30, 1)]):
        tokens = prompt(before + count, seed=number)
        pages = tuple(free.pop() for _ in range(-(-len(tokens) // PAGE_TOKENS)))
        if before:
            runner.forward([Chunk(tokens[:before], 0, pages)], pool)
        chunks.append(Chunk(tokens[before:], before, pages))
        wanted.append(whole(runner, tokens))
    close(runner.forward(chunks, pool), np.array(wanted))


@each_kind
def test_where_the_pages_lie_makes_no_difference(config: dict[str, Any], tmp_path: Path) -> None:
    runner = load(tmp_path, config)
    tokens = prompt(26)
    orders = [tuple(range(7)), tuple(reversed(range(64))), table(length=26, seed=1), table(length=26, seed=2)]
    found = [runner.forward([Chunk(tokens, 0, pages)], pool_for(runner))[0] for pages in orders]
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


@each_kind
def test_what_another_table_names_is_what_is_attended_to(config: dict[str, Any], tmp_path: Path) -> None:
    runner = load(tmp_path, config)
    pool = pool_for(runner)
    mine, theirs = prompt(16, seed=1), prompt(16, seed=2)
    runner.forward([Chunk(mine, 0, (0, 1, 2, 3)), Chunk(theirs, 0, (10, 11, 12, 13))], pool)
    copies = [pool.copy() for _ in range(3)]
    right = runner.forward([Chunk((5,), 16, (0, 1, 2, 3, 4))], copies[0])[0]
    wrong = runner.forward([Chunk((5,), 16, (0, 11, 2, 3, 4))], copies[1])[0]
    assert np.abs(right - wrong).max() > 0.01
    # The same bytes in the right page have the same effect: nothing but the pages is read.
    copies[2][1] = copies[2][11]
    np.testing.assert_array_equal(runner.forward([Chunk((5,), 16, (0, 1, 2, 3, 4))], copies[2])[0], wrong)


@each_kind
def test_a_page_shared_by_two_requests_serves_both(config: dict[str, Any], tmp_path: Path) -> None:
    """Also when it is filled in the same pass."""
    runner = load(tmp_path, config)
    shared, one, other = prompt(8), prompt(5, seed=1), prompt(3, seed=2)
    chunks = [Chunk(shared + one, 0, (0, 1, 2, 3)), Chunk(other, 8, (0, 1, 9))]
    found = runner.forward(chunks, pool_for(runner))
    close(found, np.array([whole(runner, shared + one), whole(runner, shared + other)]))


@each_kind
def test_others_may_keep_something_between_slots_and_pages(config: dict[str, Any], tmp_path: Path) -> None:
    runner = load(tmp_path, config)
    memory = np.full((64, PAGE_TOKENS + 1, runner.slot_floats + 6), POISON, dtype=np.float32)
    tokens, pages = prompt(21), table(length=22)
    dense_pool, sparse_pool = pool_for(runner), memory[:, :PAGE_TOKENS, 2:-4]
    for chunk in (Chunk(tokens, 0, pages), Chunk((4,), 21, pages)):
        wanted = runner.forward([chunk], dense_pool)
        np.testing.assert_array_equal(runner.forward([chunk], sparse_pool), wanted)
    np.testing.assert_array_equal(sparse_pool, dense_pool)
    sparse_pool[:] = POISON
    assert (memory == POISON).all()


@each_kind
def test_only_the_slots_of_the_chunk_are_written(config: dict[str, Any], tmp_path: Path) -> None:
    runner = load(tmp_path, config)
    pool = pool_for(runner)
    runner.forward([Chunk(prompt(5), 0, (7, 2, 9))], pool)
    written = (pool != POISON).any(axis=2)
    assert {(int(page), int(place)) for page, place in np.argwhere(written)} == {(7, 0), (7, 1), (7, 2), (7, 3), (2, 0)}
    assert (pool[written] != POISON).all()


@each_kind
@pytest.mark.parametrize("garbage", [POISON, np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_garbage_in_a_page_spoils_no_other_request(config: dict[str, Any], garbage: float, tmp_path: Path) -> None:
    runner = load(tmp_path, config)
    pool = pool_for(runner)
    tokens = prompt(10)
    runner.forward([Chunk(tokens, 0, (0, 1, 2))], pool)
    pool[20:24] = garbage
    found = runner.forward([Chunk((3,), 16, (20, 21, 22, 23, 24)), Chunk((3,), 10, (0, 1, 2))], pool)
    assert np.isfinite(found).all()
    close(found[1], whole(runner, (*tokens, 3)))


@each_kind
def test_nothing_after_the_last_token_is_read(config: dict[str, Any], tmp_path: Path) -> None:
    runner = load(tmp_path, config)
    pool = np.full((64, PAGE_TOKENS, runner.slot_floats), np.nan, dtype=np.float32)
    tokens = prompt(9)
    close(runner.forward([Chunk(tokens, 0, table(length=40))], pool)[0], whole(runner, tokens))


def test_a_slot_of_full_attention_is_keys_then_values_by_layer(tmp_path: Path) -> None:
    config = llama()
    tensors = weights(config)
    runner = load(tmp_path, config, tensors)
    assert (runner.kind, runner.slot_floats) == (FULL, 3 * 2 * 2 * 8)
    pool = pool_for(runner)
    runner.forward([Chunk((17,), 0, (1,))], pool)
    slot = pool[1, 0].reshape(3, 2, 2, 8)
    rows = dense.norm(
        tensors["model.embed_tokens.weight"][[17]].astype(np.float64),
        tensors["model.layers.0.input_layernorm.weight"].astype(np.float64),
        1e-5,
    )
    close(slot[0, 0].reshape(-1), (rows @ tensors["model.layers.0.self_attn.k_proj.weight"].T)[0])  # not turned at 0
    close(slot[0, 1].reshape(-1), (rows @ tensors["model.layers.0.self_attn.v_proj.weight"].T)[0])


def test_a_slot_of_latent_attention_is_latent_then_rope_key_by_layer(tmp_path: Path) -> None:
    runner = load(tmp_path, deepseek())
    assert (runner.kind, runner.slot_floats) == (LATENT, 3 * (12 + 6))


@each_kind
def test_an_mlp_that_adds_nothing_is_left_out(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = weights(config)
    tensors["model.layers.1.mlp.down_proj.weight"][:] = 0
    runner = load(tmp_path, config, tensors)
    assert [layer.mlp is None for layer in runner.layers] == [False, True, False]
    tokens = prompt(20)
    close(whole(runner, tokens), dense.logits(config, tensors, tokens)[-1])


def test_a_bias_keeps_an_mlp(tmp_path: Path) -> None:
    config = llama(mlp_bias=True)
    tensors = weights(config)
    tensors["model.layers.1.mlp.down_proj.weight"][:] = 0
    runner = load(tmp_path, config, tensors)
    assert all(layer.mlp is not None for layer in runner.layers)
    tokens = prompt(20)
    close(whole(runner, tokens), dense.logits(config, tensors, tokens)[-1])


def test_no_chunks_give_no_logits(tmp_path: Path) -> None:
    runner = load(tmp_path, llama())
    assert runner.forward([], pool_for(runner)).shape == (0, 61)


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        (Chunk((), 0, (1,)), "one or more token ids"),
        (Chunk((61,), 0, (1,)), "one or more token ids"),
        (Chunk((-1,), 0, (1,)), "one or more token ids"),
        (Chunk((1 << 80,), 0, (1,)), "one or more token ids"),
        (Chunk((1,), -1, (1,)), "not covered"),
        (Chunk((1,), 4, (1,)), "not covered"),
        (Chunk((1, 2, 3, 4, 5), 0, (1,)), "not covered"),
        (Chunk((1,), 0, ()), "not covered"),
        (Chunk((1,), 0, (64,)), "not in"),
        (Chunk((1,), 0, (-1,)), "not in"),
    ],
)
def test_a_chunk_that_does_not_fit_is_refused(chunk: Chunk, words: str, tmp_path: Path) -> None:
    runner = load(tmp_path, llama())
    pool = pool_for(runner)
    with pytest.raises(ValueError, match=words):
        runner.forward([Chunk((1,), 0, (5,)), chunk], pool)
    assert (pool == POISON).all()


def test_a_pool_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    runner = load(tmp_path, llama())
    pool = pool_for(runner)
    locked = pool.copy()
    locked.flags.writeable = False
    sparse = np.repeat(pool, 2, axis=2)[..., ::2]
    wrongs: list[Any] = [pool[..., :-1], pool[0], pool[:0], pool[:, :0], pool.astype(np.float64), locked, sparse]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="the pool"):
            runner.forward([Chunk((1,), 0, (0,))], wrong)


def test_a_rank_that_is_none_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write(tmp_path, llama()))
    for rank, ranks in ((-1, 1), (1, 1), (0, 0)):
        with pytest.raises(ValueError, match="no rank"):
            Runner(checkpoint, rank=rank, ranks=ranks)
