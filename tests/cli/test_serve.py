"""`kvfence serve` as a user calls it: started as a process, asked, audited and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.cli.conftest import Ran

Run = Callable[..., Ran]

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas" / "serve-1.json"
CUE = "The pass of Ann is"
Start = Callable[..., "Serving"]


class Serving:
    """A running `kvfence serve`, with the URL of each worker and of the coordinator."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.urls: dict[str, str] = {}
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            if told := re.search(r"(\S+) answers at (http://\S+?)(?:\"|\s|$)", line):
                self.urls[told[1].rpartition('"')[2]] = told[2]
            if told := re.search(r"ready: (http://\S+)/v1", line):
                self.urls[""] = told[1]
                return
        raise AssertionError("".join(self.lines))

    def get(self, path: str, worker: str = "") -> Any:
        with urllib.request.urlopen(self.urls[worker] + path, timeout=20) as response:
            return json.load(response)

    def family(self) -> set[int]:
        """Give every process that came of it."""
        parents = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                if entry.name.isdigit():
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        found = {self.process.pid}
        while new := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= new
        return found


@pytest.fixture
def serve() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def start(*options: str) -> Serving:
        command = [sys.executable, "-m", "kvfence", "serve", "--port", "0", *options]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return Serving(running[-1])

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def alive(pids: set[int]) -> set[int]:
    def running(pid: int) -> bool:
        try:
            return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False

    return {pid for pid in pids if running(pid)}


def test_serves_the_openai_client_and_ends_without_a_trace(serve: Start) -> None:
    engine = serve()
    client = openai.OpenAI(base_url=f"{engine.urls['']}/v1", api_key="any", max_retries=0)
    with client:
        prompt = "The pass of Ann is Blue-77. What a day. The pass of Ann is"
        whole = client.completions.create(model="recall", prompt=prompt, max_tokens=8, temperature=0)
        assert whole.choices[0].text == " Blue-77"
        pieces = client.completions.create(model="recall", prompt=prompt, max_tokens=8, temperature=0, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == " Blue-77"
        chat = client.chat.completions.create(
            model="recall",
            messages=[{"role": "user", "content": "The pass of Ann is Blue-77. "}, {"role": "user", "content": CUE}],
            max_tokens=8,
            temperature=0,
        )
        assert chat.choices[0].message.content == " Blue-77"
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="recall", prompt="x" * 5000)
        assert refused.value.code == "context_length_exceeded"
    processes = engine.family()
    assert len(processes) == 8  # coordinator, zygote, two ranks of each role, two movers
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(20) == 0
    deadline = time.monotonic() + 10
    while alive(processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(processes) == set()


def test_audit_of_its_workers_is_clear(serve: Start, kvfence: Run) -> None:
    engine = serve("--tp-size", "1")
    done = kvfence("audit", engine.urls["prefill-0"], engine.urls["decode-0"], "--format", "json")
    document = json.loads(done.out)
    assert (done.code, document["verdict"]) == (0, "clear")
    assert [finding["rule"] for finding in document["findings"] if finding["status"] == "fail"] == []


def test_audit_of_a_short_pool_finds_it(serve: Start, kvfence: Run) -> None:
    engine = serve("--tp-size", "1", "--lab", "--allow-short-pool", "--prefill-pool-tokens", "1024")
    done = kvfence("audit", engine.urls["prefill-0"], engine.urls["decode-0"], "--format", "json")
    document = json.loads(done.out)
    assert (done.code, document["verdict"]) == (1, "at-risk")
    failed = {finding["rule"] for finding in document["findings"] if finding["status"] == "fail"}
    assert failed >= {"KVF101", "KVF102"}
    assert document["pairs"][0]["gap"] == {"lo": 1025, "hi": 4096, "refuses": "prefill"}


def test_log_of_an_engine_is_read(serve: Start, kvfence: Run, tmp_path: Path) -> None:
    engine = serve("--tp-size", "1", "--log-format", "json")
    log = tmp_path / "engine.log"
    log.write_text("".join(engine.lines))
    assert all(json.loads(line)["level"] == "info" for line in engine.lines)
    workers = json.loads(kvfence("audit", str(log), "--format", "json", "--allow-unknown").out)["workers"]
    assert [(worker["role"], worker["pool_tokens"]) for worker in workers] == [("prefill", 8192), ("decode", 16384)]


def test_status_and_metrics_tell_of_a_worker_that_died(serve: Start) -> None:
    engine = serve("--tp-size", "1")
    status = engine.get("/status")
    jsonschema.validate(status, json.loads(PUBLISHED.read_text()))
    assert [worker["life"] for worker in status["workers"]] == [1, 1]
    os.kill(max(engine.family()), signal.SIGKILL)  # the youngest: a rank of decode, or the mover of prefill
    deadline = time.monotonic() + 20
    while max(worker["life"] for worker in engine.get("/status")["workers"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while not all(worker["up"] for worker in engine.get("/status")["workers"]):
        time.sleep(0.05)
    with urllib.request.urlopen(f"{engine.urls['']}/metrics", timeout=20) as response:
        text = response.read().decode()
    assert "kvfence_worker_life" in text
    assert 'kvfence_pool_pages{rank="0",state="quarantined",worker="decode-0"} 0.0' in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--prefill-pool-tokens", "100"], "--prefill-pool-tokens: a pool of 96 tokens does not hold one request"),
        (["--without", "tags"], "--without: tags: an engine is weakened in the lab only"),
        (["--without", "nonsense"], "--without: 'nonsense' is no mechanism"),
        (["--allow-short-pool"], "--allow-short-pool: is for the lab only"),
        (["--lab", "--host", "0.0.0.0"], "--host: an engine in the lab binds this machine alone"),
        (["--transport", "pigeon"], "--transport: 'pigeon' is not one of shared-memory, tcp-epoch"),
        (["--context-length", "999999"], "--context-length: is 999999, and the model's positions end at 8192"),
        (["--tp-size", "3"], "--tp-size: 16 heads cannot be split evenly over 3 ranks"),
        (["--tp-size", "0"], "--tp-size: is 0, and must be at least 1"),
        (["--model", "/proc/none"], "/proc/none: is no directory"),
        (["--tags", "md5"], "--tags: 'md5' is not one of xxh3-128, blake3-keyed"),
        (["--tenant-header", "Bad:Header"], "--tenant-header: 'Bad:Header' is no header that can name a tenant"),
        (["--tenant-header", "authorization"], "--tenant-header"),
        (["--prefill", "33"], "--prefill: is 33, and 32 are the most"),
        (["--host", "nohost.invalid"], "--host: cannot bind nohost.invalid"),
    ],
)
def test_refuses_what_cannot_be_served(kvfence: Run, options: list[str], told: str) -> None:
    done = kvfence("serve", *options)
    assert done.code == 2, done.err
    assert told in done.err
    assert "Traceback" not in done.err
