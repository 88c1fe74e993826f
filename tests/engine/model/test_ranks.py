"""Ranks that split the heads and the MLP give together what one rank gives, and the same bits each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.model.runner import Chunk, Runner
from kvfence.errors import InputError
from tests.engine.model.checkpoints import PAGE_TOKENS, Floats, deepseek, llama, pool_for, prompt, table, weights, write


class Meeting:
    """What the ranks, threads of one process, have in common."""

    def __init__(self, ranks: int) -> None:
        self.barrier = Barrier(ranks, timeout=10)
        self.parts: list[Floats] = [np.empty(0, dtype=np.float32)] * ranks
        self.sums = 0


class Seat:
    """A rank's collective: everybody lays down a part, and adds up all of them in the same order."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank = meeting, rank

    def sum(self, array: Floats) -> Floats:
        self.meeting.parts[self.rank] = array
        self.meeting.barrier.wait()
        total: Floats = np.sum(self.meeting.parts, axis=0, dtype=np.float32)
        self.meeting.sums += self.rank == 0
        self.meeting.barrier.wait()
        return total


def passes(runner: Runner) -> tuple[list[Floats], Floats]:
    """Run a prompt in two parts, and a batch after it; give all logits and the pool."""
    pool, tokens = pool_for(runner), prompt(26)
    pages, other = table(length=28), tuple(range(60, 64))
    if set(pages) & set(other):
        pages = tuple(range(7))
    calls = [
        [Chunk(tokens[:15], 0, pages)],
        [Chunk(tokens[15:], 15, pages), Chunk(tokens[:9], 0, other)],
        [Chunk((8,), 26, pages), Chunk((9,), 9, other)],
    ]
    return [runner.forward(chunks, pool) for chunks in calls], pool


def together(checkpoint: Checkpoint, ranks: int) -> tuple[list[tuple[list[Floats], Floats]], Meeting]:
    meeting = Meeting(ranks)

    def rank(number: int) -> tuple[list[Floats], Floats]:
        return passes(Runner(checkpoint, rank=number, ranks=ranks, collective=Seat(meeting, number)))

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(rank, range(ranks))), meeting


CASES = [
    pytest.param(llama(), 2, id="a kv head each"),
    pytest.param(llama(), 4, id="two ranks to a kv head"),
    pytest.param(llama(num_key_value_heads=1), 2, id="one kv head for all"),
    pytest.param(llama(num_key_value_heads=4, attention_bias=True, mlp_bias=True), 2, id="multi-head with biases"),
    pytest.param(deepseek(), 2, id="latent"),
    pytest.param(deepseek(q_lora_rank=None, attention_bias=True), 4, id="latent with biases"),
]


@pytest.mark.parametrize(("config", "ranks"), CASES)
def test_ranks_give_together_what_one_gives(config: dict[str, Any], ranks: int, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write(tmp_path, config))
    alone, pool = passes(Runner(checkpoint))
    results, meeting = together(checkpoint, ranks)
    for logits, _ in results:
        for found, wanted in zip(logits, alone, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-5)
    for logits, _ in results[1:]:
        for found, wanted in zip(logits, results[0][0], strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert meeting.sums == 3 * 2 * 3  # passes, sums of a layer, layers
    pools = [part for _, part in results]
    if "kv_lora_rank" in config:
        for part in pools:
            np.testing.assert_allclose(part, pool, rtol=0, atol=3e-5)
            np.testing.assert_array_equal(part, pools[0])
        return
    kv_heads, head_dim = config["num_key_value_heads"], config["head_dim"]
    whole = pool.reshape(64, PAGE_TOKENS, 3, 2, kv_heads, head_dim)
    for rank, part in enumerate(pools):
        held = max(1, kv_heads // ranks)
        first = rank * kv_heads // ranks
        mine = part.reshape(64, PAGE_TOKENS, 3, 2, held, head_dim)
        np.testing.assert_allclose(mine, whole[..., first : first + held, :], rtol=0, atol=3e-5)


def test_every_rank_leaves_out_the_same_mlp(tmp_path: Path) -> None:
    """One rank's share of it is zero; the other's is not."""
    config = llama()
    tensors = weights(config)
    tensors["model.layers.0.mlp.down_proj.weight"][:] = 0
    tensors["model.layers.1.mlp.down_proj.weight"][:, :24] = 0
    checkpoint = Checkpoint.open(write(tmp_path, config, tensors))
    results, meeting = together(checkpoint, 2)
    assert meeting.sums == 3 * (1 + 2 + 2)
    for found, wanted in zip(results[0][0], passes(Runner(checkpoint))[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-5)


def test_a_bias_keeps_an_mlp_on_every_rank(tmp_path: Path) -> None:
    """Also on those that do not add it."""
    config = llama(mlp_bias=True)
    tensors = weights(config)
    tensors["model.layers.0.mlp.down_proj.weight"][:] = 0
    checkpoint = Checkpoint.open(write(tmp_path, config, tensors))
    results, meeting = together(checkpoint, 2)
    assert meeting.sums == 3 * 2 * 3
    for found, wanted in zip(results[1][0], passes(Runner(checkpoint))[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("config", "ranks", "field"),
    [
        (llama(), 3, "num_attention_heads"),
        (llama(num_attention_heads=6, num_key_value_heads=3, head_dim=8), 2, "num_key_value_heads"),
        (llama(num_attention_heads=6, num_key_value_heads=2, head_dim=8), 3, "num_key_value_heads"),
        (llama(intermediate_size=47), 2, "intermediate_size"),
        (deepseek(), 3, "num_attention_heads"),
    ],
)
def test_a_width_that_cannot_be_split_is_refused(
    config: dict[str, Any], ranks: int, field: str, tmp_path: Path
) -> None:
    checkpoint = Checkpoint.open(write(tmp_path, config))
    with pytest.raises(InputError, match=rf"config\.json: {field}: .* cannot be split evenly over {ranks} ranks"):
        Runner(checkpoint, rank=0, ranks=ranks)
