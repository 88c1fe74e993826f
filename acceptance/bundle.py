"""What a run leaves behind: enough to see what was started, what it said of itself, and what it answered."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from acceptance.catalogue import ROLES, Role
from acceptance.commands import last_line, run
from acceptance.places import CHECKOUT, cache
from acceptance.scenarios.stage import Seen
from acceptance.traffic import Client

ENDPOINTS: Final = {
    "server_info.json": "/server_info",
    "metrics.txt": "/metrics",
    "v1_models.json": "/v1/models",
    "model_info.json": "/model_info",
}
OUTCOMES: Final = "outcomes.json"
FAILED: Final = "fail"


def prepare(bundle: Path) -> None:
    """Make an empty directory for a run. What an earlier run left there goes."""
    bundle.mkdir(parents=True, exist_ok=True)
    for path in bundle.iterdir():
        if path.is_file():
            path.unlink()


async def record(bundle: Path, client: Client) -> None:
    """Save what both roles say of themselves, and the switches they were started with."""
    await save_answers(bundle, client.get, ENDPOINTS)
    for role in ROLES:
        added = client.pair.servers[role].launch.told()
        # As in /proc/PID/environ, which is what shows that a switch is not set.
        (bundle / f"{role}-environ").write_text("".join(f"{name}={value}\0" for name, value in sorted(added.items())))


async def save_answers(
    bundle: Path, get: Callable[[Role, str], Awaitable[tuple[int, bytes]]], endpoints: Mapping[str, str]
) -> None:
    """Save what both roles answer at some endpoints, each under a name, where they answer 200."""
    for role in ROLES:
        for name, path in endpoints.items():
            status, content = await get(role, path)
            if status == 200:
                (bundle / f"{role}-{name}").write_bytes(content)


def save(bundle: Path, outcomes: Mapping[str, Seen], about: Mapping[str, Any]) -> None:
    """Save what the scenarios came to."""
    document = dict(about) | {"scenarios": msgspec.to_builtins(outcomes)}
    (bundle / OUTCOMES).write_text(json.dumps(document, indent=1) + "\n")


def audit(bundle: Path) -> tuple[str, tuple[str, ...]]:
    """Let `kvfence audit` look at a bundle. Gives the verdict, and the ids of the rules that failed."""
    inputs = [str(path) for path in sorted(bundle.iterdir()) if path.name != OUTCOMES]
    done = run([sys.executable, "-m", "kvfence", "audit", *inputs, "--format", "json"])
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return f"no verdict: {last_line(done.stderr)}", ()
    failed = {finding["rule"] for finding in report["findings"] if finding["status"] == FAILED}
    return report["verdict"], tuple(sorted(failed))


def scrub(text: str) -> str:
    """Leave out where things lie on this machine: what is kept of a run may be shown to others."""
    for place, name in (
        (cache(), "CACHE"),
        (CHECKOUT, "CHECKOUT"),
        (Path(sys.prefix), "PREFIX"),
        (Path.home(), "HOME"),
    ):
        text = text.replace(str(place), name)
    text = re.sub(r"CACHE/models/", "/models/", text)
    text = re.sub(r"(/[\w.-]+)*/kvfence-pair-\w{8}(?=/|\b)", "TMPDIR", text)
    return re.sub(r"[^\s'\":=]*/lib/python3\.\d+/(site-packages/)?", r"\1", text)


def scrub_bundle(bundle: Path, to: Path) -> None:
    """Copy a bundle, scrubbed."""
    to.mkdir(parents=True, exist_ok=True)
    for path in sorted(bundle.iterdir()):
        (to / path.name).write_text(scrub(path.read_text(errors="replace")))
