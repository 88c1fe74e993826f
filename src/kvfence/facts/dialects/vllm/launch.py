"""Read vLLM's launch commands: `vllm serve`, and the module it replaces."""

from __future__ import annotations

from collections.abc import Mapping

from kvfence.facts import keys
from kvfence.facts.command import Command, is_open
from kvfence.facts.dialects.vllm import arguments
from kvfence.facts.fact import Evidence, Fact, Standing
from kvfence.facts.model import UNIFIED, Environment, Kind, Seen, Sighting
from kvfence.facts.redact import REDACTED, clean, is_scrubbed
from kvfence.knowledge.releases import Version, VersionRange

MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers")
DEFAULT_PORT = 8000
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 (what the server binds to, not this program)
KEY_VARIABLE = "VLLM_API_KEY"


def server_words(words: list[str]) -> list[str] | None:
    """Give the arguments of a server command, or `None` if these words start no server of vLLM."""
    for position, word in enumerate(words):
        if word.removeprefix("-m") in MODULES or word.endswith("vllm/entrypoints/openai/api_server.py"):
            return words[position + 1 :]
        if word.rpartition("/")[2] == "vllm" and words[position + 1 : position + 2] == ["serve"]:
            rest = words[position + 2 :]
            # The model may stand without its flag, before all others.
            return ["--model", *rest] if rest and not rest[0].startswith("-") else rest
    return None


def read_command(command: Command, source: str, name: str, *, group: str, kind: Kind = Kind.LAUNCH) -> Sighting | None:
    """Read a command; `None` if it starts no server of vLLM.

    Args:
        command: its words and variables.
        source: the file it stands in.
        name: what to call the worker.
        group: where to look for other sources of the same worker.
        kind: a command that was written down, or one of a running process.

    """
    words = server_words(command.words)
    if words is None:
        return None
    line = command.line
    sighting = Sighting(source, kind, name, group)
    shown = kind is Kind.LAUNCH and command.whole
    # No switch of the environment is known by which a rule would judge vLLM.
    sighting.environment = Environment(Seen.LAUNCH if shown else Seen.NOTHING, source=source)
    arguments.mark_engine(sighting, Evidence(source, clean(" ".join(command.words[:6])), line))
    read = arguments.read_flags(words)
    fields = dict(read.fields)
    unset = [field for field, value in fields.items() if isinstance(value, str) and is_open(value)]
    for field in unset:
        sighting.notes.append(f"{source}:{line}: {_flag(field)} is a variable nothing sets")
        del fields[field]

    def cite(field: str, value: object) -> Evidence:
        return Evidence(source, clean(_flag(field) + ("" if value is True else f" {value}")), line)

    if "config" in fields:
        sighting.notes.append(f"{source}:{line}: what its --config sets is not read")
    whole = read.whole and not unset and not read.strays and not any(is_open(word) for word in words)
    arguments.put_fields(sighting, fields, cite, whole=False)
    _take_key_variable(sighting, command.variables, source)
    if whole:
        _put_defaults(
            sighting, fields, source, line, seen=shown and not command.variables.get(KEY_VARIABLE, ("", 0))[0]
        )
    _note_image(command, sighting, source)
    return sighting


def put_key_variable(sighting: Sighting, variables: Mapping[str, tuple[str, int | None]], source: str) -> None:
    """Take the key from the variable that gives one too, unless an argument does; here all variables are seen."""
    if sighting.get(keys.API_KEY_SET) is None and not _take_key_variable(sighting, variables, source):
        absent = Evidence(source, f"neither --api-key nor {KEY_VARIABLE} is given")
        sighting.put(keys.API_KEY_SET, Fact(False, (absent,)))


def _take_key_variable(sighting: Sighting, variables: Mapping[str, tuple[str, int | None]], source: str) -> bool:
    value, line = variables.get(KEY_VARIABLE, ("", None))
    if not value or sighting.get(keys.API_KEY_SET) is not None:
        return False
    shown = Evidence(source, f"{KEY_VARIABLE}={REDACTED}", line)
    sighting.put(keys.API_KEY_SET, Fact(True, (shown,)))
    if line is not None and not is_scrubbed(value) and not is_open(value):  # in a script that others read
        sighting.secrets_shown.append(Fact(KEY_VARIABLE, (shown,)))
    return True


def _put_defaults(sighting: Sighting, fields: dict[str, object], source: str, line: int, *, seen: bool) -> None:
    """State what a command that is whole leaves at its default (0.32.0, entrypoints/launchers/cli_args.py)."""

    def default(text: str) -> tuple[Evidence, ...]:
        return (Evidence(source, text, line),)

    if "host" not in fields:
        text = "--host is not given; by default every address"
        sighting.put(keys.HOST, Fact(EVERY_ADDRESS, default(text), Standing.RELEASE_DEFAULT))
    if "port" not in fields:
        text = f"--port is not given; by default {DEFAULT_PORT}"
        sighting.put(keys.PORT, Fact(DEFAULT_PORT, default(text), Standing.RELEASE_DEFAULT))
    if arguments.TRANSFER not in fields:
        text = "--kv-transfer-config is not given, so nothing is handed off"
        sighting.put(keys.ROLE, Fact(UNIFIED, default(text), Standing.RELEASE_DEFAULT))
    if seen and sighting.get(keys.API_KEY_SET) is None:
        sighting.put(keys.API_KEY_SET, Fact(False, default(f"neither --api-key nor {KEY_VARIABLE} is given")))


def _note_image(command: Command, sighting: Sighting, source: str) -> None:
    """Take the release from an image tag such as `vllm/vllm-openai:v0.32.0`."""
    for word in [*command.around, *command.words]:
        image, colon, tag = word.rpartition("/")[2].partition(":")
        if colon and image in ("vllm-openai", "vllm"):
            try:
                version = Version.parse(tag)
            except ValueError:
                continue
            evidence = Evidence(source, clean(word), command.line)
            sighting.put(keys.VERSION, Fact(VersionRange.exactly(version), (evidence,), Standing.STATED))


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
