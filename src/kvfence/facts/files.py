"""Read one file as whatever it is: a log, a saved answer of an endpoint, a launch script, an environment."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from kvfence.errors import InputError
from kvfence.facts import keys, process, written
from kvfence.facts.command import Command
from kvfence.facts.dialects import metrics
from kvfence.facts.dialects.commands import read_command, starts_server
from kvfence.facts.dialects.documents import new_sighting
from kvfence.facts.dialects.kvfence.starts import NEEDLE, WorkerStarts
from kvfence.facts.dialects.recognise import recognise
from kvfence.facts.dialects.sglang import launch
from kvfence.facts.dialects.sglang.arguments import FIELDS, read_flags
from kvfence.facts.dialects.sglang.lines import NEEDLES
from kvfence.facts.dialects.sglang.story import LogStory
from kvfence.facts.dialects.vllm import lines as vllm_lines
from kvfence.facts.dialects.vllm.arguments import OWN as VLLM_OWN
from kvfence.facts.dialects.vllm.story import VllmLog
from kvfence.facts.model import Sighting
from kvfence.facts.scan import LINE_BYTES, Scanner
from kvfence.facts.shell import read_script
from kvfence.facts.stream import SNIFF_BYTES, ByteStream, is_binary, open_stream

DOCUMENT_BYTES = 64 << 20
SCRIPT_BYTES = 1 << 20

Note = Callable[[str], None]

_STAMPED = re.compile(rb"(?m)^.{0,120}\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_STARTS_SERVER = re.compile(
    rb"sglang\.launch_server|\bsglang serve\b|sglang/launch_server\.py|sglang_router|sglang-router|\bsmg\b"
    rb"|\bvllm serve\b|vllm\.entrypoints\.|vllm/entrypoints/openai/api_server\.py"
)
_JSON = re.compile(rb"\s*(?:\{|\[\s*\{)")
_VARIABLE_LINE = re.compile(rb"[A-Z_][A-Z0-9_]*=")

# What people put behind a worker's name to say which answer of it they saved.
_WHAT = re.compile(
    r"(?:^|[-_. ]+)(?:get[-_])?(?:server[-_]?info|metrics|version|v1[-_]models|models|v1[-_]loads|loads|model[-_]?info"
    r"|environ|environment|env"
    r"|cmdline|launch|command|cmd|config|args|startup|stdout|stderr|logs?|out|err|server|sglang|vllm|\d{8}|\d{4}-\d\d-\d\d)$"
)
_SUFFIX = re.compile(r"\.(?:log|txt|json|prom|sh|ya?ml|gz|zst|out|err|jsonl)$|(?<=\.log|\.out|\.err|\.txt)\.\d{1,3}$")


class NothingRecognisedError(InputError):
    """A text in which nothing was recognised: its worker is one of which nothing is known."""


def worker_name(path: Path) -> str:
    """Draw a worker's name from a file's: `decode-0-server_info.json` speaks of `decode-0`."""
    name = path.name
    while (shorter := _SUFFIX.sub("", name)) not in ("", name):
        name = shorter
    while (shorter := _WHAT.sub("", name)) != name:
        name = shorter
    return name.strip("-_. ")


def read_file(raw: IO[bytes], path: Path, source: str, note: Note) -> list[Sighting]:
    """Read an open file.

    Raises:
        InputError: it is damaged, lies about itself, or is of no kind that says something of a server.
        NothingRecognisedError: it is a text, and no line of it was recognised.

    """
    name, group = worker_name(path), str(path.parent)
    head, stream = open_stream(source, raw, note)
    if b"\0" in head[:SCRIPT_BYTES] and (process.is_environment(head) or process.is_command_line(head)):
        return _listed(process.read_saved(_whole(stream, source, SCRIPT_BYTES), source, name, group))
    if _JSON.match(head) and not _is_json_lines(head):
        return _listed(_read_document(_whole(stream, source, DOCUMENT_BYTES), source, name, group))
    if is_binary(head):
        raise InputError(source, "is binary: neither a log nor a saved answer")
    text = head.decode("utf-8", "replace")
    if metrics.is_metrics(text):
        whole = _whole(stream, source, DOCUMENT_BYTES).decode("utf-8", "replace")
        return _listed(metrics.read_metrics(whole, source, name, group))
    if path.suffix in (".yaml", ".yml"):
        return _listed(_read_yaml(_whole(stream, source, SCRIPT_BYTES), source, name, group))
    if len(head) < SNIFF_BYTES and not (_STAMPED.search(head) or vllm_lines.STAMPED.search(head)):
        small = _whole(stream, source, SCRIPT_BYTES)
        found = _read_small(small, path, source, name, group)
        if found is not None:
            return found
        stream = io.BytesIO(small)
    return _read_log(stream, source, name, group, note)


def _read_small(content: bytes, path: Path, source: str, name: str, group: str) -> list[Sighting] | None:
    """Read a small text that is no log: a script, an environment, values written down."""
    variables = [part for part in content.splitlines() if part.strip()]
    if len(variables) >= 2 and all(_VARIABLE_LINE.match(part) for part in variables):
        return _listed(process.read_saved(content, source, name, group))
    text = content.decode("utf-8", "replace")
    if _STARTS_SERVER.search(content):
        return _read_script(text, path, source, name, group)
    found = written.read_written(text, source, name, group)
    return None if found is None else [found]


def _read_script(text: str, path: Path, source: str, name: str, group: str) -> list[Sighting] | None:
    commands = [
        command
        for command in read_script(text)
        if starts_server(command.words) or launch.router_words(command.words) is not None
    ]
    found = []
    for command in commands:
        own = name if len(commands) == 1 else f"{name or path.name}:{command.line}"
        sighting = read_command(command, source, own, group=group, folder=path.parent)
        if sighting is not None:
            found.append(sighting)
    return found or None


def _read_log(stream: ByteStream, source: str, name: str, group: str, note: Note) -> list[Sighting]:
    scanner, starts = Scanner((*NEEDLES, NEEDLE, *vllm_lines.NEEDLES)), WorkerStarts(source, group)
    story = LogStory(source, name or Path(source).name, group, scanner.follow)
    vllm = VllmLog(source, name or Path(source).name, group)
    scanner.is_wanted = story.wants
    own, others = len(NEEDLES), len(NEEDLES) + 1
    for line in scanner.scan(stream):
        if own in line.needles and starts.take(line):
            continue
        if any(needle >= others for needle in line.needles):
            forms = [vllm_lines.FORMS[needle - others] for needle in line.needles if needle >= others]
            if vllm.take(line, forms):
                continue
        line.needles = tuple(needle for needle in line.needles if needle < own)
        story.feed(line)
    if scanner.long_lines:
        note(f"{source}: of {scanner.long_lines} lines longer than {LINE_BYTES >> 10} KiB only the start was looked at")
    served = vllm.finish()
    # Lines that any server of its kind writes make no second worker of a log of vLLM.
    told = [one for one in story.finish() if not served or one.get(keys.ENGINE) is not None]
    found = [*told, *starts.finish(), *served]
    if not found:
        raise NothingRecognisedError(source, "no line of it is one that SGLang or vLLM writes")
    for sighting in found:
        if sighting.name == Path(source).name and not name:
            sighting.name = ""
    return found


def _read_document(content: bytes, source: str, name: str, group: str) -> Sighting | None:
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        place = re.search(r"byte (\d+)", str(error))
        line = content.count(b"\n", 0, int(place[1])) + 1 if place else None
        raise InputError(source, "is no JSON document, and no log of one JSON object a line", line=line) from None
    except RecursionError:
        raise InputError(source, "is JSON nested too deeply") from None
    if isinstance(document, dict) and str(document.get("schema", "")).startswith("kvfence."):
        return None
    reader = recognise(document)
    if reader is None:
        raise InputError(
            source, "is JSON, but not what /server_info, /v1/models, /model_info, /v1/loads or /version answer"
        )
    sighting = new_sighting(source, name, group)
    reader(document, sighting)
    return sighting


def _read_yaml(content: bytes, source: str, name: str, group: str) -> Sighting | None:
    given = launch.read_config(content, source)
    if "apiVersion" in given:
        raise InputError(source, "is a Kubernetes manifest; give the container's command as a script instead")
    if "services" in given:
        raise InputError(source, "is a Compose file; give each service's command and environment as a script instead")
    words = launch.config_words(given)
    if given.keys() & VLLM_OWN:
        return read_command(Command(1, ["vllm", "serve", *words]), source, name, group=group)
    sighting = launch.read_command(Command(1, ["sglang", "serve", *words]), source, name, group=group)
    if sighting is None or not read_flags(words).fields.keys() & FIELDS.keys():
        raise InputError(source, "is YAML, but sets no argument that SGLang has")
    return sighting


def _is_json_lines(head: bytes) -> bool:
    """Whether the first line is a whole JSON object, and another follows or it is the one a worker begins with."""
    first, newline, rest = head.lstrip().partition(b"\n")
    if not (newline and rest.strip()) and NEEDLE not in first:
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _whole(stream: ByteStream, source: str, limit: int) -> bytes:
    """Read a stream to its end.

    Raises:
        InputError: it is longer than `limit` bytes.

    """
    content = bytearray()
    block = bytearray(1 << 16)
    while count := stream.readinto(block) or 0:
        content += block[:count]
        if len(content) > limit:
            raise InputError(source, f"is larger than {limit >> 20} MiB, which a file of its kind is not")
    return bytes(content)


def _listed(sighting: Sighting | None) -> list[Sighting]:
    return [] if sighting is None else [sighting]
