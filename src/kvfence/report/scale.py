"""Draw pools against contexts to scale, in characters."""

from __future__ import annotations

from rich.text import Text

from kvfence.facts import keys
from kvfence.facts.model import Deployment, Worker
from kvfence.limits.pair import PairLimits
from kvfence.limits.worker import Size, capacity_of

WIDTH = 48
# Of many workers and gaps, so many are drawn.
DRAWN = 20


def draw(deployment: Deployment, pairs: tuple[PairLimits, ...]) -> Text:
    """Draw every worker's pool against its context, and every gap, on one scale."""
    drawn = [w for w in deployment.workers if isinstance(capacity_of(w), Size) or w.value(keys.CONTEXT_LEN) is not None]
    sizes = [size.tokens for w in drawn if isinstance(size := capacity_of(w), Size)]
    sizes += [context for w in drawn if (context := w.value(keys.CONTEXT_LEN)) is not None]
    longest = max(sizes, default=0)
    text = Text()
    if not longest:
        return text
    drawn = drawn[:DRAWN]
    label = min(max(len(_label(worker)) for worker in drawn), 30)
    for worker in drawn:
        name = _label(worker)[:label]
        capacity, context = capacity_of(worker), worker.value(keys.CONTEXT_LEN)
        if context is not None:
            text.append(f"{name:<{label}}  ")
            text.append("─" * _columns(context, longest), "cyan")
            text.append(f" context {context:,}\n")
        text.append(f"{'' if context is not None else name:<{label}}  ")
        if isinstance(capacity, Size):
            enough = context is not None and capacity.tokens >= context
            text.append(
                "█" * _columns(capacity.tokens, longest),
                "green" if enough else "red" if context else "yellow",
            )
            text.append(f" pool {capacity.tokens:,}\n")
        else:
            text.append("? pool not known\n", "yellow")
    gaps = [gap for gap in dict.fromkeys(pair.gap for pair in pairs) if gap is not None]
    for gap in gaps[:DRAWN]:
        start, end = _columns(gap.lo, longest), _columns(gap.hi, longest)
        text.append(f"{'gap':<{label}}  " + " " * start)
        text.append("▒" * max(end - start, 1), "bold red")
        text.append(f" {gap} refused by {gap.refuses} only\n")
    text.rstrip()
    return text


def _label(worker: Worker) -> str:
    """Name a worker with its role, unless the name says the role."""
    role = worker.role or "?"
    return worker.name if role in worker.name else f"{role} {worker.name}"


def _columns(tokens: int, longest: int) -> int:
    return max(1, round(tokens / longest * WIDTH)) if tokens else 0
