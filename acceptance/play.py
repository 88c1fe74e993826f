"""Plays one configuration of one release: start, traffic, record, audit, compare."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from acceptance import bundle as bundles
from acceptance.catalogue import Configuration
from acceptance.environments import environment
from acceptance.errors import StartError, UnavailableError
from acceptance.pair import pair
from acceptance.places import cache
from acceptance.result import Run
from acceptance.scenarios import PLAYS
from acceptance.scenarios.stage import Reference, Seen, Stage
from acceptance.table import AUDIT, RULES, Declared, Row
from acceptance.traffic import Client
from acceptance.waiting import Progress
from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import SMALL

CONTROL: Final = "equal"


@dataclass
class Player:
    """Plays configurations, and keeps a bundle of each.

    Args:
        results: where bundles go.
        tell: is told what is being done.
        only: the scenarios to play, or none for all.

    """

    results: Path
    tell: Progress = field(default=lambda _text: None)
    only: tuple[str, ...] = ()

    async def play(self, version: str, configuration: Configuration, declared: Declared) -> Run:
        """Play one configuration of one release. Whatever was started is ended, however this is left."""
        run = Run(version, configuration.name)
        where = f"sglang {version} {configuration.name}"
        try:
            self.tell(f"{where}: environment")
            engine = environment(version)
            model = checkpoint()
            folder = self._folder(version, configuration.name)
            bundles.prepare(folder)
            async with pair(engine, configuration, model, folder, lambda text: self.tell(f"{where}: {text}")) as up:
                run.started = up.seconds
                client = Client(up)
                try:
                    stage = Stage(client, configuration, self._control(version, configuration))
                    seen = await self._traffic(stage, run, where)
                    await bundles.record(folder, client)
                finally:
                    await client.close()
        except UnavailableError as error:
            run.skipped = str(error)
            return run
        except StartError as error:
            run.failed = str(error)
            return run
        self._compare(run, folder, seen, declared, stage.reference)
        return run

    async def _traffic(self, stage: Stage, run: Run, where: str) -> dict[str, Seen]:
        began = time.monotonic()
        seen = {}
        for name, play in PLAYS.items():
            if name not in stage.configuration.scenarios or (self.only and name not in self.only):
                continue
            self.tell(f"{where}: {name}")
            start = time.monotonic()
            seen[name] = await play(stage)
            run.took[name] = round(time.monotonic() - start, 1)
        run.lasted = time.monotonic() - began
        return seen

    def _control(self, version: str, configuration: Configuration) -> Reference | None:
        """Give what a pair with equal pools answered when it was last played with this checkpoint."""
        path = self._folder(version, CONTROL) / bundles.OUTCOMES
        if configuration.name == CONTROL or not path.exists():
            return None
        document = json.loads(path.read_text())
        if document.get("checkpoint") != _digest():
            return None
        return {name: tuple(tokens) for name, tokens in document.get("reference", {}).items()} or None

    def _folder(self, version: str, configuration: str) -> Path:
        return self.results / f"sglang-{version}" / configuration

    def _compare(self, run: Run, folder: Path, seen: dict[str, Seen], declared: Declared, reference: Reference) -> None:
        for name, one in seen.items():
            run.rows.append(Row(name, declared.get(name), one.word, one.slowest, one.evidence))
        verdict, failed = bundles.audit(folder)
        run.rows.append(Row(AUDIT, declared.get(AUDIT), verdict))
        run.rows.append(Row(RULES, declared.get(RULES), " ".join(failed)))
        about = {
            "version": run.version,
            "configuration": run.configuration,
            "checkpoint": _digest(),
            "started": run.started,
            "took": run.took,
            "verdict": verdict,
            "failed": failed,
            "reference": reference,
        }
        bundles.save(folder, seen, about)


def checkpoint() -> Path:
    """Give the recall checkpoint, made anew so that it is this checkout's."""
    model = cache() / "models" / "recall"
    write_recall(model, SMALL)
    return model


def _digest() -> str:
    weights = cache() / "models" / "recall" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()
