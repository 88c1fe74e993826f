"""Servers of vLLM on this machine's loopback and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from acceptance.catalogue import ROLES, Role
from acceptance.errors import StartError
from acceptance.servers import Launch, Server
from acceptance.vllm.catalogue import CONTEXT, KV_ROLES, POOL_BYTES, SHORT_POOL_BYTES, Configuration
from acceptance.waiting import LOOPBACK, Progress, free_ports, until_well

MOST_SECONDS_TO_START: Final = 480.0
MODULE: Final = ("-m", "vllm.entrypoints.openai.api_server")
"""`vllm serve` looks for a distribution called vllm, which the one for CPU is not."""

ENVIRON: Final = {
    "VLLM_HOST_IP": LOOPBACK,
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_API_KEY": "",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lo",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
}
"""Of every server: no network but the loopback, one thread each, and no key that stands in this environment."""
SHOWN: Final = ("VLLM_", "UCX_")
"""Variables that a bundle tells."""
MODEL_NAME: Final = "recall"


@dataclass(frozen=True)
class Pair:
    """A pair that is up.

    Args:
        ports: of its servers.
        seconds: it took to come up.

    """

    ports: dict[Role, int]
    seconds: float

    def url(self, role: Role, path: str) -> str:
        """Give the address of something a server answers."""
        return f"http://{LOOPBACK}:{self.ports[role]}{path}"


@asynccontextmanager
async def pair(
    python: Path, configuration: Configuration, model: Path, bundle: Path, tell: Progress
) -> AsyncIterator[Pair]:
    """Start a pair, wait until both servers say they are well, and end both however this is left.

    Raises:
        StartError: if a server ends or the time is over before that.

    """
    ports = free_ports(2 * len(ROLES))
    http, side = dict(zip(ROLES, ports, strict=False)), dict(zip(ROLES, ports[len(ROLES) :], strict=True))
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        servers = {}
        for role in ROLES:
            transfer = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role], "kv_buffer_device": "cpu"}
            own = ("--kv-transfer-config", json.dumps(transfer), *configuration.flags)
            launch = Launch(
                role,
                _command(python, model, http[role], POOL_BYTES, own),
                ENVIRON | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side[role])},
                bundle / f"{role}.log",
                SHOWN,
            )
            servers[role] = stack.enter_context(_running(launch, bundle / f"{role}-launch.sh"))
        await until_well(servers, _health(http), MOST_SECONDS_TO_START, tell)
        yield Pair(http, time.monotonic() - began)


async def start_short(python: Path, model: Path, bundle: Path, tell: Progress) -> tuple[bool, str]:
    """Start one server whose pool holds less than its context. Gives whether it came up, and its log."""
    (port,) = free_ports(1)
    log = bundle / "short.log"
    launch = Launch("decode", _command(python, model, port, SHORT_POOL_BYTES, ()), ENVIRON, log, SHOWN)
    with _running(launch, bundle / "short-launch.sh") as server:
        alone: dict[Role, Server] = {"decode": server}
        try:
            await until_well(alone, _health({"decode": port}), MOST_SECONDS_TO_START, tell)
        except StartError:
            return False, log.read_text(errors="replace")
        return True, log.read_text(errors="replace")


def _health(ports: dict[Role, int]) -> dict[Role, str]:
    return {role: f"http://{LOOPBACK}:{port}/health" for role, port in ports.items()}


def _command(python: Path, model: Path, port: int, pool: int, own: tuple[str, ...]) -> tuple[str, ...]:
    common = (
        *("--model", str(model), "--served-model-name", MODEL_NAME, "--host", LOOPBACK, "--port", str(port)),
        # The models' own bfloat16 ends the process on some CPUs.
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT)),
        *("--kv-cache-memory-bytes", str(pool)),
    )
    return (str(python), *MODULE, *common, *own)


@contextmanager
def _running(launch: Launch, script: Path) -> Iterator[Server]:
    script.write_text(launch.script())
    server = Server(launch)
    try:
        yield server
    finally:
        server.stop()
