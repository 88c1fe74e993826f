"""What is taken from the answers of real servers, of routers, and of servers that lie."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.gateway.fleet import ask
from kvfence.gateway.fleet.ask import Place, UnreadableError
from kvfence.gateway.fleet.reading import read_answers, read_worker
from kvfence.gateway.fleet.seen import Seen
from kvfence.gateway.fleet.spec import Role, WorkerSpec
from kvfence.gateway.fleet.worker import make_workers
from tests.gateway.fleet.servers import REAL, Answers, saved, server_info, serving


def read(answers: Answers, role: Role = "unified", key: str | None = None) -> Seen:
    async def run() -> Seen:
        async with serving(answers) as fake:
            return await read_worker(WorkerSpec(fake.url, role), Place(fake.url, "127.0.0.1", key, 2.0))

    return asyncio.run(run())


def answers_of(document: object) -> Seen:
    return read_answers("http://h:1", {"/server_info": json.dumps(document).encode()})


@pytest.mark.parametrize("version", ["0.5.19", "0.5.21", "0.5.22", "0.5.23"])
@pytest.mark.parametrize(("role", "limit", "pool"), [("prefill", 1018, 1024), ("decode", 4090, 8192)])
def test_real_sglang(version: str, role: Role, limit: int, pool: int) -> None:
    seen = read(
        {
            "/server_info": saved(f"{version}/{role}-server_info.json"),
            "/v1/models": saved(f"{version}/{role}-v1_models.json"),
        },
        role,
    )
    assert (seen.engine, seen.version, seen.role, seen.limit) == ("sglang", version, role, limit)
    assert (seen.context_len, seen.pool_tokens, seen.page_tokens) == (4096, pool, 1)
    assert (seen.at_most, seen.lacks) == (None, None)
    assert seen.switches is (None if version == "0.5.19" else False)  # it has no such option
    assert seen.truncates is (version == "0.5.23")
    assert seen.models == ("/models/tiny-llama",)
    assert seen.bootstrap_port is not None
    assert 8900 < seen.bootstrap_port < 9000


def test_real_sglang_of_two_ranks() -> None:
    seen = read({"/server_info": saved("dp2-0.5.21/server_info.json")})
    assert (seen.role, seen.limit) == ("unified", 2042)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_real_vllm(role: Role) -> None:
    folder = "vllm-0.32/pair"
    seen = read(
        {
            "/v1/models": saved(f"{folder}/{role}-models.json"),
            "/version": saved(f"{folder}/{role}-version.json"),
            "/metrics": saved(f"{folder}/{role}-metrics.txt"),
        },
        role,
    )
    assert (seen.engine, seen.version, seen.role) == ("vllm", "0.32.0", None)
    assert (seen.limit, seen.context_len, seen.models) == (4096, 4096, ("recall",))
    assert seen.pool_tokens is not None
    assert make_workers([WorkerSpec("http://h:1", role)])[0].could_hold is None


def test_older_path_is_asked() -> None:
    seen = read({"/get_server_info": saved("0.5.19/prefill-server_info.json")}, "prefill")
    assert seen.limit == 1018


COORDINATOR = {"schema": "kvfence.serve/1", "limit": 1010, "context_length": 4096, "model": "0" * 64, "workers": []}
KVFENCE_MODEL = {"id": "recall", "owned_by": "kvfence", "parent": None, "max_model_len": 4096}


def test_coordinator_of_kvfence_tells_its_limit() -> None:
    answers = {"/status": COORDINATOR, "/v1/models": {"object": "list", "data": [KVFENCE_MODEL]}}
    seen = read(answers)
    assert (seen.engine, seen.role, seen.limit, seen.context_len) == ("kvfence", "router", 1010, 4096)
    assert seen.models == ("recall",)
    (worker,) = make_workers([WorkerSpec("http://h:1", "unified")])
    worker.learn(seen)
    assert worker.usable
    assert worker.limit == 1010


@pytest.mark.parametrize("status", [{"schema": "kvfence.gateway/1", "limit": 5}, COORDINATOR | {"limit": -1}, [], "x"])
def test_other_status_tells_no_limit(status: object) -> None:
    seen = read({"/status": status, "/v1/models": {"object": "list", "data": [KVFENCE_MODEL]}})
    assert seen.limit is None
    assert seen.lacks is not None


@pytest.mark.parametrize("listing", [{"workers": [], "total": 0}, 401])
def test_router_passes_on_what_one_worker_says(listing: object) -> None:
    """What it says is no limit of its own; but where one is stated, it is not used above it."""
    seen = read({"/workers": listing, "/get_server_info": saved("0.5.19/prefill-server_info.json"), "/v1/models": 503})
    assert (seen.role, seen.limit, seen.at_most) == ("router", None, 1018)
    assert seen.lacks is not None
    unstated, higher, lower = make_workers(
        WorkerSpec(f"http://h:{port}", "unified", limit=limit) for port, limit in ((1, None), (2, 4090), (3, 500))
    )
    for worker in (unstated, higher, lower):
        worker.learn(seen)
        assert worker.usable
    assert (unstated.limit, higher.limit, lower.limit) == (None, 1018, 500)


def test_router_that_says_nothing_can_be_used_with_a_stated_limit() -> None:
    seen = read({"/v1/models": 503}, "router")
    assert (seen.role, seen.limit, seen.at_most, seen.models) == ("router", None, None, ())


@pytest.mark.parametrize(
    ("ranks", "role"),
    [(["decode", "decode"], "decode"), (["prefill", "decode"], "mixed"), ([None, 3], "prefill"), ([], "prefill")],
)
def test_role_is_the_one_the_schedulers_have_now(ranks: list[object], role: str) -> None:
    states = [{"disaggregation_mode": rank} for rank in ranks]
    assert answers_of(server_info(disaggregation_mode="prefill", internal_states=states)).role == role


def test_name_of_a_host_tells_no_role() -> None:
    models = {"object": "list", "data": [{"id": "m", "owned_by": "vllm", "max_model_len": 10}]}
    assert read_answers("http://prefill-0:1", {"/v1/models": json.dumps(models).encode()}).role is None


def test_models_of_different_lengths_have_no_limit() -> None:
    data = [{"id": name, "owned_by": "vllm", "max_model_len": length} for name, length in (("a", 10), ("b", 20))]
    seen = read_answers("http://h:1", {"/v1/models": json.dumps({"object": "list", "data": data}).encode()})
    assert (seen.limit, seen.lacks) == (None, "its models differ in length")
    adapter = [data[0], data[1] | {"parent": "a"}]
    seen = read_answers("http://h:1", {"/v1/models": json.dumps({"object": "list", "data": adapter}).encode()})
    assert (seen.limit, seen.models) == (10, ("a", "b"))


WRONG = [-1, 0, "1018", "many", 10**30, -(10**30), 1.5, True, [], {}, "NaN", "9" * 5000]


@pytest.mark.parametrize("value", WRONG)
def test_limit_that_is_none_is_unknown_also_where_it_could_be_worked_out(value: object) -> None:
    seen = answers_of(server_info(max_req_input_len=value))
    assert seen.limit is None
    assert seen.lacks == "its max_req_input_len is no number of tokens"


@pytest.mark.parametrize("name", ["context_length", "max_total_num_tokens"])
@pytest.mark.parametrize("value", [-1, 0, 10**30, 1.5, True, [], {}, "many", None])
def test_size_that_is_none_is_unknown(name: str, value: object) -> None:
    seen = answers_of(server_info(max_req_input_len=None) | {name: value})
    assert seen.limit is None
    assert seen.lacks is not None
    assert (seen.context_len is None) is (name == "context_length")
    assert (seen.pool_tokens is None) is (name == "max_total_num_tokens")


@pytest.mark.parametrize("port", [0, -1, 65536, "x", 1.5, None, True])
def test_bootstrap_port_that_is_none_is_that_of_the_engine(port: object) -> None:
    told, stated = make_workers([WorkerSpec("http://h:1", "prefill"), WorkerSpec("http://h:2", "prefill", 5)])
    for worker in (told, stated):
        worker.learn(answers_of(server_info(disaggregation_bootstrap_port=port)))
    assert (told.bootstrap_port, stated.bootstrap_port) == (8998, 5)
    told.learn(answers_of(server_info(disaggregation_bootstrap_port=9001)))
    assert told.bootstrap_port == 9001


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"max_req_input_len": NaN}', b"\xff", b"null", b"[1]"])
def test_what_is_no_document_is_unreadable(body: bytes) -> None:
    paths = ("/server_info", "/v1/models", "/model_info", "/workers", "/status", "/metrics", "/v1/loads", "/version")
    with pytest.raises(UnreadableError) as caught:
        read(dict.fromkeys(paths, body))
    assert caught.value.reached


def test_huge_body_is_not_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "ANSWER_BYTES", 1 << 20)
    with pytest.raises(UnreadableError, match="more than 1 MiB"):
        read({"/server_info": b" " * (3 << 20)})


def test_compressed_body_is_not_unpacked() -> None:
    from aiohttp import web

    def bomb(_: web.Request) -> web.StreamResponse:
        response = web.Response(body=json.dumps(server_info()).encode())
        response.enable_compression(web.ContentCoding.gzip)
        return response

    with pytest.raises(UnreadableError, match="nothing that could be read"):
        read({"/server_info": bomb})


def test_address_that_was_held_is_asked_whatever_the_name_stands_for() -> None:
    async def run() -> Seen:
        async with serving({"/server_info": server_info()}) as fake:
            url = fake.url.replace("127.0.0.1", "moved-away.invalid")
            return await read_worker(WorkerSpec(url, "unified"), Place(url, "127.0.0.1", None, 2.0))

    assert asyncio.run(run()).limit == 1018


def test_redirect_is_not_followed() -> None:
    from aiohttp import web

    def away(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/elsewhere")

    with pytest.raises(UnreadableError, match="HTTP 302"):
        read({"/server_info": away, "/elsewhere": server_info()}, key="k")


@pytest.mark.parametrize(("key", "words"), [(None, "it asks for a key"), ("k", "it refuses the given key")])
def test_key_that_is_wanted_is_told(key: str | None, words: str) -> None:
    with pytest.raises(UnreadableError, match=words):
        read({"/server_info": 401, "/v1/models": 401}, key=key)


def test_nobody_there_is_not_reached() -> None:
    async def run() -> None:
        async with serving({}) as fake:
            url = fake.url
        with pytest.raises(UnreadableError) as caught:
            await read_worker(WorkerSpec(url, "decode"), Place(url, None, None, 2.0))
        assert not caught.value.reached
        assert caught.value.problem == "cannot connect (Connection refused)"

    asyncio.run(run())


def test_failing_of_what_adds_little_does_not_matter() -> None:
    models = {"/v1/models": saved("vllm-0.32/pair/decode-models.json"), "/metrics": 500, "/version": 500}
    assert read(models, "decode").limit == 4096


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(PLAIN, lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=8)
REAL_INFO = json.loads((REAL / "0.5.23" / "prefill-server_info.json").read_bytes())
MODELS = json.loads((REAL / "vllm-0.32/pair/decode-models.json").read_bytes())


@given(st.dictionaries(st.sampled_from(sorted(REAL_INFO)), VALUES), VALUES, VALUES)
def test_no_answer_crashes_the_reader(members: dict[str, object], model: object, other: object) -> None:
    documents = {
        "/server_info": REAL_INFO | members,
        "/v1/models": MODELS | {"data": [model, *MODELS["data"]]},
        "/model_info": other,
        "/status": {"schema": "kvfence.serve/1", "limit": other},
        "/v1/loads": {"loads": [other, model]},
    }
    seen = read_answers("http://h:1", {path: json.dumps(document).encode() for path, document in documents.items()})
    for tokens in (seen.limit, seen.context_len, seen.pool_tokens, seen.page_tokens):
        assert tokens is None or (type(tokens) is int and 0 < tokens < 10**15)
    assert all(name.isprintable() for name in seen.models)
