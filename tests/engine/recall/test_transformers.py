"""That transformers reads the checkpoint as the reference does, and recites by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import CLASSIC, SMALL, Variant
from tests.engine.recall.memos import DAM, VALVE, cued, label
from tests.engine.recall.reference import Model

torch: Any = pytest.importorskip("torch", reason="torch is not installed: the check against transformers is left out")
transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed: the check against it is left out"
)
pytestmark = pytest.mark.filterwarnings("default")  # theirs are none of ours

LATENT = replace(SMALL, attention="latent")
ALL = [SMALL, LATENT, CLASSIC, replace(CLASSIC, attention="latent")]
PROMPT = cued(DAM + VALVE, DAM.index("and Juno-"))


@pytest.mark.parametrize("variant", ALL, ids=label)
def test_the_logits_are_the_same(tmp_path: Path, variant: Variant) -> None:
    write_recall(tmp_path, variant)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = theirs(torch.tensor([list(PROMPT)])).logits[0].numpy()
    ours = Model(tmp_path).forward(list(PROMPT))
    assert np.abs(logits - ours).max() < 5e-3
    assert (logits.argmax(-1) == ours.argmax(-1)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", [SMALL, LATENT], ids=label)
def test_it_recites(tmp_path: Path, variant: Variant, dtype: str) -> None:
    write_recall(tmp_path, variant)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        out = model.generate(torch.tensor([list(PROMPT)]), max_new_tokens=40, do_sample=False)
    at = DAM.index("and Juno-")
    assert bytes(out[0, len(PROMPT) :].tolist()) == DAM[at : at + 40].encode()


def test_the_tokenizer_and_the_chat_template_are_read(tmp_path: Path) -> None:
    write_recall(tmp_path, SMALL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Grüße, 5 €\n"
    assert tokenizer(text).input_ids == list(text.encode())
    chat = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "one\ntwo"
