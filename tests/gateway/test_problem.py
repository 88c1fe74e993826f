"""Errors have OpenAI's shape, in an answer and in a stream."""

from __future__ import annotations

import json

import pytest

from kvfence.gateway.problem import CONTEXT_LENGTH, Problem


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (404, "not_found_error"), (429, "rate_limit_error"), (502, "server_error"),
        (503, "service_unavailable"),
    ],
)  # fmt: skip
def test_shape(status: int, kind: str) -> None:
    problem = Problem(status, 'too "long"\n', param="prompt", code=CONTEXT_LENGTH)
    error = {"message": 'too "long"\n', "type": kind, "param": "prompt", "code": "context_length_exceeded"}
    assert json.loads(problem.body()) == {"error": error}
    begun, told, *end = problem.event().partition(b"{")
    assert begun == b"data: "
    assert json.loads(told + end[0]) == {"error": error}
    assert problem.event().count(b"\n") == 2
    assert problem.event().endswith(b"}\n\n")


def test_what_is_not_known_is_null() -> None:
    assert json.loads(Problem(502, "no").body()) == {
        "error": {"message": "no", "type": "server_error", "param": None, "code": None}
    }
