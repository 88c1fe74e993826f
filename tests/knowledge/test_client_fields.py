"""The tables of what clients may send are whole, sourced, and hold what is known to be dangerous."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvfence.knowledge.client_fields import Action, ClientField, Kind, Where, client_fields
from kvfence.knowledge.releases import Version, sglang_releases

ENGINES = ("sglang", "vllm")
ROWS = [(engine, row) for engine in ENGINES for row in client_fields(engine).values()]
READ = {
    "sglang": {version for version in sglang_releases() if version >= Version.parse("0.5.18")},
    "vllm": {Version.parse("0.32.0")},
}
LINE = re.compile(r"[\w/]+\.py:\d+ of \d+\.\d+\.\d+")
BINARY = re.compile(r"strings of the binar(y|ies) of [\w-]+ \d+\.\d+\.\d+")


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=[f"{engine}-{row.name}" for engine, row in ROWS])
def test_row_is_whole(engine: str, row: ClientField) -> None:
    assert LINE.search(row.source) or BINARY.search(row.source)
    assert {row.first_seen, row.last_seen} <= READ[engine]
    assert row.first_seen <= row.last_seen
    assert all(str(row.last_seen) in line for line in LINE.findall(row.source))
    assert row.meaning
    assert b"null" in row.neutral
    for value in row.neutral:
        json.loads(value)
    if row.where is Where.HEADER:
        assert row.name == row.name.lower()
        assert "." not in row.name
        assert row.action is not Action.REFUSE  # to leave a header out is enough
    else:
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", row.name)
        assert (row.where is Where.MESSAGE) == row.name.startswith("messages.")
    assert not row.pd_only or row.kind is Kind.HANDOFF


@pytest.mark.parametrize("engine", ENGINES)
def test_no_name_is_twice_in_a_table(engine: str) -> None:
    from kvfence.knowledge.tables import read_rows

    assert len(client_fields(engine)) == len(read_rows(f"{engine}/client_fields.tsv"))


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=[f"{engine}-{row.name}" for engine, row in ROWS])
def test_nothing_that_reaches_the_handoff_or_runs_code_is_let_through(engine: str, row: ClientField) -> None:
    if row.kind in (Kind.HANDOFF, Kind.INTEGRITY):
        assert row.action in (Action.REFUSE, Action.STRIP), engine
    if row.kind is Kind.HANDOFF and row.where is Where.BODY:
        assert row.action is Action.REFUSE, engine


@pytest.mark.parametrize(
    ("engine", "name", "action"),
    [
        ("sglang", "bootstrap_host", Action.REFUSE),
        ("sglang", "bootstrap_room", Action.REFUSE),
        ("sglang", "mm_hashes", Action.REFUSE),  # CVE-2026-111392
        ("sglang", "rid", Action.STRIP),  # CVE-2026-112266
        ("sglang", "extra_key", Action.REFUSE),
        ("sglang", "session_params", Action.REFUSE),
        ("sglang", "kv_hints", Action.REFUSE),
        ("sglang", "custom_logit_processor", Action.REFUSE),
        ("sglang", "cache_salt", Action.REPLACE),
        ("sglang", "user", Action.ALLOW),
        ("sglang", "x-override-bootstrap-room", Action.STRIP),
        ("sglang", "x-smg-*", Action.STRIP),
        ("sglang", "messages.content.image_url.content_hash", Action.REFUSE),
        ("vllm", "kv_transfer_params", Action.REFUSE),
        ("vllm", "vllm_xargs.kv_transfer_params", Action.REFUSE),
        ("vllm", "messages.content.uuid", Action.REFUSE),
        ("vllm", "request_id", Action.STRIP),
        ("vllm", "cache_salt", Action.REPLACE),  # vllm#53347
        ("vllm", "x-request-id", Action.REPLACE),
        ("vllm", "x-data-parallel-rank", Action.STRIP),
        ("vllm", "user", Action.ALLOW),
    ],
)
def test_what_is_known_of_a_field(engine: str, name: str, action: Action) -> None:
    assert client_fields(engine)[name].action is action


def test_releases_that_have_a_field() -> None:
    fields = client_fields("sglang")
    spans = {name: (str(fields[name].first_seen), str(fields[name].last_seen)) for name in ("kv_hints", "rid")}
    assert spans == {"kv_hints": ("0.5.21", "0.5.23"), "rid": ("0.5.18", "0.5.23")}
    assert str(fields["mm_data_mooncake"].last_seen) == "0.5.18"


def test_values_that_ask_for_nothing() -> None:
    assert client_fields("sglang")["n"].neutral == {b"null", b"1"}
    assert client_fields("sglang")["log_metrics"].neutral == {b"null", b"true"}
    assert client_fields("vllm")["priority"].neutral == {b"null", b"0"}


def test_several_answers_are_refused_in_pd_only() -> None:
    for engine in ENGINES:
        assert client_fields(engine)["n"].pd_only
        assert not client_fields(engine)["cache_salt"].pd_only


def test_an_engine_that_was_not_read_has_no_table() -> None:
    assert client_fields("kvfence")["rid"] == client_fields("sglang")["rid"]
    with pytest.raises(KeyError):
        client_fields("tgi")


DONE = {Action.REFUSE: "refused", Action.STRIP: "left out", Action.REPLACE: "replaced", Action.ALLOW: "goes on"}


def test_page_shows_the_tables() -> None:
    page = (Path(__file__).parents[2] / "docs/gateway/fields.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| (\w+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert sorted(shown) == sorted(
        (
            row.name,
            DONE[row.action] + (" in pd mode" if row.pd_only else ""),
            str(row.kind),
            str(row.last_seen) if row.first_seen == row.last_seen else f"{row.first_seen} to {row.last_seen}",
            row.meaning,
        )
        for _, row in ROWS
    )
