"""Read a process: `/proc/PID`, or saved copies of its `cmdline` and `environ`.

Both are zero-separated. Of the environment only switches that kvfence knows are kept.
"""

from __future__ import annotations

import re
from pathlib import Path

from kvfence.errors import InputError
from kvfence.facts import keys
from kvfence.facts.command import Command
from kvfence.facts.dialects import commands
from kvfence.facts.dialects.sglang import launch
from kvfence.facts.dialects.vllm import ENGINE as VLLM
from kvfence.facts.dialects.vllm import launch as vllm
from kvfence.facts.model import Kind, Seen, Sighting

_VARIABLE = re.compile(rb"[A-Za-z_][A-Za-z0-9_().%-]*=", re.DOTALL)
LARGEST = 4 << 20


def is_process_folder(path: Path) -> bool:
    """Whether a directory is a `/proc/PID`, live or copied."""
    return (path / "cmdline").is_file() and (path / "environ").is_file()


def read_process_folder(path: Path, source: str) -> list[Sighting]:
    """Read a `/proc/PID` directory as one worker.

    Raises:
        InputError: a file of it may not be read.

    """
    found: list[Sighting] = []
    for name in ("cmdline", "environ"):
        try:
            content = (path / name).read_bytes()[:LARGEST]
        except PermissionError:
            raise InputError(f"{source}/{name}", "may not be read (run as the server's user, or as root)") from None
        except OSError as error:
            raise InputError(f"{source}/{name}", f"cannot be read ({error.strerror})") from None
        sighting = read_saved(content, f"{source}/{name}", f"process {path.name}", source)
        if sighting is not None:
            found.append(sighting)
    if found and found[0].value(keys.ENGINE) == VLLM:
        vllm.put_key_variable(found[0], _variables((path / "environ").read_bytes()[:LARGEST]), f"{source}/environ")
    if not any(sighting.facts for sighting in found):
        raise InputError(source, "is no process that serves a model (its command line names no known engine)")
    return found


def is_environment(content: bytes) -> bool:
    """Whether bytes are an environment: zero-separated, or one `NAME=value` a line."""
    parts = _parts(content)
    return len(parts) >= 2 and all(_VARIABLE.match(part) for part in parts)


def is_command_line(content: bytes) -> bool:
    """Whether bytes are a zero-separated command line of a server."""
    return b"\0" in content and commands.starts_server(_words(content))


def read_saved(content: bytes, source: str, name: str, group: str) -> Sighting | None:
    """Read a saved `cmdline` or `environ`; `None` if it is neither."""
    if is_command_line(content):
        return commands.read_command(Command(1, _words(content)), source, name, group=group, kind=Kind.PROCESS)
    if is_environment(content):
        sighting = Sighting(source, Kind.PROCESS, name, group)
        sighting.environment = launch.read_environment(_variables(content), source, Seen.WHOLE)
        return sighting
    return None


def _variables(content: bytes) -> dict[str, tuple[str, int | None]]:
    variables: dict[str, tuple[str, int | None]] = {}
    for number, part in enumerate(_parts(content), 1):
        variable, _, value = part.decode("utf-8", "backslashreplace").partition("=")
        variables[variable] = (value, None if b"\0" in content else number)
    return variables


def _words(content: bytes) -> list[str]:
    return [part.decode("utf-8", "backslashreplace") for part in content.split(b"\0") if part]


def _parts(content: bytes) -> list[bytes]:
    separator = b"\0" if b"\0" in content else b"\n"
    lines = separator == b"\n"  # only there a carriage return ends a line, and is not of the value
    return [part.removesuffix(b"\r") if lines else part for part in content.split(separator) if part.strip()]
