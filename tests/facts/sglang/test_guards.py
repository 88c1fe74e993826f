"""What the SGLang plugin says of itself is read from logs and from `/server_info`, and what is no such thing is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvfence.facts import keys
from kvfence.facts.model import Worker
from kvfence.plugin.sglang.limits import Limits
from kvfence.plugin.sglang.presence import Presence
from kvfence.plugin.sglang.settings import Settings, SilentPeer
from kvfence.plugin.sglang.tally import Tally
from tests.conftest import audit_of

ALL = "batches, coverage, door, notices"


def presence(**settings: Any) -> Presence:
    return Presence("0.5.19", Settings(**settings), Limits(None), Tally())


def line(caplog: pytest.LogCaptureFixture, **settings: Any) -> str:
    with caplog.at_level("INFO"):
        presence(**settings).announce("decode", metrics=False)
    return f"[2026-12-01 08:00:00] {caplog.records[-1].getMessage()}\n"


def info(*states: dict[str, Any]) -> str:
    document = {
        "disaggregation_mode": "decode",
        "max_total_num_tokens": 8192,
        "max_req_input_len": 4090,
        "version": "0.5.19",
        "internal_states": list(states),
    }
    return json.dumps(document)


def only(tmp_path: Path, name: str, text: str) -> Worker:
    (tmp_path / name).write_text(text)
    (worker,) = audit_of(tmp_path / name).deployment.workers
    return worker


def test_log_line_as_the_plugin_writes_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = line(caplog, silent_peer=SilentPeer.ALLOW, batch_bytes=4096, accept=frozenset({"speculative", "backend"}))
    worker = only(tmp_path, "worker.log", told)
    assert worker.role == "decode"
    assert worker.value(keys.GUARDS) == ALL
    assert worker.value(keys.GUARDS_SILENT_PEER) == "allow"
    assert worker.value(keys.GUARDS_BATCH_BYTES) == 4096
    assert worker.value(keys.GUARDS_UNTRIED) == "backend, speculative"


def test_log_line_of_plain_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = only(tmp_path, "worker.log", line(caplog))
    assert worker.value(keys.GUARDS_SILENT_PEER) == "deny"
    assert worker.value(keys.GUARDS_UNTRIED) == ""


def test_line_in_a_request_log_proves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quoted = line(caplog).removeprefix("[2026-12-01 08:00:00] ").strip()
    text = (
        "[2026-12-01 08:00:00] server_args={'model_path': '/m', 'disaggregation_mode': 'decode'}\n"
        f"[2026-12-01 08:00:01] Receive: obj=GenerateReqInput(text='{quoted}')\n{quoted}\n"
    )
    assert only(tmp_path, "worker.log", text).value(keys.GUARDS) is None


def test_server_info_as_the_plugin_fills_it(tmp_path: Path) -> None:
    active = presence()
    active.announce("decode", metrics=False)
    worker = only(tmp_path, "decode-server_info.json", info({"kvfence": active.document()}))
    assert worker.value(keys.GUARDS) == ALL
    assert worker.value(keys.GUARDS_BATCH_BYTES) == 64 * 2**20


def test_weakest_rank_of_a_worker_counts(tmp_path: Path) -> None:
    strong, weak = presence(), presence(silent_peer=SilentPeer.ALLOW)
    for one in (strong, weak):
        one.announce("decode", metrics=False)
    partial = weak.document() | {"guards": ["door"]}
    states = info({"kvfence": strong.document()}, {"kvfence": partial})
    worker = only(tmp_path, "decode-server_info.json", states)
    assert worker.value(keys.GUARDS) == "door"
    assert worker.value(keys.GUARDS_SILENT_PEER) == "allow"


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"kvfence": None},
        {"kvfence": {"schema": "kvfence.sglang-plugin/2", "guards": ["door"]}},
        {"kvfence": {"schema": "kvfence.sglang-plugin/1", "guards": "door"}},
        {"kvfence": {"schema": "kvfence.sglang-plugin/1", "guards": [1], "accepted_untried": [], "batch_bytes": 1}},
    ],
)
def test_server_info_without_guards_says_that_there_are_none(tmp_path: Path, part: dict[str, Any]) -> None:
    assert only(tmp_path, "decode-server_info.json", info(part)).value(keys.GUARDS) == ""


def test_server_info_without_states_says_nothing(tmp_path: Path) -> None:
    assert only(tmp_path, "decode-server_info.json", info()).value(keys.GUARDS) is None
