from __future__ import annotations

import json

import pytest

from kvfence.errors import InputError
from kvfence.facts import keys
from kvfence.facts.files import NothingRecognisedError
from kvfence.fence.mechanisms import SWITCHES
from tests.facts.conftest import CollectFiles, read, read_one, value
from tests.facts.conftest import start as sglang_start
from tests.facts.kvfence.documents import start

READ = (
    *(keys.ENGINE, keys.ROLE, keys.CONTEXT_LEN, keys.POOL_TOKENS, keys.PAGE_SIZE, keys.MAX_INPUT_LEN, keys.TP),
    keys.BACKEND,
)


def plain(words: str) -> str:
    return f"2026-12-01 09:30:00,118 INFO kvfence.engine {words}\n"


def json_line(words: str) -> str:
    return json.dumps({"ts": "2026-12-01T09:30:00.118Z", "level": "info", "message": words}) + "\n"


@pytest.mark.parametrize("form", [plain, json_line, "{}\n".format, "compose  | {}\n".format])
@pytest.mark.parametrize("worker", ["prefill-0", "decode-12"])
def test_start_is_read_in_each_form(form: object, worker: str) -> None:
    found = read_one(form(start(worker, 1024)))  # type: ignore[operator]
    assert (found.name, [value(found, key) for key in READ]) == (
        worker,
        ["kvfence", worker.partition("-")[0], 4096, 1024, 16, 1025, 2, "shared-memory"],
    )
    assert all(value(found, key) is True for key in keys.MECHANISMS.values())
    assert found.facts[keys.POOL_TOKENS.name].evidence[0].line == 1


def test_mechanisms_that_are_off_are_named() -> None:
    found = read_one(plain(start("decode-0", mechanisms="without admission, binding")))
    off = [switch for switch in SWITCHES if value(found, keys.MECHANISMS[switch]) is False]
    assert off == ["admission", "binding"]
    assert found.get(keys.STRANGE_MECHANISMS) is None


def test_one_file_holds_several_workers() -> None:
    log = "".join(
        [
            *(plain(start(name)) for name in ("prefill-0", "prefill-1", "decode-0")),
            plain("handoff 17 committed"),
        ]
    )
    assert [found.name for found in read(log)] == ["prefill-0", "prefill-1", "decode-0"]


def test_last_start_is_judged() -> None:
    (found,) = read(plain(start("decode-0", 1024)) + plain(start("decode-0", 2048)))
    assert value(found, keys.POOL_TOKENS) == 2048
    assert found.resized
    assert found.notes == ["w.log: 2 starts of decode-0; the last one is judged"]


def test_workers_of_one_name_on_two_hosts_are_two() -> None:
    log = "".join(f"{host}  | {start('decode-0')}\n" for host in ("left", "right"))
    assert [found.name for found in read(log)] == ["left decode-0", "right decode-0"]


def test_worker_of_another_name_has_no_role() -> None:
    found = read_one(plain(start("middle")))
    assert (found.name, value(found, keys.ROLE)) == ("middle", None)


@pytest.mark.parametrize("mechanisms", ["", "all mechanis", "without ", "without admission, ", "with luck"])
def test_line_that_is_cut_off_says_nothing_of_mechanisms(mechanisms: str) -> None:
    found = read_one(plain(start("decode-0", mechanisms=mechanisms)))
    assert value(found, keys.POOL_TOKENS) == 8192
    assert all(found.get(key) is None for key in keys.MECHANISMS.values())
    assert found.notes == ["w.log:1: the line is cut off before its mechanisms"]


def test_mechanism_that_is_not_known_is_told() -> None:
    found = read_one(plain(start("decode-0", mechanisms="without telepathy")))
    assert value(found, keys.STRANGE_MECHANISMS) == "telepathy"


@pytest.mark.parametrize(
    "line",
    [
        "kvfence worker decode-0: started",
        "kvfence worker decode-0: context -5 tokens, pool 1 tokens",
        f"Receive: obj=GenerateReqInput(text='{start('decode-0')}",
        '{"prompt": "' + start("decode-0"),
        "x" * 200 + start("decode-0"),
        start("decode-0", 10**20),
    ],
)
def test_other_lines_are_no_starts(line: str) -> None:
    with pytest.raises((NothingRecognisedError, InputError)):
        read(line + "\nnothing\n")


def test_zero_is_no_size() -> None:
    found = read_one(plain(start("decode-0", 0)))
    assert found.get(keys.POOL_TOKENS) is None


def test_log_of_another_engine_beside_it_is_read_as_ever() -> None:
    found = read(sglang_start(4096) + plain(start("decode-0")))
    assert [value(one, keys.ENGINE) for one in found] == ["sglang", "kvfence"]


def test_log_and_saved_answer_of_a_worker_are_one(collect_files: CollectFiles) -> None:
    from tests.facts.kvfence.documents import files

    deployment = collect_files({**files(), "engine.log": plain(start("prefill-0")) + plain(start("decode-0"))})
    assert [worker.name for worker in deployment.workers] == ["prefill-0", "decode-0"]
    assert all(not worker.disagreements for worker in deployment.workers)
