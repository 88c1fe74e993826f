"""What a client may not say is refused, left out or replaced; all else goes on as it came."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.errors import InputError
from kvfence.gateway.hygiene import Cleaned, Hygiene, RefusedFieldError
from kvfence.knowledge.client_fields import Action, ClientField, Where, client_fields

ENGINES = ("sglang", "vllm")
KEY = b"0123456789abcdef"
ROWS = [(engine, row) for engine in ENGINES for row in client_fields(engine).values() if row.where is not Where.HEADER]
HEADERS = [(engine, row) for engine in ENGINES for row in client_fields(engine).values() if row.where is Where.HEADER]
PLAIN: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}


def read(body: bytes) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(body, type=dict[str, msgspec.Raw])


def clean(engine: str, body: Any, *, tenant: str | None = None, pd: bool = True, **options: Any) -> Cleaned:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Hygiene(engine, **options).clean(read(text), tenant=tenant, pd=pd)


def sent(cleaned: Cleaned) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(cleaned.body())
    return document


def nested(name: str, value: Any) -> dict[str, Any]:
    """Give a body that has one member, however deep."""
    for key in reversed(name.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def asking(row: ClientField) -> Any:
    """Give a value that asks for something."""
    return next(value for value in ("x", 7, True) if json.dumps(value).encode() not in row.neutral)


def around(row: ClientField) -> dict[str, str]:
    """Allow the member that holds this one, so that this one is looked at."""
    return {"vllm_xargs": "allow"} if row.name.startswith("vllm_xargs.") else {}


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=[f"{engine}-{row.name}" for engine, row in ROWS])
def test_every_member_of_the_table_is_dealt_with(engine: str, row: ClientField) -> None:
    body = {**PLAIN, **nested(row.name, asking(row))}
    if row.action is Action.ALLOW:
        assert clean(engine, body).stripped == ()
        assert sent(clean(engine, body)) == body
    elif row.action is Action.STRIP:
        done = clean(engine, body, overrides=around(row))
        assert done.stripped == (row.name,)
        assert asking(row) not in sent(done).values()
    elif row.action is Action.REPLACE:
        assert sent(clean(engine, body, tenant_salt=KEY))[row.name] != asking(row)
    else:
        with pytest.raises(RefusedFieldError) as refused:
            clean(engine, body, overrides=around(row))
        assert refused.value.field == row.name


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=[f"{engine}-{row.name}" for engine, row in ROWS])
def test_value_that_asks_for_nothing_is_left_out_and_not_counted(engine: str, row: ClientField) -> None:
    for neutral in row.neutral:
        body = {**PLAIN, **nested(row.name, json.loads(neutral))}
        done = clean(engine, body, overrides=around(row))
        assert done.stripped == ()
        if row.action is not Action.ALLOW and "." not in row.name:
            assert sent(done) == PLAIN


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_request_goes_on_byte_for_byte(engine: str) -> None:
    messages = rb'[ {"role":"user",  "content":"a \u003cb\u003e \"uuid\""} ]'
    body = b'{"model": "m", "messages":  %b, "top_k":1.50, "x":[1e400]}' % messages
    done = clean(engine, body)
    assert done.fields.keys() == read(body).keys()
    assert {name: bytes(value) for name, value in done.fields.items()} == {
        name: bytes(value) for name, value in read(body).items()
    }
    assert done.stripped == ()


def test_body_that_came_in_is_not_changed() -> None:
    fields = read(b'{"rid":"a","model":"m"}')
    assert Hygiene("sglang").clean(fields, tenant=None, pd=False).stripped == ("rid",)
    assert fields.keys() == {"rid", "model"}


@pytest.mark.parametrize(
    "body",
    [
        rb'{"bootstrap\u005froom":5}',
        rb'{"\u0062ootstrap_room":5}',
        b'{"bootstrap_room":null,"bootstrap_room":5}',
        b'{"bootstrap_room" : [null] }',
        b'{"messages":[{"content":[{"image_url":{"url":"u","content\\u005fhash":"sha256:0"}}]}]}',
        b'{"image_data":[["a",{"format":"processor_output","has\\u0068":1}]]}',
        b'{"image_data":{"hash":0}}',
        b'{"sampling_params":[{"n":2}]}',
    ],
)
def test_spelling_and_shape_hide_nothing_from_sglang(body: bytes) -> None:
    with pytest.raises(RefusedFieldError):
        clean("sglang", body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"content":[{"type":"image_url","image_url":null,"uuid":"x"}]}]}',
        rb'{"messages":[{"content":[{"type":"image_url","image_url":null,"uu\u0069d":"x"}]}]}',
        b'{"messages":[{"content":{"uuid":"x"}}]}',
        b'{"messages":[{"content":[{"uuid":0}]}]}',
        b'{"kv_transfer_params":{"do_remote_prefill":true}}',
        b'{"vllm_xargs":{"kv_transfer_params":"x"}}',
        b'{"chat_template_kwargs":{"chat_template":"x"}}',
    ],
)
def test_spelling_and_shape_hide_nothing_from_vllm(body: bytes) -> None:
    with pytest.raises(RefusedFieldError):
        clean("vllm", body)


@pytest.mark.parametrize(("value", "asks"), [(b'""', False), (b'" "', True), (b"[ ]", False), (b"[\n null ]", True)])
def test_blanks_count_in_strings_only(value: bytes, asks: bool) -> None:
    name = b"extra_key" if value.startswith(b'"') else b"mm_hashes"
    assert bool(clean("sglang", b'{"%b":%b}' % (name, value), overrides={name.decode(): "strip"}).stripped) is asks


def test_name_that_comes_twice_goes_on_once() -> None:
    body = b'{"rid":"a","model":"m","rid":null,"messages":[{"content":[{"uuid":"x","uuid":null}]}]}'
    assert clean("vllm", body).body().count(b"uuid") == 0
    assert clean("sglang", body).body().count(b"rid") == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_several_answers_are_refused_in_pd_only(engine: str) -> None:
    assert sent(clean(engine, {"n": 2}, pd=False)) == {"n": 2}
    assert sent(clean(engine, {"n": 1})) == {}
    with pytest.raises(RefusedFieldError, match="n is not taken from clients"):
        clean(engine, {"n": 2})


def test_refusal_names_the_member_and_not_its_value() -> None:
    with pytest.raises(RefusedFieldError) as refused:
        clean("vllm", {"kv_transfer_params": {"secret": "hunter2"}})
    problem = refused.value.problem()
    assert (problem.status, problem.param, problem.code) == (400, "kv_transfer_params", "field_refused")
    assert "kv_transfer_params" in problem.message
    assert b"hunter2" not in problem.body()


def test_tower_of_lists_is_refused() -> None:
    tower = b"[" * 200 + b'{"content":[{"uuid":1}]}' + b"]" * 200
    with pytest.raises(RefusedFieldError) as refused:
        clean("vllm", b'{"messages":' + tower + b"}")
    assert refused.value.field == "messages"


def test_part_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RefusedFieldError) as refused:
        clean("vllm", b'{"messages":[{"\xff":1,"content":[{"uuid":1}]}]}')
    assert refused.value.field == "messages"


def salt(tenant: str | None, body: Any = PLAIN, *, key: bytes = KEY, engine: str = "vllm", **options: Any) -> str:
    value = sent(clean(engine, body, tenant=tenant, tenant_salt=key, **options))["cache_salt"]
    assert isinstance(value, str)
    return value


def test_salt_is_the_tenants_own() -> None:
    salts = [salt(tenant) for tenant in ("a", "b", "ab", "", None)]
    assert len(set(salts)) == len(salts)
    assert salts == [salt(tenant, engine="sglang") for tenant in ("a", "b", "ab", "", None)]
    assert all(len(value) == 32 and set(value) <= set("0123456789abcdef") for value in salts)
    assert salt("a", key=b"another key of 16") != salt("a")


def test_salt_that_a_client_asks_for_parts_its_tenants_prefixes_only() -> None:
    own = {**PLAIN, "cache_salt": "s"}
    assert len({salt("a"), salt("b"), salt("a", own), salt("b", own), salt("a", {**PLAIN, "cache_salt": "t"})}) == 5
    assert salt("a", own) == salt("a", own)
    assert salt("a", {**PLAIN, "cache_salt": None}) == salt("a")
    assert salt("a", own, overrides={"cache_salt": "strip"}) == salt("a")


@given(st.text(), st.text(), st.text(), st.text())
def test_no_choice_of_salt_reaches_another_tenant(mine: str, asked: str, other: str, theirs: str) -> None:
    if (mine, asked) != (other, theirs):
        assert salt(mine, {"cache_salt": asked}) != salt(other, {"cache_salt": theirs})
    assert salt(mine, {"cache_salt": asked}) != salt(mine)


@pytest.mark.parametrize("engine", ENGINES)
def test_salt_of_a_client_is_refused_where_tenants_have_none(engine: str) -> None:
    assert "cache_salt" not in clean(engine, PLAIN).fields
    with pytest.raises(RefusedFieldError):
        clean(engine, {"cache_salt": "s"})
    assert sent(clean(engine, {"cache_salt": "s"}, overrides={"cache_salt": "allow"})) == {"cache_salt": "s"}


def test_operator_decides() -> None:
    overrides = {"priority": "allow", "user": "refuse", "mm_hashes": "strip", "new_member": "refuse"}
    done = clean("sglang", {"priority": 3, "mm_hashes": ["a"]}, overrides=overrides)
    assert (sent(done), done.stripped) == ({"priority": 3}, ("mm_hashes",))
    for name in ("user", "new_member"):
        with pytest.raises(RefusedFieldError):
            clean("sglang", {name: "x"}, overrides=overrides)


def test_allowing_what_holds_a_member_does_not_allow_the_member() -> None:
    overrides = {"vllm_xargs": "allow"}
    done = clean("vllm", {"vllm_xargs": {"a": 1, "session_id": "s"}}, overrides=overrides)
    assert (sent(done), done.stripped) == ({"vllm_xargs": {"a": 1}}, ("vllm_xargs.session_id",))
    with pytest.raises(RefusedFieldError):
        clean("vllm", {"vllm_xargs": {"kv_transfer_params": "x"}}, overrides=overrides)


@pytest.mark.parametrize(
    "options",
    [
        {"overrides": {"rid": "drop"}},
        {"overrides": {"rid": "replace"}},
        {"overrides": {"x-smg-*": "allow"}},
        {"overrides": {"x-tenant": "refuse"}},
        {"overrides": {"x-request-id": "allow"}},
        {"overrides": {"transfer-encoding": "allow"}},
        {"overrides": {"host": "allow"}},
        {"overrides": {"x-body-compressed": "allow"}},
        {"overrides": {"cache_salt": "allow"}, "tenant_salt": KEY},
        {"tenant_salt": b"short"},
    ],
)
def test_policy_that_makes_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Hygiene("sglang", **options)


def test_engine_that_was_not_read() -> None:
    with pytest.raises(InputError):
        Hygiene("tgi")


def headers(engine: str, given: list[tuple[bytes, bytes]], **options: Any) -> list[tuple[bytes, bytes]]:
    return Hygiene(engine, **options).headers(given, b"mine")


@pytest.mark.parametrize(("engine", "row"), HEADERS, ids=[f"{engine}-{row.name}" for engine, row in HEADERS])
def test_every_header_of_the_table_is_dealt_with(engine: str, row: ClientField) -> None:
    name = row.name.replace("*", "anything").encode()
    kept = headers(engine, [(name, b"theirs")])
    assert ((name, b"theirs") in kept) == (row.action is Action.ALLOW)


@pytest.mark.parametrize("engine", ENGINES)
def test_headers_that_go_on(engine: str) -> None:
    given = [
        *((b"host", b"h"), (b"content-length", b"5"), (b"transfer-encoding", b"chunked"), (b"content-type", b"text/x")),
        *((b"connection", b"keep-alive"), (b"te", b"trailers"), (b"upgrade", b"h2c"), (b"expect", b"100-continue")),
        *((b"cookie", b"c"), (b"x-forwarded-for", b"1"), (b"x-never-heard-of", b"1"), (b"x-request-id", b"theirs")),
        *((b"accept", b"*/*"), (b"user-agent", b"u"), (b"traceparent", b"t")),
    ]  # fmt: skip
    assert headers(engine, given) == [
        *((b"accept", b"*/*"), (b"user-agent", b"u"), (b"traceparent", b"t")),
        *((b"content-type", b"application/json"), (b"x-request-id", b"mine")),
    ]


def test_header_that_the_connection_names_stays_on_it() -> None:
    given = [(b"connection", b"close, Traceparent"), (b"traceparent", b"t"), (b"tracestate", b"s")]
    assert [name for name, _ in headers("sglang", given)] == [b"tracestate", b"content-type", b"x-request-id"]
    named = [(b"connection", b"x-request-id, content-type")]
    assert [name for name, _ in headers("sglang", named)] == [b"content-type", b"x-request-id"]


@pytest.mark.parametrize(
    ("options", "goes_on"),
    [
        ({}, []),
        ({"upstream_key": "k"}, [b"Bearer k"]),
        ({"overrides": {"authorization": "allow"}}, [b"Bearer theirs"]),
        ({"overrides": {"authorization": "allow"}, "upstream_key": "k"}, [b"Bearer theirs"]),
        ({"overrides": {"authorization": "strip"}, "upstream_key": "k"}, [b"Bearer k"]),
    ],
)
def test_key_of_the_server(options: dict[str, Any], goes_on: list[bytes]) -> None:
    kept = headers("sglang", [(b"authorization", b"Bearer theirs")], **options)
    assert [value for name, value in kept if name == b"authorization"] == goes_on


def test_operator_lets_a_header_through() -> None:
    given = [(b"x-tenant", b"a"), (b"x-other", b"b")]
    assert headers("sglang", given, overrides={"X-Tenant": "allow"})[0] == (b"x-tenant", b"a")
    assert (b"x-other", b"b") not in headers("sglang", given, overrides={"x-tenant": "allow"})
