"""Bodies of requests: what is read of them, and what is refused in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.engine.http.openai import UNSUPPORTED, Reader, Request, fit, read_chat, read_completion
from kvfence.engine.http.problem import ApiError, from_refusal
from kvfence.fence import outcome as outcomes
from tests.engine.http.models import refusal

ASKED: dict[str, Any] = {"model": "tiny", "prompt": "a"}
SAID: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


def completion(body: object = None, **fields: object) -> Request:
    return read_completion(json.dumps(ASKED | fields if body is None else body).encode(), "tiny", 259)


def chat(**fields: object) -> Request:
    return read_chat(json.dumps(SAID | fields).encode(), "tiny", 259)


def problem(reader: Reader, body: bytes | dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        reader(body if isinstance(body, bytes) else json.dumps(body).encode(), "tiny", 259)
    return caught.value


def test_what_a_body_does_not_say() -> None:
    expected = Request("a", (), 16, 1.0, 1.0, 0, None, (), stream=False, include_usage=False, logprobs=None)
    assert completion() == expected
    assert completion(**dict.fromkeys(["temperature", "stop", "seed", "n", "stream", "logprobs"])) == expected
    said = ({"role": "user", "content": "a"},)
    assert chat() == expected._replace(prompt="", messages=said, max_tokens=None)


def test_all_that_is_read() -> None:
    fields = {"temperature": 0, "top_p": 0.5, "top_k": 3, "seed": 7, "stop": ["x", "y"], "stream": True, "user": "me"}
    request = completion(**fields, max_tokens=5, logprobs=5, stream_options={"include_usage": True})
    assert request == Request("a", (), 5, 0.0, 0.5, 3, 7, ("x", "y"), stream=True, include_usage=True, logprobs=5)
    assert chat(max_completion_tokens=9, logprobs=True).max_tokens == 9
    assert chat(max_tokens=9, max_completion_tokens=9).max_tokens == 9
    assert [chat(logprobs=flag).logprobs for flag in (True, False)] == [0, None]
    assert chat(logprobs=True, top_logprobs=20).logprobs == 20
    assert completion(logprobs=0).logprobs == 0
    assert completion(seed=-1).seed == 2**63 - 1
    assert completion(top_k=-1).top_k == 0
    assert completion(unheard_of={"deep": [1]}, stop=[]) == completion()


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", "a"), (["a"], "a"), ([1, 258], (1, 258)), ([[1, 2]], (1, 2)), ("\u0000\n", "\u0000\n"), ("😀", "😀")],
)
def test_prompts(prompt: object, read: object) -> None:
    assert completion(prompt=prompt).prompt == read


def test_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "system", "content": "", "name": "x"},
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": "c", "tool_calls": [], "refusal": None},
    ]
    assert chat(messages=messages).messages == (
        {"role": "system", "content": "", "name": "x"},
        {"role": "developer", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
    )


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_would_make_another_answer_is_refused(name: str) -> None:
    for neutral in (None, *UNSUPPORTED[name]):
        assert completion(**{name: neutral}) == completion()
        chat(**{name: neutral})
    for reader, body in ((read_completion, ASKED), (read_chat, SAID)):
        for value in (2, name != "add_generation_prompt", {"a": 1}, ["x"], "x"):
            found = problem(reader, body | {name: value})
            assert (found.status, found.param) == (400, name)
            assert name in found.message


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("model", None, "model"),
        ("model", 3, "model"),
        ("model", "\ud800", "model"),
        ("prompt", None, "prompt"),
        ("prompt", "", "prompt"),
        ("prompt", [], "prompt"),
        ("prompt", [""], "prompt"),
        ("prompt", [[]], "prompt"),
        ("prompt", ["a", "b"], "prompt"),
        ("prompt", [[1], [2]], "prompt"),
        ("prompt", [["a"]], "prompt"),
        ("prompt", [[["a"]]], "prompt"),
        ("prompt", 3, "prompt"),
        ("prompt", True, "prompt"),
        ("prompt", {"a": 1}, "prompt"),
        ("prompt", "a\udfffb", "prompt"),
        ("prompt", [1, 259], "prompt[1]"),
        ("prompt", [1, -1], "prompt[1]"),
        ("prompt", [1, True], "prompt[1]"),
        ("prompt", [1.0], "prompt[0]"),
        ("prompt", [1, "a"], "prompt[1]"),
        ("prompt", [None], "prompt[0]"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("max_tokens", 2**31, "max_tokens"),
        ("max_tokens", "5", "max_tokens"),
        ("temperature", 2.1, "temperature"),
        ("temperature", -0.1, "temperature"),
        ("temperature", True, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", 0, "top_p"),
        ("top_p", 1.01, "top_p"),
        ("top_k", -2, "top_k"),
        ("top_k", 1.0, "top_k"),
        ("seed", 2**63, "seed"),
        ("seed", 0.5, "seed"),
        ("stop", "", "stop"),
        ("stop", ["a", ""], "stop"),
        ("stop", ["a"] * 5, "stop"),
        ("stop", [1], "stop"),
        ("stop", {"a": 1}, "stop"),
        ("stop", "x" * 1025, "stop"),
        ("stop", "\ud800", "stop"),
        ("stream", 1, "stream"),
        ("stream", "true", "stream"),
        ("stream_options", {"include_usage": True}, "stream_options"),
        ("stream_options", [], "stream_options"),
        ("logprobs", 6, "logprobs"),
        ("logprobs", -1, "logprobs"),
        ("logprobs", True, "logprobs"),
        ("user", 3, "user"),
    ],
)
def test_wrong_fields_of_a_completion(field: str, value: object, param: str) -> None:
    found = problem(read_completion, ASKED | {field: value})
    assert (found.status, found.param, found.body()["error"]["type"]) == (400, param, "invalid_request_error")  # type: ignore[index]
    assert found.message.startswith(param)
    assert found.message.isascii()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "messages[0].role"),
        ({"messages": [*SAID["messages"], {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "a", "name": 3}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_wrong_fields_of_a_conversation(fields: dict[str, Any], param: str) -> None:
    found = problem(read_chat, SAID | fields)
    assert (found.status, found.param) == (400, param)
    assert found.message.startswith(param)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "must be a JSON object"),
        (b"NaN", "must be a JSON object"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 1_000_000, "nested too deeply"),
        (b'{"model": "tiny", "prompt": "a", "prompt": "b"}', "'prompt' twice"),
        (b'{"x": {"\\ud800": 1, "\\ud800": 1}}', "twice"),
        (b'{"temperature": NaN}', "'temperature' holds a number"),
        (b'{"temperature": -Infinity}', "'temperature' holds a number"),
        (b'{"temperature": 1e999}', "'temperature' holds a number"),
        (b'{"max_tokens": ' + b"9" * 100_000 + b"}", "'max_tokens' holds a number"),
        (b'{"model": "tiny", "prompt": [NaN]}', "prompt[0]"),
        (b'{"model": "tiny", "prompt": [1e999, 1]}', "prompt[0]"),
        (b'{"model": "tiny", "prompt": "a\nb"}', "control character"),
        (b'{"model": "tiny", "prompt": "a\x00b"}', "control character"),
    ],
)
def test_bodies_that_are_no_json_of_a_request(body: bytes, said: str) -> None:
    for reader in (read_completion, read_chat) if b"prompt" not in body else (read_completion,):
        found = problem(reader, body)
        assert found.status == 400
        assert said in found.message
        json.dumps(found.body(), ensure_ascii=False).encode()


def test_another_model_is_not_found() -> None:
    found = problem(read_chat, SAID | {"model": "other\n"})
    assert (found.status, found.param, found.code) == (404, "model", "model_not_found")
    assert found.message == "the model 'other\\n' does not exist"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NAMES = [*ASKED, *SAID, *UNSUPPORTED, "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream"]
NAMES += ["stream_options", "logprobs", "top_logprobs", "user", "max_completion_tokens", "role", "content"]


def attempt(reader: Reader, body: object) -> Request | ApiError:
    try:
        return reader(json.dumps(body).encode(), "tiny", 259)
    except ApiError as error:
        json.dumps(error.body(), ensure_ascii=False).encode()
        return error


@given(JSON | st.dictionaries(st.sampled_from(NAMES), JSON), st.booleans())
def test_any_json_is_a_request_or_an_error(fields: Any, usable: bool) -> None:
    for reader, base in ((read_completion, ASKED), (read_chat, SAID)):
        found = attempt(reader, base | fields if usable and isinstance(fields, dict) else fields)
        assert isinstance(found, Request) or found.status in (400, 404)


MESSAGES = st.lists(st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls", "type", "text"]), JSON))


@given(MESSAGES)
def test_any_messages_are_a_request_or_an_error(messages: list[Any]) -> None:
    found = attempt(read_chat, SAID | {"messages": [SAID["messages"][0] | message for message in messages]})
    assert isinstance(found, Request) or found.status == 400


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error(body: bytes) -> None:
    assert problem(read_completion, body).status == 400


def test_an_answer_must_fit_the_context() -> None:
    assert fit(chat(), 90, 100, 50) == 10
    assert fit(chat(), 10, 100, 50) == 50
    assert fit(chat(max_tokens=10), 90, 100, 50) == 10
    for request, length in ((chat(max_tokens=11), 90), (chat(), 100), (completion(), 85)):
        with pytest.raises(ApiError) as caught:
            fit(request, length, 100, 50)
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
        assert caught.value.param == request.field


@pytest.mark.parametrize(
    ("outcome", "status", "kind", "code"),
    [
        (outcomes.LENGTH, 400, "invalid_request_error", "context_length_exceeded"),
        (outcomes.GRAMMAR, 400, "invalid_request_error", "grammar"),
        (outcomes.ABORTED, 503, "service_unavailable", "aborted"),
        (outcomes.TIMED_OUT, 503, "service_unavailable", "timed-out"),
        (outcomes.CANARY, 500, "server_error", "canary-violation"),
    ],
)
def test_outcomes_as_a_client_learns_of_them(outcome: str, status: int, kind: str, code: str) -> None:
    error = from_refusal(refusal(outcome), "prompt")
    param = "prompt" if outcome == outcomes.LENGTH else None
    assert error.status == status
    assert error.body() == {"error": {"message": "because", "type": kind, "param": param, "code": code}}
