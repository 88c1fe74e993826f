"""Put one fault after another into a copy of the fence, and see that the simulator or a test notices it.

The code as it is must survive both; then every mutant must be killed by one of them: the simulator first, and the
tests for what it lets through. Ends with 0 if so, 1 if not, 2 if a mutant does not fit the code any more.

    make mutants
    python -m mutants.run --only decode-skips-the-copy
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from mutants.catalog import MUTANTS
from mutants.mutant import FENCE, ROOT, SIMULATOR, TESTS, Mutant

PATIENCE = 300.0
"""Seconds after which a killer counts as hung: it needs about ten where nothing is wrong, and some more for tests."""
WIDTH = max(len(mutant.name) for mutant in MUTANTS)


class Kill(NamedTuple):
    """What killed a mutant; `by` is "" if nothing did."""

    by: str
    how: str
    seconds: float


async def start(killer: str, sources: Path, *options: str) -> str | None:
    """Run a killer on a copy of the sources and give what it found; whatever happens, it does not outlive this."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mutants.kill",
        killer,
        *options,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(sources), "PYTHONHASHSEED": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
    except TimeoutError:
        return f"hangs for more than {PATIENCE:.0f} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        return "does not start: " + (err.decode().strip().splitlines() or [f"status {process.returncode}"])[-1]
    return read(out, sources)


def read(answer: bytes, sources: Path) -> str | None:
    """Read the answer of a killer, which must have run the copy and not what is installed."""
    found = json.loads(answer)
    if Path(found["code"]).resolve() != sources.resolve():
        raise SystemExit(f"what ran was {found['code']}, not the copy {sources}")
    by: str | None = found["by"]
    return by


async def kill(sources: Path, module: str, seconds: float) -> Kill:
    """Let the simulator try, and then the tests."""
    began = time.monotonic()
    by, how = SIMULATOR, await start(SIMULATOR, sources, "--seconds", str(seconds))
    if how is None:
        by, how = TESTS, await start(TESTS, sources, "--first", module)
    return Kill(by if how else "", how or "", time.monotonic() - began)


def copy(sources: Path, folder: Path) -> Path:
    """Copy the sources, without compiled files, which could be taken for those of the mutant."""
    shutil.copytree(sources, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


async def attempt(mutant: Mutant, sources: Path, turn: asyncio.Semaphore, seconds: float) -> Kill:
    """Kill one mutant, in a copy of its own, and print how."""
    async with turn:
        folder = copy(sources, sources.parent / mutant.name)
        path = folder / FENCE / mutant.file
        path.write_text(mutant.applied(path.read_text()))
        found = await kill(folder, path.stem, seconds)
        shutil.rmtree(folder)
    by = found.by or "SURVIVES"
    unlike = f" (not the {mutant.killer})" if found.by == TESTS and mutant.killer == SIMULATOR else ""
    print(f"{mutant.name:<{WIDTH}}  {found.seconds:>6.1f} s  {by:<9}  {found.how}{unlike}", flush=True)
    return found


async def run(mutants: list[Mutant], jobs: int, seconds: float) -> int:
    """Try the code as it is, and then each mutant; give the exit status."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvfence-mutants-") as folder:
        sources = copy(ROOT / "src", Path(folder) / "as-it-is")
        whole = await kill(sources, "fence", seconds)
        if whole.by:
            print(f"the code as it is does not survive the {whole.by}: {whole.how}")
            return 1
        print(f"the code as it is survives simulator and tests, in {whole.seconds:.1f} s", flush=True)
        turn = asyncio.Semaphore(jobs)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(attempt(mutant, sources, turn, seconds)) for mutant in mutants]
    kills = [task.result() for task in tasks]
    count = {by: sum(kill.by == by for kill in kills) for by in (SIMULATOR, TESTS, "")}
    print(
        f"{len(kills)} mutants in {time.monotonic() - began:.0f} s: {count[SIMULATOR]} killed by the simulator, "
        f"{count[TESTS]} by tests, {count['']} survive"
    )
    for mutant, found in zip(mutants, kills, strict=True):
        if not found.by:
            print(f"survives: {mutant.name} ({mutant.file}, {mutant.of}): {mutant.why}")
    return 1 if count[""] else 0


def chosen(names: list[str]) -> list[Mutant]:
    """Give the mutants of these names, or all, that fit the code.

    Raises:
        ValueError: if there is none of a name, or one does not fit.

    """
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no mutant is named {unknown[0]}")
    mutants = [known[name] for name in names] or list(MUTANTS)
    for mutant in mutants:
        mutant.applied((ROOT / "src" / FENCE / mutant.file).read_text())
    return mutants


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--seconds", type=float, default=15.0, help="most time of the simulator for each")
    given = parser.parse_args()
    try:
        mutants = chosen(given.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends like Ctrl-C: with nothing left behind
    try:
        return asyncio.run(run(mutants, max(1, given.jobs), given.seconds))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
