"""What a client may not say to an engine: refused, left out, or said by the gateway in its place.

The tables of `kvfence.knowledge.client_fields` name the members and headers; an operator may change what is done with
each. Of headers only those pass that are known to be harmless: engines and routers go by more of them than any table
holds. Values are never put into a message or a log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from kvfence.errors import InputError
from kvfence.gateway.members import Cut, ExcessError, Path, Search
from kvfence.gateway.problem import FIELD_REFUSED, Problem
from kvfence.knowledge.client_fields import Action, ClientField, Kind, Where, client_fields

Header = tuple[bytes, bytes]

_SALT: Final = "cache_salt"
_SALT_BYTES: Final = 16
_SHORTEST_KEY: Final = 16
_LONGEST_NEUTRAL: Final = 16
_BLANKS: Final = b" \t\r\n"
_NULL: Final = frozenset({b"null"})

_HARMLESS: Final = frozenset({b"accept", b"user-agent"})
# Of one connection, or of the bytes on it: never passed on, whatever an operator says.
_OF_THE_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade", "host", "expect", "content-type", "content-length"),
        *("content-encoding", "x-body-compressed"),
    }
)
_CONNECTION: Final = b"connection"
_REQUEST_ID: Final = "x-request-id"
_AUTHORIZATION: Final = "authorization"

_WHY: Final = {
    Kind.HANDOFF: "it decides whose KV cache is read or written",
    Kind.IDENTITY: "it names requests or conversations that may be another's",
    Kind.SHARING: "it decides whose cached prefixes are shared",
    Kind.ROUTING: "it decides which worker takes the request",
    Kind.INTEGRITY: "it replaces what was counted and cached by something else",
    Kind.CODE: "it changes the program of the server",
    Kind.RESOURCE: "it takes more than an answer does",
    Kind.RECORD: "it changes what is recorded of requests",
}
_UNKNOWN_WHY: Final = "the operator of this server does not allow it"


class RefusedFieldError(Exception):
    """A request has a member that asks for what a client may not have.

    Args:
        field: its name in the table; a dot leads into an object.
        why: a clause for the client.

    """

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field} is not taken from clients: {why}")

    def problem(self) -> Problem:
        """Give the answer to the client."""
        return Problem(400, str(self), param=self.field, code=FIELD_REFUSED)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A body as it goes on.

    Args:
        fields: its members, undecoded.
        stripped: the names of the members that asked for something and were left out.

    """

    fields: dict[str, msgspec.Raw]
    stripped: tuple[str, ...]

    def body(self) -> bytes:
        """Write the body anew, so that no name is in it twice."""
        return msgspec.json.encode(self.fields)


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is done with one member."""

    name: str
    action: Action
    neutral: frozenset[bytes]
    why: str

    def apply(self, value: msgspec.Raw, stripped: list[str]) -> None:
        """Take note of a member that is left out.

        Raises:
            RefusedFieldError: it asks for something, and is refused rather than left out.

        """
        if _bare(value) in self.neutral:
            return
        if self.action is Action.REFUSE:
            raise RefusedFieldError(self.name, self.why)
        stripped.append(self.name)


def _bare(value: msgspec.Raw) -> bytes:
    """Give the start of a value, without the blanks that JSON allows in it."""
    raw = bytes(memoryview(value)[:_LONGEST_NEUTRAL])
    return raw if raw.startswith(b'"') else raw.translate(None, _BLANKS)


@dataclass(frozen=True, slots=True)
class _Inside:
    """What is done with the members inside one member of the body."""

    search: Search
    rules: tuple[tuple[Path, _Rule], ...]

    def clean(self, container: str, value: msgspec.Raw, stripped: list[str]) -> msgspec.Raw:
        """Give the value without the members that are left out; see `_Rule.apply`."""
        if not self.search.may_find(value):  # as it is for nearly all requests
            return value
        for path, rule in self.rules:
            try:
                value = Cut(path, self.search, partial(rule.apply, stripped=stripped)).without(value)
            except ExcessError:
                raise RefusedFieldError(
                    container, "it has more parts, or lists in lists, than are looked through"
                ) from None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise RefusedFieldError(container, "it cannot be read") from None
        return value


class Hygiene:
    """Clean what clients send, before it goes to an engine.

    Args:
        engine: kvfence, sglang or vllm.
        overrides: an action (refuse, strip or allow) by the name of a member or header, in place of the table's. A
            name that is in no table is a header's if it has a hyphen in it.
        tenant_salt: the key from which the salt of each tenant is drawn, 16 bytes at least; `None` if tenants share
            their prefixes: then a client's own salt is refused, because it is not authenticated.
        upstream_key: the key of the engine's server; `None` if it has none.

    Raises:
        InputError: the engine has no table, or an override makes no sense.

    """

    def __init__(
        self,
        engine: str,
        *,
        overrides: Mapping[str, str] = MappingProxyType({}),
        tenant_salt: bytes | None = None,
        upstream_key: str | None = None,
    ) -> None:
        try:
            table = client_fields(engine)
        except KeyError:
            raise InputError("engine", "there is no table of what its clients may send") from None
        self.policy = _policy(table, overrides, salted=tenant_salt is not None)
        self._salt_key = None if tenant_salt is None else _salt_key(tenant_salt)
        self._top: dict[bool, dict[str, _Rule]] = {}
        self._inside: dict[bool, dict[str, _Inside]] = {}
        for pd in (False, True):
            rules = _rules(table, self.policy, pd=pd)
            self._top[pd] = {name: rule for name, rule in rules.items() if "." not in name}
            self._inside[pd] = _by_container(rules)
        self._passed, self._own = _headers(table, self.policy, upstream_key)

    def clean(self, fields: Mapping[str, msgspec.Raw], *, tenant: str | None, pd: bool) -> Cleaned:
        """Give a body as it goes on; what the gateway itself says of the handoff is added afterwards.

        Args:
            fields: the members of the body, undecoded.
            tenant: whose request it is; `None` if nobody says, and those share one salt.
            pd: whether the gateway itself sends the request to two workers.

        Raises:
            RefusedFieldError: a member asks for what a client may not have.

        """
        kept = dict(fields)
        stripped: list[str] = []
        top, inside = self._top[pd], self._inside[pd]
        if not top.keys().isdisjoint(kept):
            for name in sorted(top.keys() & kept.keys()):
                top[name].apply(kept.pop(name), stripped)
        if not inside.keys().isdisjoint(kept):
            for name in sorted(inside.keys() & kept.keys()):
                kept[name] = inside[name].clean(name, kept[name], stripped)
        if self._salt_key is not None:
            asked = bytes(fields[_SALT]) if _SALT in stripped and self.policy[_SALT] is Action.REPLACE else b""
            kept[_SALT] = _salt(self._salt_key, tenant, asked)
        return Cleaned(kept, tuple(sorted(stripped)) if stripped else ())

    def headers(self, headers: list[Header], request_id: bytes) -> list[Header]:
        """Give the headers that go on with a JSON body; those that frame it, and `host`, are the connection's to add.

        Args:
            headers: of the client, names in lower case.
            request_id: the gateway's own name of the request.

        """
        passed = self._passed
        kept = [header for header in headers if header[0] in passed]
        for name, value in headers:
            if name == _CONNECTION and value.lower() not in (b"keep-alive", b"close"):
                hops = {word.strip().lower() for word in value.split(b",")}
                kept = [header for header in kept if header[0] not in hops]
        kept += self._own
        kept.append((_REQUEST_ID.encode(), request_id))
        return kept


def _policy(table: Mapping[str, ClientField], overrides: Mapping[str, str], *, salted: bool) -> Mapping[str, Action]:
    """Work out what is done with each member and header."""
    policy = {name: field.action for name, field in table.items()}
    if not salted:
        policy[_SALT] = Action.REFUSE
    for spelled, word in overrides.items():
        name = spelled.lower() if "-" in spelled else spelled
        problem = _misuse(name, word, header=_is_header(name, table), salted=salted)
        if problem is not None:
            raise InputError("--field", problem, field=name)
        policy[name] = Action(word)
    return MappingProxyType(policy)


def _misuse(name: str, word: str, *, header: bool, salted: bool) -> str | None:
    """Say what is wrong with an override, if something is."""
    if word not in (Action.REFUSE, Action.STRIP, Action.ALLOW):
        return "must be refuse, strip or allow"
    if header and word == Action.REFUSE:
        return "a header is left out, not refused"
    if name == _REQUEST_ID:
        return "the gateway gives each request its name"
    if word == Action.ALLOW and (name in _OF_THE_HOP or name.endswith("*")):
        return "cannot be passed on"
    if word == Action.ALLOW and name == _SALT and salted:
        return "the salt of the tenant takes its place"
    return None


def _is_header(name: str, table: Mapping[str, ClientField]) -> bool:
    return table[name].where is Where.HEADER if name in table else "-" in name


def _rules(table: Mapping[str, ClientField], policy: Mapping[str, Action], *, pd: bool) -> dict[str, _Rule]:
    """List what is done with members that do not simply go on."""
    rules = {}
    for name, action in policy.items():
        field = table.get(name)
        if action is Action.ALLOW or _is_header(name, table) or (field is not None and field.pd_only and not pd):
            continue
        neutral, why = (_NULL, _UNKNOWN_WHY) if field is None else (field.neutral, _WHY[field.kind])
        rules[name] = _Rule(name, action, neutral, why)
    return rules


def _by_container(rules: Mapping[str, _Rule]) -> dict[str, _Inside]:
    found: dict[str, list[tuple[Path, _Rule]]] = {}
    for name, rule in rules.items():
        container, *path = name.split(".")
        if path:
            found.setdefault(container, []).append((tuple(path), rule))
    return {
        container: _Inside(Search({path[-1] for path, _ in inside}), tuple(inside))
        for container, inside in found.items()
    }


def _headers(
    table: Mapping[str, ClientField], policy: Mapping[str, Action], upstream_key: str | None
) -> tuple[frozenset[bytes], list[Header]]:
    """Give the names of the headers that pass, and the headers that the gateway sets on every request."""
    passed = {name.encode() for name, action in policy.items() if action is Action.ALLOW and _is_header(name, table)}
    own = [(b"content-type", b"application/json")]
    if policy[_AUTHORIZATION] is not Action.ALLOW and upstream_key is not None:
        own.append((_AUTHORIZATION.encode(), f"Bearer {upstream_key}".encode()))
    return frozenset(_HARMLESS | passed), own


def _salt_key(tenant_salt: bytes) -> bytes:
    if len(tenant_salt) < _SHORTEST_KEY:
        raise InputError("tenant salt", f"must be at least {_SHORTEST_KEY} bytes long")
    return hashlib.blake2b(tenant_salt, person=b"kvfence salt key").digest()


def _salt(key: bytes, tenant: str | None, asked: bytes) -> msgspec.Raw:
    """Draw the salt of a tenant: a keyed digest, so that nobody can name another's.

    Args:
        key: of BLAKE2b.
        tenant: its name; `None` is no tenant's name, not even that of an empty one.
        asked: the salt that the client asked for, as JSON: it parts the tenant's own prefixes, and reaches no other's.

    """
    name = b"" if tenant is None else b"t" + tenant.encode(errors="surrogatepass")
    digest = hashlib.blake2b(len(name).to_bytes(8) + name + asked, key=key, digest_size=_SALT_BYTES)
    return msgspec.Raw(b'"%b"' % digest.hexdigest().encode())
