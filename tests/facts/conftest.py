"""What the tests of kvfence.facts share: small logs, and short ways to have them read."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from kvfence.facts.assume import read_assumption
from kvfence.facts.collect import Input, collect
from kvfence.facts.dialects.sglang.lines import NEEDLES
from kvfence.facts.dialects.sglang.story import LogStory
from kvfence.facts.fact import Evidence, Fact, Key
from kvfence.facts.files import read_file
from kvfence.facts.happenings import Refusal
from kvfence.facts.model import Deployment, Sighting, Worker
from kvfence.facts.scan import Line, Scanner
from kvfence.facts.stream import open_stream

REAL = Path(__file__).parents[1] / "data" / "real"

Files = Mapping[str, str | bytes]
CollectFiles = Callable[..., Deployment]


class Pieces:
    """A byte stream that gives at most so many bytes at once."""

    def __init__(self, content: bytes, at_once: int = 1 << 30) -> None:
        self._raw, self._at_once = io.BytesIO(content), at_once
        self.given = 0

    def readinto(self, buffer: bytearray | memoryview, /) -> int:
        view = memoryview(buffer)[: self._at_once]
        count = self._raw.readinto(view)
        self.given += count
        return count


def at(seconds: int, message: str, ranks: str = "") -> str:
    """Stamp a message as SGLang does."""
    stamp = f"2026-11-30 {15 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"[{stamp}{ranks}] {message}"


def dump(**fields: object) -> str:
    """Write the startup dump of some arguments, as 0.5.19 and later do."""
    return f"server_args={ {'model_path': '/models/m', **fields}!r}"


def summary(pool: int, context: int = 4096) -> str:
    return (
        f"max_total_num_tokens={pool}, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=512,"
        f" context_len={context}, available_gpu_mem=16.16 GB"
    )


def start(pool: int, seconds: int = 0, context: int = 4096, **fields: object) -> str:
    """Write the lines of a start that say something."""
    ready = "The server is fired up and ready to roll!"
    lines = (at(seconds, dump(**fields)), at(seconds + 1, summary(pool, context)), at(seconds + 2, ready))
    return "".join(f"{line}\n" for line in lines)


def refusal(tokens: int = 2000, limit: int = 1018, rid: str = "r1") -> str:
    return (
        f"Input length ({tokens} tokens) exceeds the maximum allowed length ({limit} tokens)."
        f" Use a shorter input or enable --allow-auto-truncate., self.rid='{rid}'"
    )


def batch(tokens: int = 1, sequences: int = 1, usage: str = "0.00") -> str:
    return (
        f"Prefill batch, #new-seq: {sequences}, #new-token: {tokens}, #cached-token: 0, token usage: {usage},"
        " #running-req: 0, #queue-req: 0, #pending-token: 0, #bootstrap-req: 0, #inflight-req: 1"
    )


def access(status: int = 200, path: str = "/generate") -> str:
    reason = HTTPStatus(status).phrase
    return f'INFO:     127.0.0.1:39510 - "POST {path} HTTP/1.1" {status} {reason}'


def stamped(*messages: str, seconds: int = 100) -> str:
    """Write messages, one a second."""
    return "".join(f"{at(seconds + number, message)}\n" for number, message in enumerate(messages))


def scan(content: bytes, needles: Sequence[bytes] = NEEDLES, at_once: int = 1 << 30) -> list[Line]:
    return list(Scanner(needles).scan(Pieces(content, at_once)))


def unpacked(content: bytes, notes: list[str] | None = None, source: str = "a.log") -> bytes:
    """Open packed bytes and give what they hold."""
    _, stream = open_stream(source, io.BytesIO(content), (notes if notes is not None else []).append)
    whole, block = bytearray(), bytearray(4096)
    while count := stream.readinto(block) or 0:
        whole += block[:count]
    return bytes(whole)


def tell(text: str | bytes, name: str = "w", source: str = "w.log") -> list[Sighting]:
    """Have a log read: one sighting a worker."""
    content = text if isinstance(text, bytes) else text.encode()
    scanner = Scanner(NEEDLES)
    story = LogStory(source, name, "group", scanner.follow)
    scanner.is_wanted = story.wants
    for line in scanner.scan(Pieces(content)):
        story.feed(line)
    return story.finish()


def tell_one(text: str | bytes) -> Sighting:
    (told,) = tell(text)
    return told


def refusals(text: str) -> list[Refusal]:
    return [one for sighting in tell(text) for one in sighting.happenings.refusals]


def read(content: str | bytes, name: str = "w.log", notes: list[str] | None = None) -> list[Sighting]:
    """Have one file read, whatever it is."""
    raw = io.BytesIO(content if isinstance(content, bytes) else content.encode())
    return read_file(raw, Path(name), name, (notes if notes is not None else []).append)


def read_one(content: str | bytes, name: str = "w.log") -> Sighting:
    (found,) = read(content, name)
    return found


def value(holder: Sighting | Worker, key: Key[Any]) -> Any:
    fact = holder.facts.get(key.name)
    return None if fact is None else fact.value


def fact(content: object, source: str = "w.log", line: int | None = 1) -> Fact[Any]:
    return Fact(content, (Evidence(source, str(content), line),))


@pytest.fixture
def collect_files(tmp_path: Path) -> CollectFiles:
    """Write files into a directory and collect what it says."""

    def collected(files: Files, *assumed: str, inputs: Sequence[Input] | None = None) -> Deployment:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        given = [Input(str(tmp_path))] if inputs is None else inputs
        return collect(given, assumptions=[read_assumption(text) for text in assumed])

    return collected
