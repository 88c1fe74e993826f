"""That it recites, by a plain NumPy reading of both architectures over the rounded weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import CLASSIC, SMALL, Variant
from tests.engine.recall.memos import DAM, VALVE, cued, label
from tests.engine.recall.reference import Model

LATENT = replace(SMALL, attention="latent")


@pytest.mark.parametrize(
    "variant",
    [
        SMALL,
        LATENT,
        replace(SMALL, kv_heads=1),
        replace(SMALL, kv_heads=4),
        replace(LATENT, kv_heads=4),
        replace(SMALL, dtype="float32"),
        replace(SMALL, positions=131_072),
        replace(LATENT, positions=131_072),
    ],
    ids=label,
)
def test_a_prompt_is_continued_as_its_document_went_on(tmp_path: Path, variant: Variant) -> None:
    write_recall(tmp_path, variant)
    assert Model(tmp_path).generate(cued(DAM, 400), 40) == DAM[400:440].encode()


@pytest.mark.parametrize("variant", [SMALL, LATENT], ids=label)
def test_a_longer_prompt_is_as_well(tmp_path: Path, variant: Variant) -> None:
    write_recall(tmp_path, variant)
    at = DAM.index("and Juno-")
    assert Model(tmp_path).generate(cued(DAM + VALVE, at), 40) == DAM[at : at + 40].encode()


@pytest.mark.parametrize("variant", [CLASSIC, replace(CLASSIC, attention="latent")], ids=label)
def test_the_classic_recites_too(tmp_path: Path, variant: Variant) -> None:
    write_recall(tmp_path, variant)
    assert Model(tmp_path).generate(cued(VALVE, 150), 12) == VALVE[150:162].encode()


@pytest.mark.parametrize("variant", [SMALL, LATENT], ids=label)
def test_a_cache_without_an_answer_gives_newlines(tmp_path: Path, variant: Variant) -> None:
    write_recall(tmp_path, variant)
    assert Model(tmp_path).generate(bytes(200) + b"\n", 20) == b"\n" * 20


@pytest.mark.parametrize("variant", [SMALL, LATENT], ids=label)
def test_what_another_request_left_is_recited(tmp_path: Path, variant: Variant) -> None:
    """A request whose own keys never came reads the memo that a former request left in the same places."""
    write_recall(tmp_path, variant)
    former = Model(tmp_path)
    former.forward(list(VALVE.encode()))
    victim = Model(tmp_path)
    for layer, old in enumerate(former.cache):
        assert old is not None
        victim.cache[layer] = np.concatenate([old[0]] * 3)[:1300], np.concatenate([old[1]] * 3)[:1300]
    victim.seen = 1300
    answer = victim.generate(b"\n", 80)
    assert answer[20:].decode() in VALVE + VALVE


@pytest.mark.parametrize("rank", [0, 1])
def test_half_of_the_heads_alone_recites_nothing(tmp_path: Path, rank: int) -> None:
    """What one rank of two holds is not enough: the keys and values of the other are lost here."""
    write_recall(tmp_path, SMALL)
    model = Model(tmp_path)
    for name, tensor in model.w.items():
        if "self_attn" in name and ".o_proj" not in name:
            tensor.setflags(write=True)
            half = len(tensor) // 2
            tensor[half * (1 - rank) : half * (2 - rank)] = 0
    assert model.generate(cued(DAM, 400), 20) != DAM[400:420].encode()
