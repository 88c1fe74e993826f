"""Family 7xx: who can reach a worker, and what they may tell it."""

from __future__ import annotations

from kvfence.audit import guards
from kvfence.audit.reach import fenced_off, is_loopback
from kvfence.audit.rule import (
    SERVERS,
    Outcome,
    deployment_rule,
    failed,
    lack,
    not_applicable,
    passed,
    unknown,
    worker_rule,
)
from kvfence.facts import keys
from kvfence.facts.model import DECODE, PREFILL, ROUTER, Deployment, Worker
from kvfence.findings import Level, Missing
from kvfence.knowledge.releases import Version

# The last release whose bootstrap server is given no address to listen on (disaggregation/common/conn.py:415 of 0.5.1).
IGNORES_HOST = Version.parse("0.5.1.post3")
# The first release whose decode role takes a request without a transfer, and the releases in which it was seen what for.
TAKES_PRETENCE = Version.parse("0.4.7.post1")
PRETENCE_RUN_ON = "0.5.18 to 0.5.23"
FENCE_BOOTSTRAP = "let only decode workers reach this port (a network policy, or a network of their own)"


@worker_rule(
    "KVF701",
    "bootstrap-port-exposed",
    Level.MEDIUM,
    roles=(PREFILL,),
    refs=("sgl-project/sglang#39400", "sglang 0.5.23 disaggregation/common/conn.py:3069"),
)
def bootstrap_port_exposed(worker: Worker) -> Outcome:
    """Ask who can reach the bootstrap server, which asks nobody for a key."""
    release, port = worker.get(keys.VERSION), worker.get(keys.BOOTSTRAP_PORT)
    if release is not None and release.value.hi <= IGNORES_HOST:
        return failed(
            f"the bootstrap server of {release.value} listens on every address, whatever --host says, and takes routes "
            "from anyone who reaches it",
            [release, port],
            fix=(FENCE_BOOTSTRAP, "run SGLang 0.5.22 or later, where it listens on --host"),
        )
    host = worker.get(keys.BOOTSTRAP_HOST) or worker.get(keys.HOST)
    if host is None:
        return unknown("the address of the bootstrap server is not known", lack(worker, keys.BOOTSTRAP_HOST))
    if is_loopback(host.value):
        if worker.get(keys.BOOTSTRAP_HOST) is None and (release is None or release.value.lo <= IGNORES_HOST):
            return unknown(
                "whether this release's bootstrap server keeps to --host is not known",
                lack(worker, keys.VERSION),
                [host],
            )
        return passed(f"the bootstrap server listens on {host.value} only", [host])
    return failed(
        f"the bootstrap server listens on {host.value}{f':{port.value}' if port else ''} and takes routes from anyone who reaches it",
        [host, port],
        fix=(FENCE_BOOTSTRAP,),
    )


@worker_rule("KVF702", "api-key-missing", Level.LOW, roles=SERVERS, refs=("sglang 0.5.23 utils/auth.py:92",))
def api_key_missing(worker: Worker) -> Outcome:
    """Ask whether whoever reaches a worker may use it."""
    fenced = fenced_off(worker)
    if fenced is not None:
        return fenced
    return failed(
        f"it listens on {worker.value(keys.HOST)} and asks for no key: whoever reaches it can use it past the router",
        [worker.get(keys.HOST), worker.get(keys.API_KEY_SET)],
        fix=("--api-key on every worker and the router, or a network that only the router reaches",),
    )


@worker_rule(
    "KVF703",
    "secret-in-input",
    Level.MEDIUM,
    roles=(*SERVERS, ROUTER),
    refs=("sglang 0.5.23 entrypoints/engine.py:173",),
)
def secret_in_input(worker: Worker) -> Outcome:
    """Look for keys in clear text in what was read."""
    if worker.secrets_shown:
        names = sorted({fact.value for fact in worker.secrets_shown})
        return failed(
            f"{' and '.join(names)} stand in clear text in what was read",
            worker.secrets_shown,
            fix=(
                "treat the key as known to whoever can read these logs and command lines: change it",
                "give the key in a --config file that only the server may read, and scrub server_args= lines where logs are collected",
            ),
        )
    if not worker.may_show_secrets:
        return unknown(
            "nothing was read that would show a key",
            [Missing("server_args", worker.name, "a log with its server_args= line, or its launch command")],
        )
    return passed("no key stands in clear text in what was read")


@worker_rule(
    "KVF704",
    "client-controlled-handoff-fields",
    Level.MEDIUM,
    roles=(PREFILL, DECODE),
    refs=("sgl-project/sglang#40125", "ai-dynamo/dynamo#15057"),
)
def client_controlled_handoff_fields(worker: Worker) -> Outcome:
    """Ask whether anyone but the router can say with whom a request is handed off."""
    fenced = fenced_off(worker)
    if fenced is not None:
        return fenced
    what = f"it listens on {worker.value(keys.HOST)} without a key and takes bootstrap_host, bootstrap_port and bootstrap_room from any request"
    fix = (
        "let only the router reach it, with a key",
        "let the router or a gateway in front strip these fields, rid and mm_hashes from what clients send",
    )
    evidence = [worker.get(keys.HOST), worker.get(keys.API_KEY_SET)]
    if not _answers_without_transfer(worker):
        return failed(what, evidence, fix=fix)
    return failed(
        f"{what}: one that asks for no transfer, as health checks do, is answered from pages that nobody wrote for it, be they "
        f"another request's (seen on {PRETENCE_RUN_ON})",
        [*evidence, worker.get(keys.VERSION)],
        fix=(*fix, "or run kvfence's SGLang plugin, whose door refuses such requests (docs/sglang-plugin.md)"),
        level=Level.HIGH,
    )


def _answers_without_transfer(worker: Worker) -> bool:
    """Whether a worker is known to answer any request that says there is nothing to transfer."""
    release = worker.value(keys.VERSION)
    return (
        worker.role == DECODE
        and release is not None
        and release.decide(lambda version: version >= TAKES_PRETENCE) is True
        and not guards.has(worker, guards.DOOR)
    )


@deployment_rule("KVF705", "router-retries-hide-errors", Level.MEDIUM, refs=("sglang-router 0.3.2: 5 tries on 500",))
def router_retries_hide_errors(deployment: Deployment) -> Outcome:
    """Ask whether a router sends a failed handoff again without telling anyone."""
    routers = list(deployment.of_role(ROUTER))
    told = [retries for router in routers if (retries := router.get(keys.RETRIES)) is not None]
    if any(retries.value for retries in told):
        return failed(
            "the router sends a request again after a 500: a checksum mismatch or a handoff that timed out is hidden, "
            "and pages are pinned anew",
            [retries for retries in told if retries.value],
            fix=("--disable-retries on the router, or count every try in its metrics",),
            about=routers,
        )
    if told:
        return passed("the router tries once", told)
    if not any(worker.role in (PREFILL, DECODE) for worker in deployment.workers):
        return not_applicable("nothing here is handed off")
    return unknown(
        "no router is among the inputs",
        [Missing("the router's command line", None, "the script that starts it, or /proc/PID")],
    )
