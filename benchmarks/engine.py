"""What all mechanisms together cost an engine in time to the first token, and how fast it is.

Two engines of one prefill and one decode worker are up at once, one with all mechanisms on and one with none but
`ready-before-send`, without which pages are sent before they are computed: the answer would be another, and early.
Each prompt goes to both, one after the other, in random order, and both must give the same token. Prompts are random
tokens, all different, and the prefix cache is off. What is stated is the median over the prompts of the ratio within a
pair, with its quartiles. Two models: the recall model, which is tiny, and a Llama with random weights.

    make bench
    python benchmarks/engine.py --seconds 60 --ranks 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from kvfence.engine.coordinator import Coordinator
from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import Variant
from kvfence.engine.request import Job, Sampling
from kvfence.engine.settings import Settings
from kvfence.fence import ALL, SWITCHES

AIM = 1.05
LENGTHS = (256, 1024, 3000)
FEWEST, MOST = 5, 80
"""Pairs of one length."""
LOADS = {1: (800, 48, 5), 8: (256, 192, 1)}
"""How decode is timed, by requests at once: tokens of prompt and answer, and rounds. Answers outlast the prefills."""
ON, OFF = "on", "off"
BARE: Final = ALL.without(*(switch for switch in SWITCHES if switch != "ready-before-send"))

Engines = dict[str, Coordinator]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def write_llama(directory: Path) -> None:
    """Write a checkpoint with random weights."""
    rng = np.random.default_rng(20260901)
    hidden, inner, vocab, kept = 512, 1408, 4096, 4 * 64
    shapes = {"self_attn.q_proj": (1024, hidden), "self_attn.o_proj": (hidden, 1024), "mlp.down_proj": (hidden, inner)}
    shapes |= {f"self_attn.{name}_proj": (kept, hidden) for name in "kv"}
    shapes |= {f"mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
    whole = {f"model.layers.{layer}.{name}.weight": shape for layer in range(4) for name, shape in shapes.items()}
    whole |= {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden)}
    weights = {name: (rng.standard_normal(shape) / 32).astype(np.float32) for name, shape in whole.items()}
    norms = [f"model.layers.{layer}.{name}_layernorm" for layer in range(4) for name in ("input", "post_attention")]
    weights |= {f"{name}.weight": np.ones(hidden, np.float32) for name in (*norms, "model.norm")}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(LLAMA))
    save_file(weights, directory / "model.safetensors")


def engine(model: Path, ranks: int, transport: str, *, fenced: bool) -> Coordinator:
    """Give an engine. It may be weakened in the lab only; but what the lab records is not to be timed."""
    on = ALL if fenced else BARE
    settings = Settings(
        model, ranks=ranks, transport=transport, context_length=4096, prefix_cache=False, on=on, lab=True
    )
    made = Coordinator(settings)
    made.plan.settings = replace(settings, lab=False)
    return made


@asynccontextmanager
async def engines(model: Path, ranks: int, transport: str) -> AsyncIterator[Engines]:
    """Start both."""
    async with (
        engine(model, ranks, transport, fenced=True) as fenced,
        engine(model, ranks, transport, fenced=False) as bare,
    ):
        yield {ON: fenced, OFF: bare}


def prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    """Give random tokens that either model has."""
    return tuple(rng.randrange(256) for _ in range(length))


async def times(one: Coordinator, tokens: tuple[int, ...], answer: int) -> tuple[list[int], list[float]]:
    """Give the tokens of an answer and when each came, in seconds from the start of the request."""
    began = time.perf_counter()
    job = Job("job", "tenant", tokens, Sampling(max_tokens=answer))
    came = [(piece.token, time.perf_counter() - began) async for piece in one.generate(job)]
    return [token for token, _ in came], [moment for _, moment in came]


async def spent(one: Coordinator, worker: str, before: dict[str, float] | None = None) -> dict[str, float]:
    """Give what rank 0 of a worker has counted, or has since `before`."""
    now = (await one.statuses())[worker][0].totals
    return now if before is None else {name: value - before.get(name, 0.0) for name, value in now.items()}


async def first_tokens(both: Engines, length: int, seconds: float, rng: random.Random) -> dict[str, Any]:
    """Time the first token of both engines, prompt by prompt."""
    found: dict[str, list[float]] = {ON: [], OFF: []}
    before = {name: await spent(one, "prefill-0") for name, one in both.items()}
    end = time.monotonic() + seconds
    while len(found[ON]) < FEWEST or (time.monotonic() < end and len(found[ON]) < MOST):
        tokens, answers = prompt(rng, length), []
        for name in rng.sample((ON, OFF), 2):
            answer, (first,) = await times(both[name], tokens, 1)
            answers.append(answer)
            found[name].append(first)
            await asyncio.sleep(0.01)  # for what follows the last token
        assert answers[0] == answers[1]
    pairs = len(found[ON])
    low, middle, high = quantiles((on / off for on, off in zip(found[ON], found[OFF], strict=True)), n=4)
    passes = {name: (await spent(one, "prefill-0", before[name]))["seconds:compute"] for name, one in both.items()}
    return {
        "length": length,
        "pairs": pairs,
        **{f"{name}_ms": median(found[name]) * 1e3 for name in both},
        **{f"{name}_outside_ms": (sum(found[name]) - passes[name]) / pairs * 1e3 for name in both},
        "ratio": middle,
        "quartiles": (low, high),
        "prefill_tokens_per_second": length / median(found[ON]),
    }


async def decode(one: Coordinator, requests: int, rng: random.Random) -> tuple[float, float]:
    """Give tokens a second while all requests decode, and the share of the canary check in the time of a step."""
    await times(one, prompt(rng, 16), 1)
    before = await spent(one, "decode-0")
    length, answer, _ = LOADS[requests]
    jobs = [times(one, prompt(rng, length), answer) for _ in range(requests)]
    came = [moments for _, moments in await asyncio.gather(*jobs)]
    counted = await spent(one, "decode-0", before)
    # They begin one after the other: what counts is from the last first token to the first last one.
    began, end = max(moments[0] for moments in came), min(moments[-1] for moments in came)
    assert began < end, "the requests did not overlap"
    tokens = sum(began < moment <= end for moments in came for moment in moments)
    check, step = counted.get("seconds:check", 0.0), counted["seconds:step"]
    return tokens / (end - began), check / (check + step)


async def decoding(both: Engines, requests: int, rng: random.Random) -> dict[str, Any]:
    """Time decode on both engines, in turns."""
    found: dict[str, list[tuple[float, float]]] = {ON: [], OFF: []}
    for _ in range(LOADS[requests][2]):
        for name in rng.sample((ON, OFF), 2):
            found[name].append(await decode(both[name], requests, rng))
    return {
        "requests": requests,
        **{f"{name}_tokens_per_second": median(speed for speed, _ in found[name]) for name in both},
        "ratio": median(on / off for (on, _), (off, _) in zip(found[ON], found[OFF], strict=True)),
        "check_share": median(share for _, share in found[ON]),
    }


async def measure(name: str, model: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Measure a model, and print each figure as it comes."""
    rng = random.Random(20260901)
    rows, steps = [], []
    async with engines(model, given.ranks, given.transport) as both:
        for one in both.values():
            await times(one, prompt(rng, 600), 4)
        for length in LENGTHS:
            rows.append(await first_tokens(both, length, given.seconds, rng))
            print(_first_line(name, rows[-1]), flush=True)
        for requests in LOADS:
            steps.append(await decoding(both, requests, rng))
            print(_decode_line(name, steps[-1]), flush=True)
    return {"first_token": rows, "decode": steps}


