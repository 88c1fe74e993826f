"""Read SGLang's launch commands: servers and its router, in scripts, process lists and `--config` files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import ruamel.yaml
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from kvfence.errors import InputError
from kvfence.facts import keys
from kvfence.facts.command import Command, is_open
from kvfence.facts.dialects.sglang import ENGINE
from kvfence.facts.dialects.sglang.arguments import FIELDS, CommandLine, flag_of, put_fields, read_flags, with_defaults
from kvfence.facts.fact import Evidence, Fact, Standing
from kvfence.facts.model import ROUTER, Environment, Kind, Seen, Sighting
from kvfence.facts.redact import clean, is_scrubbed
from kvfence.knowledge.releases import Version, VersionRange
from kvfence.knowledge.switches import switch_names

CONFIG_BYTES = 1 << 20
# YAML of a few bytes can stand for gigabytes by references to references; arguments need none of them.
CONFIG_ALIASES = 50
CONFIG_BRACKETS = 200
DEFAULT_PORT = 30000


def server_words(words: list[str]) -> list[str] | None:
    """Give the arguments of a server command, or `None` if these words start no server."""
    for position, word in enumerate(words):
        if word in ("sglang.launch_server", "-msglang.launch_server") or word.endswith("sglang/launch_server.py"):
            return words[position + 1 :]
        if word.rpartition("/")[2] == "sglang" and words[position + 1 : position + 2] == ["serve"]:
            return words[position + 2 :]
    return None


def router_words(words: list[str]) -> list[str] | None:
    """Give the arguments of a router command, or `None`."""
    for position, word in enumerate(words):
        if word in ("sglang_router.launch_router", "sglang::router") or word.rpartition("/")[2] in (
            "sglang-router",
            "smg",
            "sglang_router",
        ):
            return words[position + 1 :]
    return None


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
    words = server_words(command.words)
    if words is None:
        words = router_words(command.words)
        return None if words is None else _read_router(words, command, source, name, group)
    sighting = Sighting(source, kind, name, group)
    # The command line of a running process says nothing of what is in its environment; a script sets both.
    seen = Seen.LAUNCH if kind is Kind.LAUNCH and command.whole else Seen.NOTHING
    sighting.environment = read_environment(command.variables, source, seen)
    read = read_flags(words)
    fields, config_read = dict(read.fields), True
    unset = [field for field, value in fields.items() if isinstance(value, str) and is_open(value)]
    for field in unset:
        if field == "api_key":  # that a key is given is all there is to know of it
            continue
        sighting.notes.append(f"{source}:{command.line}: {flag_of(field)} is a variable nothing sets")
        del fields[field]

    def cite(field: str, value: object) -> Evidence:
        text = flag_of(field) + ("" if value is True else f" {value}")
        return Evidence(source, clean(text), command.line)

    if read.config is not None:
        config_read = _read_config(read.config, folder, sighting, fields)
    put_fields(sighting, fields, cite)
    whole = config_read and not unset and not any(is_open(word) for word in words) and not _strays(words)
    if whole:
        _put_defaults(sighting, read, fields, source, command.line)
    _note_image(command, sighting, source)
    return sighting


def _strays(words: list[str]) -> bool:
    """Whether a word belongs to no flag, as `@args.txt` does: it may stand for arguments that are not seen."""
    flag, values = "", 0
    for word in words:
        if word.startswith("@") or (not word.startswith("--") and not flag):
            return True
        if word.startswith("--"):
            flag, values = word, 0
            continue
        values += 1
        if "=" in flag:
            return True
        read = read_flags([flag, "a", "b"]).fields if flag != "--config" else {flag: "a"}
        taken = next(iter(read.values()), "a b")
        if isinstance(taken, bool) or (taken == "a" and values > 1):
            return True
    return False


def read_environment(variables: Mapping[str, tuple[str, int | None]], source: str, seen: Seen) -> Environment:
    """Keep the switches that kvfence knows; other variables may hold secrets and are let go."""
    environment = Environment(seen, source=source)
    for name in switch_names() & variables.keys():
        value, line = variables[name]
        if is_open(value):
            environment.unresolved.add(name)
        else:
            environment.variables[name] = Fact(value, (Evidence(source, clean(f"{name}={value}"), line),))
    return environment


def _put_defaults(sighting: Sighting, read: CommandLine, fields: Mapping[str, object], source: str, line: int) -> None:
    for field, value in with_defaults(fields).items():
        key, convert = FIELDS[field]
        default = convert(value)
        evidence = Evidence(source, f"{flag_of(field)} is not given; by default {value}", line)
        sighting.put(key, Fact(default, (evidence,), Standing.RELEASE_DEFAULT))
    if "port" not in fields:
        evidence = Evidence(source, f"--port is not given; by default {DEFAULT_PORT}", line)
        sighting.put(keys.PORT, Fact(DEFAULT_PORT, (evidence,), Standing.RELEASE_DEFAULT))
    if "api_key" not in fields:
        evidence = Evidence(source, "--api-key is not given", line)
        sighting.put(keys.API_KEY_SET, Fact(False, (evidence,)))
    if read.unknown:
        sighting.notes.append(f"{source}:{line}: no known release has {', '.join(clean(f) for f in read.unknown[:5])}")


def _read_config(name: str, folder: Path | None, sighting: Sighting, fields: dict[str, Any]) -> bool:
    """Read a `--config` file; the command line wins over it."""
    path = Path(name) if folder is None or Path(name).is_absolute() else folder / name
    if folder is None or not path.is_file():
        sighting.notes.append(f"{sighting.source}: its --config {clean(name)} is not here; what it sets is unknown")
        return False
    given = read_config(path.read_bytes(), str(path))
    read = read_flags(config_words(given))

    def cite(field: str, value: object) -> Evidence:
        return Evidence(str(path), clean(f"{field.replace('_', '-')}: {value}"), given.get(field, (None, None))[1])

    own = {field: value for field, value in read.fields.items() if field not in fields}
    put_fields(sighting, own, cite)
    fields.update(own)
    return True


def read_config(content: bytes, source: str) -> dict[str, tuple[object, int | None]]:
    """Read a `--config` file: values by field name (underscores), with their lines.

    Raises:
        InputError: it is no YAML, no mapping, or too large.

    """
    if len(content) > CONFIG_BYTES:
        raise InputError(source, f"is larger than {CONFIG_BYTES >> 20} MiB; a --config file is not")
    text = content.decode("utf-8", "replace")
    if text.count("*") > CONFIG_ALIASES and text.count("&") > 0:
        raise InputError(source, "holds more YAML references than arguments need")
    if text.count("[") + text.count("{") > CONFIG_BRACKETS:
        raise InputError(source, "holds more brackets than arguments need")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor used twice
            data = ruamel.yaml.YAML(typ="rt").load(StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        raise InputError(
            source, f"is no YAML ({error.problem})", line=mark.line + 1 if mark is not None else None
        ) from None
    except (YAMLError, RecursionError, ValueError):
        raise InputError(source, "is no YAML") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(source, "is not a mapping of arguments, as a --config file must be")
    found = {}
    for key, value in data.items():
        try:
            line = getattr(data, "lc").key(key)[0] + 1  # noqa: B009 (ruamel adds it to its mappings)
        except (AttributeError, KeyError):
            line = None
        found[str(key).replace("-", "_")] = (value, line)
    return found


def config_words(given: Mapping[str, tuple[object, int | None]]) -> list[str]:
    """Spell a `--config` file as SGLang does: as flags."""
    words: list[str] = []
    for field, (value, _) in given.items():
        flag = flag_of(field)
        if value is True:
            words.append(flag)
        elif value is False or value is None:
            continue
        elif isinstance(value, list):
            words += [flag, *(_scalar(item) for item in value)]
        else:
            words += [flag, _scalar(value)]
    return words


def _scalar(value: object) -> str:
    """Write a value; one that holds others is no argument that is read, and may stand for gigabytes."""
    return "{…}" if isinstance(value, dict | list | set) else str(value)


def _read_router(words: list[str], command: Command, source: str, name: str, group: str) -> Sighting:
    sighting = Sighting(source, Kind.LAUNCH, name, group)
    line = command.line
    evidence = Evidence(source, clean(" ".join(command.words)), line)
    sighting.put(keys.ENGINE, Fact(ENGINE, (evidence,)))
    sighting.put(keys.ROLE, Fact(ROUTER, (evidence,)))
    sighting.may_show_secrets = True
    words = [part for word in words for part in word.split("=", 1)]
    limits = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--retry-max-retries"]
    if "--mini-lb" in words:  # another program behind the same command; what it does was not read
        return sighting
    if "--disable-retries" in words:
        retries, text, standing = False, "--disable-retries", Standing.OBSERVED
    elif limits:
        retries, text, standing = (
            limits[-1] not in ("0", "1"),
            f"--retry-max-retries {limits[-1]}",
            Standing.OBSERVED,
        )
    else:
        retries, text, standing = (
            True,
            "--disable-retries is not given; by default 5 tries",
            Standing.RELEASE_DEFAULT,
        )
    sighting.put(keys.RETRIES, Fact(retries, (Evidence(source, clean(text), line),), standing))
    keys_given = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--api-key"]
    if any(not is_scrubbed(key) for key in keys_given):
        shown = Evidence(source, "--api-key <redacted>", line)
        sighting.secrets_shown.append(Fact("api_key", (shown,)))
    return sighting


def _note_image(command: Command, sighting: Sighting, source: str) -> None:
    """Take the release from an image tag such as `lmsysorg/sglang:v0.5.19-cu126`."""
    for word in [*command.around, *command.words]:
        image, colon, tag = word.rpartition("/")[2].partition(":")
        if colon and image == "sglang":
            try:
                version = Version.parse(tag)
            except ValueError:
                continue
            evidence = Evidence(source, clean(word), command.line)
            sighting.put(keys.VERSION, Fact(VersionRange.exactly(version), (evidence,), Standing.STATED))
