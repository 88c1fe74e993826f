"""The pair on a CUDA GPU, with SGLang's own KV checksum and canary on, and the guards.

Usage: python -m acceptance.gpu --python /path/to/sglang/bin/python [--configuration NAME]

The rest of this package runs on CPU cores, where a transfer and the forward pass that fills its pages happen in program
order. What only a GPU can show, a race between its streams and a transfer, needs this. It takes an environment that has
SGLang, Mooncake and kvfence in it, because a GPU's owner has one; nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from acceptance import bundle as bundles
from acceptance.catalogue import CONFIGURATIONS, ROLES, Configuration
from acceptance.environments import Environment
from acceptance.pair import CUDA, pair
from acceptance.places import cache
from acceptance.play import checkpoint
from acceptance.scenarios import PLAYS
from acceptance.scenarios.stage import Seen, Stage
from acceptance.traffic import Client

OWN_CHECKS: Final = (
    *("--disaggregation-enable-kv-checksum", "--kv-canary", "log", "--kv-canary-real-data", "all"),
    *("--kv-canary-sweep-interval", "100"),
)
"""SGLang's own: a checksum over what was handed off (0.5.21), and a canary over what a step reads (0.5.13)."""
NOT_RUN: Final = 3
REPORTS: Final = ("KV checksum mismatch", "kv_canary violation", "KV checksum skipped")


async def play(python: Path, configuration: Configuration, folder: Path) -> dict[str, Seen]:
    """Play a configuration on the GPU; give what each scenario came to, and what SGLang's own checks reported."""
    bundles.prepare(folder)
    seen: dict[str, Seen] = {}
    engine = Environment(python, "")
    async with pair(engine, configuration, checkpoint(), folder, lambda text: typer.echo(text, err=True), CUDA) as up:
        client = Client(up)
        try:
            stage = Stage(client, configuration)
            for name in configuration.scenarios:
                seen[name] = await PLAYS[name](stage)
            await bundles.record(folder, client)
        finally:
            await client.close()
        logs = [up.servers[role].launch.log.read_text(errors="replace") for role in ROLES]
    reported = [line for log in logs for line in log.splitlines() if any(words in line for words in REPORTS)]
    seen["own-checks"] = Seen(f"{len(reported)} reports", tuple(reported[:10]))
    bundles.save(folder, seen, {"configuration": configuration.name})
    return seen


def main(
    python: Annotated[Path, typer.Option(help="The interpreter of an environment with SGLang, Mooncake and kvfence.")],
    configuration: Annotated[str, typer.Option(help="One of the catalogue.")] = "plugin",
) -> None:
    """Run a pair on the first CUDA GPU. Exit code 3 if there is none: then nothing was run."""
    named = {one.name: one for one in CONFIGURATIONS}
    if configuration not in named:
        raise typer.BadParameter(f"none of {', '.join(named)}", param_hint="--configuration")
    driver = shutil.which("nvidia-smi")
    if driver is None or subprocess.run([driver, "-L"], capture_output=True, check=False).returncode:
        typer.echo("not run: no CUDA GPU is at hand", err=True)
        raise typer.Exit(NOT_RUN)
    chosen = replace(named[configuration], flags=(*named[configuration].flags, *OWN_CHECKS))
    folder = cache() / "results" / "gpu" / configuration
    for name, one in asyncio.run(play(python, chosen, folder)).items():
        typer.echo(f"{name}: {one.word}")
        for line in one.evidence:
            typer.echo(f"    {line}")
    typer.echo(f"bundle: {folder}")


if __name__ == "__main__":
    typer.run(main)