def _first_line(name: str, row: dict[str, Any]) -> str:
    low, high = row["quartiles"]
    missed = "" if row["ratio"] <= AIM else f", above the aim of {AIM} by {row['ratio'] - AIM:.3f}"
    return (
        f"{name:>6} {row['length']:>5} tokens: first token {row['on_ms']:8.1f} ms on, {row['off_ms']:8.1f} ms off, "
        f"ratio {row['ratio']:.3f} ({low:.3f} to {high:.3f}, {row['pairs']} pairs){missed}; "
        f"{row['on_outside_ms']:.1f} and {row['off_outside_ms']:.1f} ms of it outside of forward passes; "
        f"prefill {row['prefill_tokens_per_second']:,.0f} tokens a second"
    )


def _decode_line(name: str, row: dict[str, Any]) -> str:
    return (
        f"{name:>6} {row['requests']:>5} at once: decode {row['on_tokens_per_second']:,.0f} tokens a second on, "
        f"{row['off_tokens_per_second']:,.0f} off, ratio {row['ratio']:.2f}; "
        f"the canary check is {row['check_share']:.1%} of a step over {LOADS[row['requests']][0]} tokens"
    )


def main() -> None:
    """Measure both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help=f"for each length, but at least {FEWEST} pairs")
    parser.add_argument("--ranks", type=int, default=1, help="of each worker")
    parser.add_argument("--transport", default="shared-memory")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON as well")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        models = {name: Path(directory) / name for name in ("recall", "llama")}
        write_recall(models["recall"], Variant())
        write_llama(models["llama"])
        found = {name: asyncio.run(measure(name, model, given)) for name, model in models.items()}
    ratios = [row["ratio"] for rows in found.values() for row in rows["first_token"]]
    verdict = "met" if max(ratios) <= AIM else f"missed in {sum(ratio > AIM for ratio in ratios)} of {len(ratios)}"
    print(f"first token with all mechanisms on against none, aim at most {AIM}: {verdict}, at most {max(ratios):.3f}")
    if given.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
