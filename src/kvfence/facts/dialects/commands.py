"""Read the launch command of whatever engine it starts."""

from __future__ import annotations

from pathlib import Path

from kvfence.facts.command import Command
from kvfence.facts.dialects.sglang import launch as sglang
from kvfence.facts.dialects.vllm import launch as vllm
from kvfence.facts.model import Kind, Sighting


def starts_server(words: list[str]) -> bool:
    """Whether these words start a server of an engine that is known."""
    return sglang.server_words(words) is not None or vllm.server_words(words) is not None


def read_command(
    command: Command,
    source: str,
    name: str,
    *,
    group: str,
    kind: Kind = Kind.LAUNCH,
    folder: Path | None = None,
) -> Sighting | None:
    """Read a command; `None` if it starts neither a server nor a router.

    Args:
        command: its words and variables.
        source: the file it stands in.
        name: what to call the worker.
        group: where to look for other sources of the same worker.
        kind: a command that was written down, or one of a running process.
        folder: where a relative `--config` file lies.

    """
    found = vllm.read_command(command, source, name, group=group, kind=kind)
    if found is not None:
        return found
    return sglang.read_command(command, source, name, group=group, kind=kind, folder=folder)
