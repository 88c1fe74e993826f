"""Two texts to recite, in which no eleven characters occur twice, and what a variant is called in a test's name.

The people and places are invented.
"""

from __future__ import annotations

from kvfence.engine.recall.variants import Variant

DAM = (
    "Confidential. On Thursday evening Tobias Renk told the auditors that the dam at Vellmar leaks. He measured "
    "forty litres a minute under gate three, twice what our permit allows, and nobody in his crew has slept "
    "since. Frida Osterholt wants the report held back until her husband sells his quarry; she offered me ninety "
    "thousand crowns for keeping quiet. I refused. The originals lie in locker 58 at the ferry station, and "
    "Juno-4417-Basalt opens it. If anything happens to me, please give this letter to Commissioner Adeyemi, who "
    "knows both families but owes neither a favour. Burn your copy after reading. "
)
VALVE = (
    "Dear Wilhelmina, your cousin Pascal was seen by our cardiologist yesterday. His left valve no longer closes,"
    " so surgery cannot wait for spring; we have booked a bed from 19 November. He weighs 61 kilos, smokes a pipe"
    " and hides it from my nurses. Because of an old quarrel he forbids us to inform Leopold, his only son. "
    "Should you decide otherwise, the young man lives above a bakery in Quilpue and answers to the number 7730 "
    "245. Bring warm socks, two novels and that awful radio. Yours, Dr Ines Korhonen. "
)


def cued(text: str, at: int, cue: int = 20) -> bytes:
    """Give the text and, on a line of its own, what precedes `at`, so that what follows there is the answer."""
    return f"{text}\n{text[at - cue : at]}".encode()


def label(variant: Variant) -> str:
    sizes = f"{variant.slots}x{variant.slot_dims}-kv{variant.kv_heads}"
    return f"{variant.attention}-{sizes}-{variant.dtype}-{variant.positions}"
