"""The server over a real socket, with a backend that says what a test tells it to: raw requests."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from kvfence.engine.http.fields import parse
from kvfence.engine.http.log import logger
from kvfence.engine.http.shape import BODY_BYTES
from kvfence.engine.http.text import Text
from kvfence.fence import outcome as outcomes
from tests.engine.http.models import ASSISTANT, END, USER, Script, http, raw, refusal, serve, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def body(**fields: object) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "ab", "seed": 1} | fields).encode()


def said(**fields: object) -> bytes:
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "ab"}]} | fields).encode()


class Reply:
    """A response, taken apart."""

    def __init__(self, answer: bytes) -> None:
        head, _, self.body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if self.headers.get("transfer-encoding") == "chunked":
            self.body = b"".join(self.body.split(b"\r\n")[1::2])

    @property
    def document(self) -> dict[str, Any]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found

    @property
    def events(self) -> list[Any]:
        *lines, last = self.body.decode().split("\n\n")
        assert last == ""
        assert all(line.startswith("data: ") for line in lines)
        texts = [line.removeprefix("data: ") for line in lines]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]


def ask(backend: Script, text: Text, *requests: bytes, **options: Any) -> list[Reply]:
    replies = []

    async def use(base: str) -> None:
        replies.extend([Reply(await raw(base, request)) for request in requests])

    serve(backend, text, use, **options)
    return replies


def error_of(reply: Reply) -> tuple[int, str, str | None, str | None]:
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.document) == ["error"]
    error = reply.document["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return reply.status, error["type"], error["param"], error["code"]


def test_a_completion(text: Text) -> None:
    backend = Script(b"Hello")
    (reply,) = ask(backend, text, http(COMPLETIONS, body(temperature=0, top_k=2, top_p=0.5)))
    (job,) = backend.jobs
    document = reply.document
    assert reply.status == 200
    assert document.pop("created") > 1_700_000_000
    assert document == {
        "id": job.id,
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
    }
    assert job.tokens == (97, 98)
    assert job.sampling == (16, 0.0, 0.5, 2, 1, (END,), None)
    assert backend.closed == 1


def test_a_conversation(text: Text) -> None:
    backend = Script(b"x" * 60)
    (reply,) = ask(backend, text, http(CHAT, said()))
    assert reply.document["object"] == "chat.completion"
    message = {"role": "assistant", "content": "x" * 50, "refusal": None}
    assert reply.document["choices"] == [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"},
    ]
    assert reply.document["usage"] == {"prompt_tokens": 5, "completion_tokens": 50, "total_tokens": 55}
    assert backend.jobs[0].tokens == (USER, 97, 98, END, ASSISTANT)


def test_a_stream_of_a_completion(text: Text) -> None:
    (reply,) = ask(Script("é!".encode()), text, http(COMPLETIONS, body(stream=True)))
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    *chunks, done = reply.events
    assert done == "[DONE]"
    assert [chunk["choices"][0] for chunk in chunks] == [
        {"index": 0, "text": "é", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "!", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"},
    ]
    assert all("usage" not in chunk for chunk in chunks)


def test_a_stream_of_a_conversation(text: Text) -> None:
    asked = said(stream=True, stream_options={"include_usage": True}, max_tokens=2)
    (reply,) = ask(Script(b"abc"), text, http(CHAT, asked))
    *chunks, used, done = reply.events
    assert done == "[DONE]"
    assert [(chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) for chunk in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "a"}, None),
        ({"content": "b"}, None),
        ({}, "length"),
    ]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk["usage"] for chunk in chunks] == [None] * 4
    assert used["choices"] == []
    assert used["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_nothing(text: Text, stream: bool) -> None:
    (reply,) = ask(Script(), text, http(COMPLETIONS, body(stream=stream)))
    last = reply.events[-2] if stream else reply.document
    assert (last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == ("", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_an_answer_and_lets_the_request_go(text: Text, stream: bool) -> None:
    backend = Script(b"one##two", hang=True)
    (reply,) = ask(backend, text, http(COMPLETIONS, body(stream=stream, stop=["##", "zz"])))
    choices = [event["choices"][0] for event in reply.events[:-1]] if stream else reply.document["choices"]
    assert "".join(choice["text"] for choice in choices) == "one"
    assert choices[-1]["finish_reason"] == "stop"
    assert (backend.said, backend.closed) == (5, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_what_may_have_begun_a_stop_string_comes_at_the_end(text: Text, stream: bool) -> None:
    (reply,) = ask(Script(b"one#\xe4"), text, http(COMPLETIONS, body(stream=stream, stop="##")))
    choices = [event["choices"][0] for event in reply.events[:-1]] if stream else reply.document["choices"]
    assert "".join(choice["text"] for choice in choices) == "one#\ufffd"


def test_log_probabilities_of_a_completion(text: Text) -> None:
    backend = Script([65, 0xE4, END])
    whole, streamed = ask(
        backend,
        text,
        http(COMPLETIONS, body(logprobs=1)),
        http(COMPLETIONS, body(logprobs=0, stream=True)),
    )
    assert whole.document["choices"][0]["logprobs"] == {
        "tokens": ["A", "bytes:\\xe4", "<|end|>"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [
            {"B": -1.0, "A": -0.5},
            {"bytes:\\xe5": -1.0, "bytes:\\xe4": -0.5},
            {"<|user|>": -1.0, "<|end|>": -0.5},
        ],
        "text_offset": [0, 1, 1],
    }
    parts = [event["choices"][0] for event in streamed.events[:-1]]
    assert [part["text"] for part in parts] == ["A", "", "", "\ufffd", ""]
    assert [part["logprobs"] and part["logprobs"]["tokens"] for part in parts] == [
        ["A"],
        ["bytes:\\xe4"],
        ["<|end|>"],
        None,
        None,
    ]
    assert parts[0]["logprobs"]["top_logprobs"] == [{"A": -0.5}]


def test_log_probabilities_of_a_conversation(text: Text) -> None:
    (reply,) = ask(Script([0xE4]), text, http(CHAT, said(logprobs=True, top_logprobs=1)))
    top = {"token": "bytes:\\xe5", "logprob": -1.0, "bytes": [0xE5]}
    assert reply.document["choices"][0]["logprobs"] == {
        "content": [{"token": "bytes:\\xe4", "logprob": -0.5, "bytes": [0xE4], "top_logprobs": [top]}],
        "refusal": None,
    }


def test_the_models(text: Text) -> None:
    (reply,) = ask(Script(), text, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    model = {"id": "tiny", "object": "model", "created": 1_700_000_000, "owned_by": "kvfence", "root": "tiny"}
    assert reply.document == {"object": "list", "data": [model | {"parent": None, "max_model_len": 200}]}


def test_errors_have_one_shape(text: Text) -> None:
    backend = Script()
    found = ask(
        backend,
        text,
        http(COMPLETIONS, b"{"),
        http(CHAT, said(n=2)),
        http(CHAT, said(model="other")),
        http("/v1/nothing%FF%00", b""),
        http("/v1/models", b""),
        http(COMPLETIONS, body(), {"Content-Encoding": "gzip"}),
        http(COMPLETIONS, body(), {"X-Tenant": "a\tb"}),
        http(COMPLETIONS, body(), [("Authorization", "a"), ("authorization", "b")]),
    )
    assert [error_of(reply) for reply in found] == [
        (400, "invalid_request_error", None, None),
        (400, "invalid_request_error", "n", None),
        (404, "invalid_request_error", "model", "model_not_found"),
        (404, "invalid_request_error", None, None),
        (405, "invalid_request_error", None, None),
        (400, "invalid_request_error", None, None),
        (400, "invalid_request_error", "X-Tenant", None),
        (400, "invalid_request_error", "Authorization", None),
    ]
    assert found[4].headers["allow"] == "GET,HEAD"
    assert backend.jobs == []


def test_a_body_may_have_16_mib_and_no_more(text: Text) -> None:
    least = len(body(x=""))
    most = body(x="x" * (BODY_BYTES - least))
    assert len(most) == BODY_BYTES
    first, second = ask(Script(b"a"), text, http(COMPLETIONS, most), http(COMPLETIONS, most + b" "))
    assert first.status == 200
    assert error_of(second) == (413, "invalid_request_error", None, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (outcomes.LENGTH, (400, "invalid_request_error", "messages", "context_length_exceeded")),
        (outcomes.CANARY, (500, "server_error", None, "canary-violation")),
        (outcomes.TIMED_OUT, (503, "service_unavailable", None, "timed-out")),
        (outcomes.ABORTED, (503, "service_unavailable", None, "aborted")),
    ],
)
def test_a_refusal_before_the_first_token_has_a_status(
    text: Text, outcome: str, expected: tuple[int, str, str | None, str | None], stream: bool
) -> None:
    backend = Script(error=refusal(outcome))
    (reply,) = ask(backend, text, http(CHAT, said(stream=stream)))
    assert error_of(reply) == expected
    assert backend.closed == 1


def test_a_refusal_after_the_first_token(text: Text) -> None:
    backend = Script(b"a", error=refusal(outcomes.CANARY))
    whole, streamed = ask(backend, text, http(CHAT, said()), http(CHAT, said(stream=True)))
    assert whole.status == 500
    assert streamed.status == 200
    *_, last = streamed.events
    assert last["error"] == {"message": "because", "type": "server_error", "param": None, "code": "canary-violation"}
    assert b"[DONE]" not in streamed.body
    assert backend.closed == 2


@pytest.mark.parametrize("error", [ConnectionResetError("a secret"), ValueError("a secret")])
def test_what_nobody_expected_is_logged_and_not_told(text: Text, error: Exception) -> None:
    lines: list[str] = []
    heard = logger(lambda level, line: lines.append(f"{level}: {line}"))
    replies = ask(Script(error=error), text, http(CHAT, said()), http(CHAT, said(stream=True)), logger=heard)
    replies += ask(Script(b"a", error=error), text, http(CHAT, said(stream=True)), logger=heard)
    for reply in replies[:2]:
        assert error_of(reply) == (500, "server_error", None, None)
    assert replies[2].events[-1]["error"]["type"] == "server_error"
    assert not any(b"secret" in reply.body for reply in replies)
    assert lines == [f"error: HTTP: a request failed: {type(error).__name__}"] * 3


def test_lengths_are_judged_here(text: Text) -> None:
    backend = Script(b"a")
    requests = [
        http(COMPLETIONS, body(prompt="x" * 149)),
        http(COMPLETIONS, body(prompt="x" * 150)),
        http(COMPLETIONS, body(prompt=[1] * 150)),
        http(COMPLETIONS, body(max_tokens=199)),
        http(CHAT, said(max_tokens=196)),
        http(CHAT, json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x" * 147}]}).encode()),
    ]
    first, *others = ask(backend, text, *requests)
    assert first.status == 200
    for reply, param in zip(others, ["prompt", "prompt", "prompt", "messages", "messages"], strict=True):
        assert error_of(reply) == (400, "invalid_request_error", param, "context_length_exceeded")
    assert len(backend.jobs) == 1


def test_a_conversation_gets_what_the_context_leaves(text: Text) -> None:
    backend = Script(b"a")
    long = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x" * 177}]}).encode()
    assert ask(backend, text, http(CHAT, long), limit=lambda: 190)[0].status == 200
    assert backend.jobs[0].sampling.max_tokens == 20


def test_an_unknown_limit_is_not_the_clients_fault(text: Text) -> None:
    replies = ask(Script(), text, http(CHAT, said()), http(COMPLETIONS, body(max_tokens=999)), limit=lambda: None)
    for reply in replies:
        assert error_of(reply) == (503, "service_unavailable", None, "limit-unknown")


def test_the_engine_may_judge_lengths(text: Text) -> None:
    backend = Script(b"a")
    long = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x" * 300}]}).encode()
    asked = [http(COMPLETIONS, body(max_tokens=999)), http(CHAT, long)]
    replies = ask(backend, text, *asked, admission=False, limit=lambda: None)
    assert [reply.status for reply in replies] == [200, 200]
    assert [job.sampling.max_tokens for job in backend.jobs] == [999, 1]


def test_the_scope_is_of_key_and_tenant(text: Text, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    backend = Script(b"a")
    key, tenant = {"Authorization": "Bearer secret"}, {"X-Team": "red"}
    headers: list[dict[str, str]] = [{}, key, tenant, key | tenant, {"Authorization": "Bearer other"}, key]
    ask(backend, text, *(http(COMPLETIONS, body(), one) for one in headers), scope_header="X-Team")
    scopes = [job.scope for job in backend.jobs]
    assert scopes[0] == ":"
    assert scopes[2] == ":red"
    assert scopes[3] == scopes[1] + "red"
    assert scopes[5] == scopes[1]
    assert len(set(scopes)) == 5
    assert len(scopes[1]) == 33
    assert "secret" not in "".join(scopes)
    assert not any(word in caplog.text for word in ("secret", "red", scopes[1]))


def test_seeds_differ_unless_the_client_names_one(text: Text) -> None:
    backend = Script(b"a")
    ask(backend, text, *[http(COMPLETIONS, body(seed=None))] * 2, http(COMPLETIONS, body(seed=5)))
    first, second, named = (job.sampling.seed for job in backend.jobs)
    assert first != second
    assert named == 5


def test_long_bodies_are_read_in_a_thread(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def watched(*given: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(*given)

    monkeypatch.setattr("kvfence.engine.http.openai.parse", watched)
    long = http(COMPLETIONS, body(prompt="x" * 70_000))
    replies = ask(Script(b"a"), text, long, http(COMPLETIONS, body()))
    assert [reply.status for reply in replies] == [400, 200]
    assert threads == [False, True]


@pytest.mark.parametrize("asked", [said(), said(stream=True)])
def test_a_client_that_goes_before_the_first_token_is_let_go(text: Text, asked: bytes) -> None:
    backend = Script(hang=True)

    async def use(base: str) -> None:
        host, port = base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(http(CHAT, asked))
        await until(lambda: bool(backend.jobs))
        assert backend.closed == 0
        writer.close()
        await writer.wait_closed()
        await until(lambda: backend.closed == 1)

    serve(backend, text, use)


def test_a_client_that_goes_during_an_answer_is_let_go(text: Text) -> None:
    backend = Script(b"abc", hang=True)

    async def use(base: str) -> None:
        assert b'"a"' in await raw(base, http(CHAT, said(stream=True)), until=b'"content":"c"')
        await until(lambda: backend.closed == 1)

    serve(backend, text, use)


def test_a_client_that_reads_nothing_and_goes_is_let_go(text: Text) -> None:
    backend = Script(b"a" * 200_000)

    async def use(base: str) -> None:
        host, port = base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(http(COMPLETIONS, body(stream=True, max_tokens=200_000)))
        seen = -1
        while seen != backend.said or seen <= 0:
            seen = backend.said
            await asyncio.sleep(0.2)
        assert backend.said < 200_000
        writer.transport.abort()
        await until(lambda: backend.closed == 1)

    serve(backend, text, use, admission=False)
    assert backend.said < 200_000


def test_a_client_that_goes_while_it_sends(text: Text, caplog: pytest.LogCaptureFixture) -> None:
    async def use(base: str) -> None:
        host, port = base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(http(CHAT, said())[:-5])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.05)

    serve(Script(), text, use)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_old_client_gets_a_stream_too(text: Text) -> None:
    request = http(COMPLETIONS, body(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    (reply,) = ask(Script(b"ab"), text, request)
    assert "transfer-encoding" not in reply.headers
    assert reply.events[-1] == "[DONE]"
