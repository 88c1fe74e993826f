"""How workers are named on the command line."""

from __future__ import annotations

import pytest

from kvfence.errors import InputError
from kvfence.gateway.fleet.spec import Role, WorkerSpec, read_spec, read_specs
from kvfence.gateway.fleet.worker import make_workers


@pytest.mark.parametrize(
    ("text", "role", "spec"),
    [
        ("http://10.0.0.1:30000", "decode", WorkerSpec("http://10.0.0.1:30000", "decode")),
        ("http://10.0.0.1:30000/", "decode", WorkerSpec("http://10.0.0.1:30000", "decode")),
        (" HTTP://Prefill-0.svc:30000,8999 ", "prefill", WorkerSpec("http://prefill-0.svc:30000", "prefill", 8999)),
        ("http://worker", "unified", WorkerSpec("http://worker:80", "unified")),
        ("http://[::1]:1", "router", WorkerSpec("http://[::1]:1", "router")),
    ],
)
def test_worker_is_read(text: str, role: Role, spec: WorkerSpec) -> None:
    assert read_spec("--x", text, role) == spec


def test_host_and_port_are_those_of_the_url() -> None:
    spec = read_spec("--x", "http://[fe80::1]:30000", "unified")
    assert (spec.host, spec.port) == ("fe80::1", 30000)


@pytest.mark.parametrize(
    ("text", "role", "words"),
    [
        ("https://a:1", "decode", "https is not spoken"),
        ("a:1", "decode", "must begin with http://"),
        ("", "decode", "must begin with http://"),
        ("http://user:sesame@a:1", "decode", "holds credentials"),
        ("http://sesame@a:1", "decode", "holds credentials"),
        ("http://a:1/v1", "decode", "without a path"),
        ("http://a:1?key=sesame", "decode", "without a path"),
        ("http://a:1#sesame", "decode", "without a path"),
        ("http://a:99999", "decode", "is no URL"),
        ("http://a:0", "decode", "names no host and port"),
        ("http://:1", "decode", "names no host and port"),
        ("http://[::1", "decode", "is no URL"),
        ("http://a\tb:1", "decode", "characters"),
        ("http://ä:1", "decode", "characters"),
        ("http://a b:1", "decode", "characters"),
        ("http://a;b:1", "decode", "names no host and port"),
        ("http://a:1,8998", "decode", "prefill worker alone"),
        ("http://a:1,", "prefill", "bootstrap port must be"),
        ("http://a:1,0", "prefill", "bootstrap port must be"),
        ("http://a:1,65536", "prefill", "bootstrap port must be"),
        ("http://a:1,-1", "prefill", "bootstrap port must be"),
        ("http://a:1,1,2", "prefill", "bootstrap port must be"),
        ("http://a:1,٣", "prefill", "bootstrap port must be"),
    ],
)
def test_what_cannot_be_used_is_refused_without_repeating_it(text: str, role: Role, words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_spec("--option", text, role)
    assert str(caught.value).startswith("--option: ")
    assert words in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_worker_named_twice_is_refused() -> None:
    with pytest.raises(InputError, match="names a worker twice"):
        read_specs("--decode", ["http://a", "http://A:80/"], "decode")


def test_stated_limit_must_be_one() -> None:
    assert [spec.limit for spec in read_specs("--x", ["http://a", "http://b"], "unified", limit=7)] == [7, 7]
    with pytest.raises(InputError, match="above 0"):
        read_spec("--x", "http://a", "unified", limit=0)


def test_names_are_short_and_of_the_role() -> None:
    roles: list[Role] = ["prefill", "decode", "prefill", "unified", "router", "behind"]
    workers = make_workers(WorkerSpec(f"http://h:{port}", role) for port, role in enumerate(roles, 1))
    names = [worker.name for worker in workers]
    assert names == ["prefill-0", "decode-0", "prefill-1", "upstream-0", "upstream-1", "behind-0"]
