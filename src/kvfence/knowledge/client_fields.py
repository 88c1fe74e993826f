"""What a client may send that reaches the handoff, its identity, prefix sharing, routing or administration.

A request's body is mostly the client's own affair. Some members of it, and some headers, are not: they change whose KV
is read or written, or the fate of another's request. Engines take them from anybody, because routers send them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType

from kvfence.knowledge.releases import Version
from kvfence.knowledge.tables import read_rows


class Where(StrEnum):
    """Where in a request it stands."""

    BODY = "body"
    MESSAGE = "message"
    HEADER = "header"


class Kind(StrEnum):
    """What it reaches."""

    HANDOFF = "handoff"
    IDENTITY = "identity"
    SHARING = "sharing"
    ROUTING = "routing"
    INTEGRITY = "integrity"
    CODE = "code"
    RESOURCE = "resource"
    RECORD = "record"


class Action(StrEnum):
    """What a door does with it: refuse the request, leave it out, put its own in its place, or let it through."""

    REFUSE = "refuse"
    STRIP = "strip"
    REPLACE = "replace"
    ALLOW = "allow"


@dataclass(frozen=True)
class ClientField:
    """One row of the table.

    Args:
        name: of the member, or of the header in lower case. A dot leads into an object, and lists are looked through:
            `messages.content.uuid` is the `uuid` of any part of any message. A header's name may end in `*`.
        where: it stands.
        kind: what it reaches.
        action: what a door does with it, unless it is told otherwise.
        pd_only: whether that holds only where the door itself sends each request to two workers.
        neutral: the JSON values that ask for nothing; null is one of them always.
        first_seen: the oldest release in which it was read; releases older than those read may have it as well.
        last_seen: the newest release in which it was read.
        meaning: what it does.
        source: file, line and release in which it was read, and the public record of it.

    """

    name: str
    where: Where
    kind: Kind
    action: Action
    pd_only: bool
    neutral: frozenset[bytes]
    first_seen: Version
    last_seen: Version
    meaning: str
    source: str


@cache
def client_fields(engine: str) -> Mapping[str, ClientField]:
    """Give the table of an engine, by name.

    kvfence's own engine answers by SGLang's names, so SGLang's table is its own too; it ignores most of what is in it.

    Raises:
        KeyError: no such engine was read.

    """
    rows = read_rows(_TABLES[engine])
    return MappingProxyType({row["field"]: _field(row) for row in rows})


_TABLES = {
    "kvfence": "sglang/client_fields.tsv",
    "sglang": "sglang/client_fields.tsv",
    "vllm": "vllm/client_fields.tsv",
}


def _field(row: dict[str, str]) -> ClientField:
    return ClientField(
        row["field"],
        Where(row["where"]),
        Kind(row["kind"]),
        Action(row["action"]),
        _MODES[row["mode"]],
        frozenset({b"null", *row["neutral"].encode().split()}),
        Version.parse(row["first_seen"]),
        Version.parse(row["last_seen"]),
        row["meaning"],
        row["source"],
    )


_MODES = {"any": False, "pd": True}
