"""Who can reach a worker."""

from __future__ import annotations

import ipaddress

from kvfence.audit.rule import Outcome, lack, passed, unknown
from kvfence.facts import keys
from kvfence.facts.model import Worker


def is_loopback(host: str) -> bool:
    """Whether an address is reached from its own host only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def fenced_off(worker: Worker) -> Outcome | None:
    """Say who can reach a worker, if not everyone, or if that is not known; `None` if everyone can."""
    key, host = worker.get(keys.API_KEY_SET), worker.get(keys.HOST)
    if host is not None and is_loopback(host.value):
        return passed(f"only processes on its own host reach it ({host.value})", [host])
    if key is not None and key.value:
        return passed("only holders of its key reach it, such as the router", [key])
    if key is None or host is None:
        unseen = [k for k in (keys.API_KEY_SET, keys.HOST) if worker.get(k) is None]
        return unknown("who reaches it is not known", lack(worker, *unseen))
    return None
