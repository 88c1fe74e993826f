"""What engines say when they refuse or fail becomes one error of the contract."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.gateway.engine_error import READ_MOST, in_answer, said, translate, without_addresses
from kvfence.gateway.problem import CONTEXT_LENGTH, UPSTREAM_FAILED, Problem

DATA = Path(__file__).parent / "data"
FAILED = Problem(502, "the engine could not answer the request", code=UPSTREAM_FAILED)
# Read in SGLang 0.5.18 to 0.5.23 (scheduler, tokenizer manager, PD queues) and vLLM 0.32.0.
LENGTH = [
    "Input length (1018 tokens) exceeds the maximum allowed length (1018 tokens). Use a shorter input.",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "The input (5000 tokens) exceeds the model's context length (4096 tokens). Truncate it.",
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested 5000 tokens.",
    "Request r exceeds the maximum number of tokens: 2000 > 1018",
    "Request prompt exceeds the KV memory budget: input_len=2000.",
    "Request r exceeds the unified FULL/SWA KV byte budget: full=2000, swa=100",
    "Request length is longer than the KV cache pool size or the max context length.",
    "This model's maximum context length is 8192 tokens. However, your prompt contains 9000 input tokens",
    "request (3001 tokens) exceeds the available context size (2048 tokens), try increasing it",
]
OTHER = [
    "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    "max_tokens=9000 cannot be greater than max_model_len=8192.",
    "Image count 9 exceeds limit 4 per request.",
    "logprobs: 99 exceeds the maximum",
]


@pytest.mark.parametrize("message", LENGTH)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_refusal_about_length(message: str, status: int) -> None:
    problem = translate(status, json.dumps({"error": {"message": message}}).encode(), "messages")
    assert (problem.status, problem.code, problem.param, problem.message) == (400, CONTEXT_LENGTH, "messages", message)


@pytest.mark.parametrize("message", OTHER)
def test_other_refusals_stay_as_they_are(message: str) -> None:
    assert translate(422, json.dumps({"message": message}).encode(), "prompt") == Problem(422, message)


@pytest.mark.parametrize("key", ["code", "type"])
def test_refusal_whose_code_is_about_length(key: str) -> None:
    body = json.dumps({"error": {"message": "no", key: "context_length_exceeded"}}).encode()
    assert translate(400, body, "prompt") == Problem(400, "no", param="prompt", code=CONTEXT_LENGTH)


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("llama.cpp-too-long", 400, CONTEXT_LENGTH),
        ("sglang-0.5.23-prefill-too-long", 400, CONTEXT_LENGTH),
        ("vllm-0.32.0-too-long", 400, CONTEXT_LENGTH),
        ("vllm-0.32.0-no-room", 400, None),
    ],
)
def test_what_real_engines_refused(name: str, status: int, code: str | None) -> None:
    body = (DATA / f"{name}.json").read_bytes()
    problem = translate(status, body, "prompt")
    assert (problem.status, problem.code) == (status, code)
    assert problem.message == json.loads(body)["error"]["message"]
    assert said(body) == problem.message


def test_member_that_the_engine_names() -> None:
    body = (DATA / "vllm-0.32.0-no-room.json").read_bytes()
    assert translate(400, body, "prompt").param == "max_tokens"
    assert translate(400, b'{"error":{"message":"m","param":"http://10.0.0.3"}}', "prompt").param is None


def test_failure_is_told_in_general_and_logged_in_full() -> None:
    body = (DATA / "sglang-0.5.23-decode-failed.json").read_bytes()
    assert translate(500, body, "prompt") == FAILED
    assert "KVTransferError" in said(body)
    assert said(b"<html>10.0.0.3\n is down") == "<html>10.0.0.3 is down"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": "m"}, "m"),
        ({"object": "error", "message": "m", "code": 400}, "m"),
        ({"detail": "m"}, "m"),
        ({"detail": [{"loc": ["body", "n", 0], "msg": "m"}, "x"]}, "body.n.0: m"),
        ({"detail": [{"loc": 5, "msg": "m"}]}, ": m"),
        ({"detail": {"a": 1}}, "the engine refused the request"),
        ({"error": {"message": 5}}, "the engine refused the request"),
        ({"error": {"message": "m", "code": 10**30, "type": [1], "param": 1.5}}, "m"),
        ([], "the engine refused the request"),
        ("m", "the engine refused the request"),
    ],
)
def test_shapes(shape: Any, message: str) -> None:
    assert translate(400, json.dumps(shape).encode(), None) == Problem(400, message)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff", b'{"message":"\\ud800"}', b"[" * 100_000, b" " * READ_MOST + b"{}"]
)
def test_what_cannot_be_read(body: bytes) -> None:
    assert translate(400, body, "prompt") == Problem(400, "the engine refused the request")
    assert translate(500, body, "prompt") == FAILED
    assert isinstance(said(body), str)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(500, 502), (501, 502), (502, 502), (503, 503), (504, 504), (599, 502), (999, 502), (302, 502)],
)
def test_status_of_what_the_client_cannot_mend(status: int, expected: int) -> None:
    problem = translate(status, b'{"message":"10.0.0.3 Input length (9 tokens) exceeds"}', "prompt", 9)
    assert (problem.status, problem.code, problem.param) == (expected, UPSTREAM_FAILED, None)
    assert "10.0.0.3" not in problem.message


@pytest.mark.parametrize(
    "address",
    [
        "http://10.0.0.3:8998/x", "tcp://[::1]:5", "10.0.0.3", "10.0.0.3:8998", "[fe80::1]:8998", "[::1]", "fe80::1:2",
        "2001:db8:0:1:2:3:4:5", "decode-0:30000", "localhost:8998", "sglang-prefill-0.sglang.svc.cluster.local:30000",
        "decode.pd.svc", "worker.internal:80", "::1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("sentence", ["cannot reach {}", "at {}, where it is", "({}) failed", "'{}'", "host={}"])
def test_no_address_is_told(address: str, sentence: str) -> None:
    assert without_addresses(sentence.format(address)) == sentence.format("(worker)")


@pytest.mark.parametrize("message", [*LENGTH, *OTHER, "SGLang 0.5.23 wants max_tokens:4096 at 0.9", "a: 5", "x::y"])
def test_words_stay(message: str) -> None:
    assert without_addresses(message) == message


def test_message_is_one_short_line_without_half_an_address() -> None:
    assert without_addresses("a\r\n\tb\x1b[1m") == "a b [1m"
    assert without_addresses("x" * 900) == ""
    assert without_addresses("word " * 200) == ("word " * 80) + "..."
    assert "10.0.0" not in without_addresses("http://1.2.3.4/" + "x" * 400 + " " * 370 + "http://10.0.0.3:8998")


@pytest.mark.parametrize(
    "message", ["a." * 5000, "a:" * 5000, "1." * 5000, "[" * 5000, "f:" * 5000, "a-" * 5000, "::" * 5000]
)
def test_hostile_message_takes_no_time(message: str) -> None:
    began = time.process_time()
    without_addresses(message[:795] + " x")
    assert time.process_time() - began < 0.2


@given(message=st.text(max_size=300))
def test_message_is_always_printable(message: str) -> None:
    assert without_addresses(message).isprintable()


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (b'{"error":{"message":"m","code":404}}', 404),
        (b'{"error":{"message":"m"}}', 502),
        (b'{"error":"boom"}', 502),
        (b'{"error":{"message":"m","code":200}}', 502),
        (b'{"id":"x","choices":[],"error":{"message":"m","code":429}}', 429),
        (b'{"object":"error","message":"m","code":400}', 400),
        (b' {"error" : {"message":NaN}}', 502),
        (b'{"meta_info":{"finish_reason":{"type":"abort","message":"m","status_code":400}}}', 400),
        (b'{"meta_info":{"finish_reason":{"type":"abort","status_code":503}}}', 503),
        (b'{"meta_info":{"finish_reason":{"type":"abort","status_code":0}}}', 502),
    ],
)
def test_error_in_a_success(told: bytes, status: int) -> None:
    problem = in_answer(told, None)
    assert problem is not None
    assert problem.status == status


@pytest.mark.parametrize(
    "told",
    [
        b'{"error":null,"choices":[]}', b'{"choices":[{"delta":{"content":"error"}}]}', b'{"choices":[{"error":1}]}',
        b'{"meta_info":{"finish_reason":{"type":"abort","message":"m","status_code":null}}}', b'{"meta_info":"abort"}',
        b'{"meta_info":{"finish_reason":{"type":"stop","status_code":400}}}', b"[DONE]", b"",
        b'{"choices":[{"finish_reason":"abort"}]}',
    ],
)  # fmt: skip
def test_no_error_in_a_success(told: bytes) -> None:
    assert in_answer(told, None) is None
