"""`kvfence gateway` as a process: one, several, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas" / "gateway-1.json"
ENGINE = """
import asyncio, sys
from tests.gateway.fakes import Worker
async def main():
    worker = await Worker("unified", 1018).start()
    print(worker.url, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.communicate("")


class Running:
    """A gateway's process, and its ports as its log tells them."""

    def __init__(self, engine: str, *options: str) -> None:
        command = [sys.executable, "-m", "kvfence", "gateway", "--upstream", engine, "--port", "0", "--admin-port", "0"]
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.url = self._said(r"ready for clients: (\S+)/v1")
        self.admin = self._said(r"for operators: (\S+)/")
        deadline = time.monotonic() + 20
        while self.get(f"{self.admin}/readyz")[0] != 200:
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.05)

    def _said(self, form: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(form, line):
                return found[1]
        raise AssertionError(self.lines)

    def get(self, url: str, body: dict[str, Any] | None = None, kind: str = "application/json") -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ask(self, tokens: int = 5) -> tuple[int, str]:
        return self.get(f"{self.url}/v1/completions", {"model": "m", "prompt": [7] * tokens})

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in listed if b"kvfence.gateway.process" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=20)
        return self.process.returncode, "".join(self.lines) + told


@contextlib.contextmanager
def running(engine: str, *options: str) -> Iterator[Running]:
    gateway = Running(engine, *options)
    try:
        yield gateway
    finally:
        if gateway.process.poll() is None:
            gateway.end()


def until(true: Any, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metrics(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f" {value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_one_process_serves_tells_and_drains(engine: str) -> None:
    with running(engine, "--log-format", "json") as gateway:
        assert gateway.ask()[0] == 200
        assert gateway.ask(1018)[0] == 400
        status = json.loads(gateway.get(f"{gateway.admin}/status")[1])
        assert (status["schema"], status["mode"], status["ready"], status["limit"]) == (
            "kvfence.gateway/1", "front", True, 1018,
        )  # fmt: skip
        jsonschema.validate(status, json.loads(PUBLISHED.read_text()))
        assert status["fleet"]["workers"][0]["url"] == engine
        told = metrics(gateway.get(f"{gateway.admin}/metrics")[1])
        assert told["kvfence_gateway_over_length_total"] == 1
        assert told["kvfence_gateway_requests_total  /v1/completions 200"] == 1
        assert told["kvfence_gateway_worker_limit_tokens unified upstream-0"] == 1018
        assert told["kvfence_gateway_first_byte_seconds_count"] == 1
        page = gateway.get(f"{gateway.admin}/")[1]
        assert "upstream-0" in page
        assert "1,018" in page
        code, log = gateway.end()
        assert code == 0
        assert all(json.loads(line)["level"] for line in log.splitlines())


def test_quarantine_by_hand_is_seen_and_ended(engine: str) -> None:
    with running(engine) as gateway:
        order = {"name": "upstream-0", "reason": "<b>new</b> driver"}
        assert gateway.get(f"{gateway.admin}/quarantine", order, "text/plain")[0] == 415
        assert gateway.get(f"{gateway.admin}/quarantine", {"name": "decode-9"})[0] == 404
        assert gateway.get(f"{gateway.admin}/quarantine", {"who": "decode-9"})[0] == 400
        assert gateway.get(f"{gateway.admin}/quarantine", order)[0] == 200
        assert gateway.ask()[0] == 503
        assert gateway.get(f"{gateway.url}/readyz")[0] == 503
        page = gateway.get(f"{gateway.admin}/")[1]
        assert "&lt;b&gt;new" in page
        assert gateway.get(f"{gateway.admin}/release", {"name": "upstream-0"})[0] == 200
        assert gateway.ask()[0] == 200
        assert gateway.get(f"{gateway.url}/quarantine", order)[0] == 404  # not by clients
        assert gateway.end(signal.SIGINT)[0] == 0


def test_several_processes_count_together_and_one_that_dies_is_replaced(engine: str) -> None:
    with running(engine, "--workers", "2") as gateway:
        children = gateway.children()
        assert len(children) == 2
        assert {gateway.ask()[0] for _ in range(40)} == {200}
        told = metrics(gateway.get(f"{gateway.admin}/metrics")[1])
        assert told["kvfence_gateway_requests_total  /v1/completions 200"] == 40
        assert json.loads(gateway.get(f"{gateway.admin}/status")[1])["processes"] == 2
        assert gateway.get(f"{gateway.admin}/quarantine", {"name": "upstream-0"})[0] == 200
        assert {gateway.ask()[0] for _ in range(20)} == {503}
        os.kill(children[0], signal.SIGKILL)
        until(lambda: len(gateway.children()) == 2 and children[0] not in gateway.children())
        until(lambda: json.loads(gateway.get(f"{gateway.admin}/status")[1])["processes"] == 2)
        assert {gateway.ask()[0] for _ in range(20)} == {503}  # the new one was told
        assert gateway.get(f"{gateway.admin}/release", {"name": "upstream-0"})[0] == 200
        assert {gateway.ask()[0] for _ in range(20)} == {200}
        alive = gateway.children()
        assert gateway.end()[0] == 0
        assert not [pid for pid in alive if Path(f"/proc/{pid}").exists()]


def test_children_end_with_a_parent_that_was_killed(engine: str) -> None:
    with running(engine, "--workers", "2", "--drain", "0") as gateway:
        children = gateway.children()
        gateway.end(signal.SIGKILL)
        until(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_taken_port_is_named(engine: str, workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [
            sys.executable,
            "-m",
            "kvfence",
            "gateway",
            "--upstream",
            engine,
            "--port",
            port,
            "--admin-port",
            "0",
        ]
        done = subprocess.run([*command, "--workers", workers], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "--port: cannot bind" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "names no worker"),
        (["--prefill", "http://127.0.0.1:1"], "--decode"),
        (["--upstream", "ftp://x"], "--upstream"),
        (["--upstream", "http://127.0.0.1:1", "--tokenizer", "/nowhere"], "/nowhere"),
        (["--upstream", "http://127.0.0.1:1", "--field", "rid=perhaps"], "rid"),
        (["--upstream", "http://127.0.0.1:1", "--tenant-header", "x-tenant"], "KVFENCE_SALT_KEY"),
        (["--upstream", "http://127.0.0.1:1", "--workers", "2", "--tokenizer", "/nowhere"], "could not begin"),
    ],
)
def test_what_cannot_be_used_ends_it_at_the_start(options: list[str], told: str) -> None:
    command = [sys.executable, "-m", "kvfence", "gateway", "--port", "0", "--admin-port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_answers_end_before_it_does(engine: str) -> None:
    async def main(gateway: Running) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        body = json.dumps({"model": "m", "prompt": [7] * 5}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        gateway.process.send_signal(signal.SIGTERM)
        answer = await reader.read()
        writer.close()
        return answer

    with running(engine) as gateway:
        assert b"200 OK" in asyncio.run(main(gateway))
        _, _ = gateway.process.communicate(timeout=20)
        assert gateway.process.returncode == 0
