"""What is measured: nothing in between, nginx, kvfence, the Rust routers, and what the command line adds."""

from __future__ import annotations

import http.client
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway_rig.processes import Process, free_port
from gateway_rig.prompt import SHORT_BODY, Asked, text_for

DIRECT, NGINX, KVFENCE = "direct", "nginx", "kvfence"
RUST = {"sglang-router": "0.3.2", "vllm-router": "0.1.17"}
START_SECONDS = 90.0


class SkippedError(Exception):
    """A subject cannot be measured here; the text says why."""


@dataclass(frozen=True)
class Subject:
    """Something that answers, on a port.

    Attributes:
        pid: of the process whose tree is measured; None for the engine itself.
    """

    name: str
    port: int
    pid: int | None


def cache() -> Path:
    """Give the directory for virtual environments of peers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvfence" / "bench"


def installed(name: str, version: str) -> Path:
    """Give the program of a peer from PyPI, in a virtual environment of its own, made on first use.

    Raises:
        SkippedError: it cannot be installed.
    """
    home = cache() / f"{name}-{version}"
    complete = home / "complete"
    if not complete.exists():
        shutil.rmtree(home, ignore_errors=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", str(home)], [*pip, f"{name}=={version}"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SkippedError(f"cannot install {name} {version}: {done.stderr.strip()[-300:]}")
        complete.touch()
    return home / "bin" / name


def nginx_configuration(folder: Path, url: str, port: int) -> Path:
    """Write nginx's configuration: one process, as the others have; nothing is logged or held up."""
    address = url.removeprefix("http://")
    text = f"""
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_body_buffer_size 64k;
  keepalive_requests 1000000000;
  upstream engine {{ server {address}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""
    path = folder / "nginx.conf"
    path.write_text(text)
    return path


def command_of(name: str, url: str, port: int, *, folder: Path, tokenizer: Path, limit: int) -> list[str]:
    """Give the command line that starts a subject: one process, quiet, with no cap on what runs at once.

    Raises:
        SkippedError: it is not there.
    """
    if name == KVFENCE:
        given = ["--upstream", url, "--host", "127.0.0.1", "--port", str(port), "--admin-port", str(free_port())]
        return [
            sys.executable,
            "-m",
            "kvfence",
            "gateway",
            *given,
            "--tokenizer",
            str(tokenizer),
            "--limit",
            str(limit),
        ]
    if name == NGINX:
        program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if program is None:
            raise SkippedError("nginx is not installed (Debian: nginx-light)")
        return [program, "-p", str(folder), "-c", str(nginx_configuration(folder, url, port)), "-g", "daemon off;"]
    router = str(installed(name, RUST[name]))
    common = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", url, "--policy", "round_robin"]
    common += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    if name == "sglang-router":
        return [router, "launch", *common, "--log-level", "warn"]
    return [router, *common, "--log-level", "warning", "--max-concurrent-requests", "8192"]


def added_command(template: str, url: str, port: int) -> list[str]:
    """Give the command line of a subject of `--also`."""
    return [word.format(url=url, port=port) for word in shlex.split(template)]


@contextmanager
def running(name: str, command: list[str], port: int) -> Iterator[Subject]:
    """Run a subject, from when it answers.

    Raises:
        SkippedError: it does not start, or does not answer.
    """
    try:
        process = Process(command)
    except OSError as error:
        raise SkippedError(str(error)) from error
    with process:
        deadline = time.monotonic() + START_SECONDS
        while not answers(port):
            if process.popen.poll() is not None or time.monotonic() > deadline:
                raise SkippedError(f"does not start: {process.said().strip()[-600:]}")
            time.sleep(0.1)
        yield Subject(name, port, process.pid)


def answers(port: int) -> bool:
    """Tell whether a chat request to a port is answered by the engine."""
    before, after = Asked(text_for(SHORT_BODY)).parts()
    body = (before + b"000000000000" + after).partition(b"\r\n\r\n")[2]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status == 200 and b"marker-000000000000" in response.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
