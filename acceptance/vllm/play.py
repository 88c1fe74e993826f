"""Plays the configurations: start, traffic, record, audit, compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from acceptance import bundle as bundles
from acceptance.errors import StartError, UnavailableError
from acceptance.play import checkpoint
from acceptance.result import Run
from acceptance.scenarios.stage import Seen
from acceptance.table import Row
from acceptance.vllm.catalogue import CONFIGURATIONS, VERSION, Configuration
from acceptance.vllm.client import Client
from acceptance.vllm.environment import environment
from acceptance.vllm.scenarios import PLAYS, pool_below_context, warm_up
from acceptance.vllm.servers import pair, start_short
from acceptance.vllm.table import AUDIT, REACHABLE, REACHABLE_RULES, RULES, Rows
from acceptance.waiting import LOOPBACK

Tell = Callable[[str], None]

ENDPOINTS: Final = {"metrics.txt": "/metrics", "models.json": "/v1/models", "version.json": "/version"}
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 (written into a script that is read, and not run)


async def run(results: Path, declared: Rows, tell: Tell, only: Sequence[str] = ()) -> list[Run]:
    """Play the configurations one after the other. Whatever was started is ended, however this is left.

    Args:
        results: where bundles go.
        declared: the table.
        tell: is told what is being done.
        only: the configurations to play, or none for all.

    """
    runs = []
    for configuration in CONFIGURATIONS:
        if only and configuration.name not in only:
            continue
        one = Run(f"vllm {VERSION}", configuration.name)
        runs.append(one)
        try:
            await _play(one, configuration, results, declared.get(configuration.name, {}), tell)
        except UnavailableError as error:
            one.skipped = str(error)
        except StartError as error:
            one.failed = str(error)
    return runs


async def _play(one: Run, configuration: Configuration, results: Path, declared: Mapping[str, str], tell: Tell) -> None:
    def say(text: str) -> None:
        tell(f"vllm {VERSION} {configuration.name}: {text}")

    say("environment")
    python, model = environment(), checkpoint()
    folder = results / f"vllm-{VERSION}" / configuration.name
    bundles.prepare(folder)
    began = time.monotonic()
    if configuration.is_pair:
        async with pair(python, configuration, model, folder, say) as up:
            one.started, began = up.seconds, time.monotonic()
            client = Client(up)
            try:
                await warm_up(client)
                seen = await _traffic(client, configuration, say)
                await bundles.save_answers(folder, client.get, ENDPOINTS)
            finally:
                await client.close()
    else:
        seen = {"pool-below-context": pool_below_context(*await start_short(python, model, folder, say))}
    one.lasted = time.monotonic() - began
    _compare(one, folder, seen, declared)


async def _traffic(client: Client, configuration: Configuration, say: Tell) -> dict[str, Seen]:
    seen = {}
    for name in configuration.scenarios:
        say(name)
        seen[name] = await PLAYS[name](client)
    return seen


def _compare(one: Run, folder: Path, seen: dict[str, Seen], declared: Mapping[str, str]) -> None:
    for name, took in seen.items():
        one.rows.append(Row(name, declared.get(name), took.word, took.slowest, took.evidence))
    verdict, failed = bundles.audit(folder)
    told = {AUDIT: verdict, RULES: " ".join(failed)}
    if (folder / "decode-launch.sh").exists():
        reachable, rules = bundles.audit(_were_it_reachable(folder))
        told |= {REACHABLE: reachable, REACHABLE_RULES: " ".join(rules)}
    one.rows += [Row(what, declared.get(what), word) for what, word in told.items()]
    about = {"version": one.version, "configuration": one.configuration, "started": one.started, "lasted": one.lasted}
    bundles.save(folder, seen, about | told)


def _were_it_reachable(folder: Path) -> Path:
    """Make a bundle of the same pair as it is where other hosts reach it: its scripts say so, and no log denies it."""
    other = folder.with_name(f"{folder.name}-reachable")
    bundles.prepare(other)
    for path in folder.iterdir():
        if path.suffix == ".sh":
            (other / path.name).write_text(path.read_text().replace(f"--host {LOOPBACK}", f"--host {EVERYWHERE}"))
        elif path.name.endswith(tuple(ENDPOINTS)):
            (other / path.name).write_bytes(path.read_bytes())
    return other
