"""A prefill and a decode server of one release, on this machine's loopback and nothing else."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from acceptance.catalogue import CONTEXT, PATIENCE, ROLES, Configuration, Role
from acceptance.environments import Environment
from acceptance.places import SHIM
from acceptance.servers import Launch, Server
from acceptance.waiting import LOOPBACK, Progress, free_ports, until_well

MOST_SECONDS_TO_START: Final = 600.0

ENVIRON: Final = {
    "SGLANG_HOST_IP": LOOPBACK,
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": f"{PATIENCE:.0f}",
    "MC_FORCE_TCP": "1",
    "MOONCAKE_PROTOCOL": "tcp",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NO_COLOR": "1",
}
"""Of both roles: no network but the loopback."""

COMMON: Final = (
    *("--host", LOOPBACK, "--context-length", str(CONTEXT)),
    *("--disaggregation-transfer-backend", "mooncake", "--chunked-prefill-size", "256", "--enable-metrics"),
)
ONLY: Final[dict[Role, tuple[str, ...]]] = {
    "prefill": ("--disaggregation-mode", "prefill"),
    # The default backup of a retracted request wants pinned memory.
    "decode": ("--disaggregation-mode", "decode", "--disaggregation-decode-retraction-backup", "cpu_tensor"),
}


@dataclass(frozen=True)
class Machine:
    """What the servers compute on.

    Args:
        flags: for both roles.
        environ: variables of both roles.

    """

    flags: tuple[str, ...]
    environ: dict[str, str]


CPU: Final = Machine(
    ("--device", "cpu"), {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SHIM)}
)
CUDA: Final = Machine(("--device", "cuda"), {})


@dataclass(frozen=True)
class Ports:
    """The ports of a pair."""

    prefill: int
    decode: int
    bootstrap: int


class Pair:
    """A pair that is up."""

    def __init__(self, ports: Ports, servers: dict[Role, Server], seconds: float) -> None:
        self.ports = ports
        self.servers = servers
        self.seconds = seconds

    def url(self, role: Role, path: str) -> str:
        """Give the address of something a role answers."""
        return f"http://{LOOPBACK}:{getattr(self.ports, role)}{path}"


@asynccontextmanager
async def pair(
    environment: Environment,
    configuration: Configuration,
    model: Path,
    bundle: Path,
    tell: Progress,
    machine: Machine = CPU,
) -> AsyncIterator[Pair]:
    """Start a pair, wait until both roles say they are well, and end both however this is left.

    Raises:
        StartError: if a role ends or the time is over before that.

    """
    ports = Ports(*free_ports(3))
    servers: dict[Role, Server] = {}
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(TemporaryDirectory(prefix="kvfence-pair-"))
        for role in ROLES:
            launch = Launch(
                role,
                (str(environment.python), *_arguments(role, configuration, model, ports), *machine.flags),
                _environ(role, configuration, environment) | machine.environ | {"TMPDIR": scratch},
                bundle / f"{role}.log",
            )
            (bundle / f"{role}-launch.sh").write_text(launch.script())
            servers[role] = Server(launch)
            stack.callback(servers[role].stop)
        started = Pair(ports, servers, 0.0)
        health = {role: started.url(role, "/health") for role in ROLES}
        await until_well(servers, health, MOST_SECONDS_TO_START, tell)
        started.seconds = time.monotonic() - began
        yield started


def _arguments(role: Role, configuration: Configuration, model: Path, ports: Ports) -> tuple[str, ...]:
    own = ("--port", str(getattr(ports, role)), *ONLY[role], *configuration.flags_of(role))
    if role == "prefill":
        own += ("--disaggregation-bootstrap-port", str(ports.bootstrap))
    return ("-m", "sglang.launch_server", "--model-path", str(model), *COMMON, *own)


def _environ(role: Role, configuration: Configuration, environment: Environment) -> dict[str, str]:
    libraries = {"LD_LIBRARY_PATH": environment.libraries} if environment.libraries else {}
    return ENVIRON | libraries | configuration.environ_of(role)
