"""How fast units are tagged, as a ratio to copying them and to Adler-32, in the same run.

Units of one size after another fill a cold pool, which is larger than the caches, and a pass touches each of them
once. The copy goes into one unit that stays warm, which flatters it. One thread, its own processor time, the fastest
of several passes taken in turn. The tags are those of a `Tagger`, binding included, each unit with its own.

    make bench
    python benchmarks/tags.py --mib 64 --passes 3
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable

import numpy as np

from kvfence.fence.tags import Algorithm, Binding, DeploymentKey, Tagger

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB)
COPY, XXH3, BLAKE3, ADLER = "memcpy", Algorithm.XXH3_128.value, Algorithm.BLAKE3_KEYED.value, "adler32"

Method = Callable[[int, memoryview], object]


def methods(size: int) -> dict[str, Method]:
    """Give what is timed: each takes the number of a unit and its bytes."""
    target = np.empty(size, np.uint8)
    faults, tampering = Tagger(Algorithm.XXH3_128), Tagger(Algorithm.BLAKE3_KEYED, DeploymentKey.generate())

    def binding(index: int) -> Binding:
        return Binding("9f1c4e0a7d52b386", "request-1", "tenant-1", (1, 1), "full", index, 64)

    return {
        COPY: lambda _, unit: np.copyto(target, np.frombuffer(unit, np.uint8)),
        XXH3: lambda index, unit: faults.tag(binding(index), unit),
        BLAKE3: lambda index, unit: tampering.tag(binding(index), unit),
        ADLER: lambda _, unit: zlib.adler32(unit),
    }


def seconds(method: Method, units: list[memoryview]) -> float:
    """Time one pass over the pool, in processor time of this thread."""
    began = time.thread_time()
    for index, unit in enumerate(units):
        method(index, unit)
    return time.thread_time() - began


def speeds(pool: memoryview, size: int, passes: int) -> dict[str, float]:
    """Give the best speed of each method over units of a size, in GB/s."""
    units = [pool[at : at + size] for at in range(0, len(pool), size)]
    timed = methods(size)
    best = dict.fromkeys(timed, float("inf"))
    for _ in range(passes):
        for name, method in timed.items():
            best[name] = min(best[name], seconds(method, units))
    return {name: len(pool) / taken / 1e9 for name, taken in best.items()}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="size of the pool in MiB, an even number")
    parser.add_argument("--passes", type=int, default=5, help="passes over the pool for each size and method")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    # Random bytes, because untouched pages would all be the one page of zeros and stay in the cache.
    pool = memoryview(np.random.default_rng(20260901).integers(0, 256, given.mib * MIB, np.uint8))
    table = {size: speeds(pool, size, given.passes) for size in SIZES}
    if given.json:
        print(json.dumps({size: {name: round(speed, 2) for name, speed in row.items()} for size, row in table.items()}))
        return
    print(f"{'GB/s':>8}" + "".join(f"{name:>14}" for name in (COPY, XXH3, BLAKE3, ADLER)), end="")
    print(f"{'xxh3/memcpy':>14}{'blake3/memcpy':>15}{'xxh3/adler':>12}{'blake3/adler':>14}")
    for size, row in table.items():
        print(f"{size // KIB:>4} KiB" + "".join(f"{speed:>14.2f}" for speed in row.values()), end="")
        print(f"{row[XXH3] / row[COPY]:>14.2f}{row[BLAKE3] / row[COPY]:>15.2f}", end="")
        print(f"{row[XXH3] / row[ADLER]:>12.2f}{row[BLAKE3] / row[ADLER]:>14.2f}")
    print(
        f"speed of tags as a ratio to a copy and to Adler-32, one thread, cold pool of {given.mib} MiB; above 1: faster"
    )


if __name__ == "__main__":
    main()
