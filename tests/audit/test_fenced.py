"""kvfence's own engine: a default pair is clear, and nothing that is off, odd or unknown ever is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvfence.audit.fenced import judged
from kvfence.audit.registry import all_rules
from kvfence.audit.rules.capacity import SECOND_LINES
from kvfence.audit.run import audit
from kvfence.facts.collect import Input, collect
from kvfence.fence.mechanisms import SWITCHES
from kvfence.findings import Audit, Level
from tests.conftest import DATA, audit_of, failed, finding, statuses
from tests.facts.kvfence import documents
from tests.facts.kvfence.documents import files, server_info, start

# The rules that each mechanism's absence makes fail, beside KVF414: on prefill, and on decode.
FAILS: dict[str, tuple[set[str], set[str]]] = {
    "admission": ({"KVF201"}, set()),
    "cancel-both": ({"KVF304"}, {"KVF306"}),
    "coverage": ({"KVF403"}, {"KVF403"}),
    "ready-before-send": ({"KVF305"}, set()),
    "source-hold": ({"KVF304"}, set()),
    "release-on-proof": ({"KVF301"}, {"KVF301"}),
    "bounded-batches": ({"KVF303"}, set()),
    "tags": ({"KVF401", "KVF402"}, {"KVF401", "KVF402"}),
    "canary": ({"KVF411"}, {"KVF411"}),
    "scrub": ({"KVF412"}, {"KVF412"}),
}
LAB = {"KVF413", "KVF414"}


def saved(folder: Path, said: dict[str, str]) -> Audit:
    for name, content in said.items():
        (folder / name).write_text(content)
    return audit_of(folder)


def changed(role: str, **changes: Any) -> dict[str, str]:
    """Give the saved answers of a pair of which one worker is set up otherwise."""
    return files(changes) if role == "prefill" else files(decode=changes)


def serious_unknown(result: Audit) -> set[str]:
    return {f.rule for f in result.findings if f.status.value == "unknown" and f.level.rank <= Level.HIGH.rank}


def test_default_pair_is_clear(tmp_path: Path) -> None:
    result = saved(tmp_path, files())
    assert (result.verdict.value, failed(result), serious_unknown(result)) == ("clear", set(), set())


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        *((rule, "pass") for rule in ("KVF101", "KVF102", "KVF104", "KVF109", "KVF201", "KVF202", "KVF205")),
        *((f"KVF30{number}", "pass") for number in range(1, 7)),
        *((rule, "pass") for rule in ("KVF401", "KVF402", "KVF403", "KVF411", "KVF412", "KVF413", "KVF414")),
        *((rule, "pass") for rule in ("KVF501", "KVF502", "KVF503", "KVF504")),
        *((rule, "not-applicable") for rule in ("KVF203", "KVF204", "KVF701", "KVF801")),
    ],
)
def test_each_rule_is_judged(rule: str, status: str, tmp_path: Path) -> None:
    assert statuses(saved(tmp_path, files()), rule) == {status}


@pytest.mark.parametrize(
    ("rule", "switch"),
    [("KVF201", "admission"), ("KVF301", "release-on-proof"), ("KVF305", "ready-before-send"), ("KVF411", "canary")],
)
def test_evidence_is_the_pointer(rule: str, switch: str, tmp_path: Path) -> None:
    told = finding(saved(tmp_path, files()), rule, "pass").evidence
    assert {line.pointer for line in told} == {f"/mechanisms/{switch}"}


def test_short_pool_on_prefill_is_at_risk(tmp_path: Path) -> None:
    result = saved(tmp_path, files(pools=(1024, 8192)))
    assert result.verdict.value == "at-risk"
    assert {"KVF101", "KVF102"} <= failed(result)
    gap = result.pairs[0].gap
    assert gap is not None
    assert (gap.lo, gap.hi, gap.refuses) == (1025, 4096, "prefill")
    assert finding(result, "KVF102").level is Level.HIGH
    assert result.remedy is not None
    assert "the longest prompt is then 1,023 tokens" in result.remedy.steps[0].why


@pytest.mark.parametrize("line", SECOND_LINES)
def test_short_pool_that_hands_refused_prompts_off_is_exposed_if_nothing_else_stops_them(
    tmp_path: Path, line: str
) -> None:
    off = ("admission", *SECOND_LINES)
    result = saved(tmp_path, files({"off": off}, {"off": off}, pools=(1024, 8192)))
    assert result.verdict.value == "exposed"
    assert finding(result, "KVF102").proves
    kept = tuple(switch for switch in off if switch != line)
    result = saved(tmp_path, files({"off": kept}, {"off": kept}, pools=(1024, 8192)))
    assert result.verdict.value == "at-risk"
    assert finding(result, "KVF201").evidence[0].pointer == "/mechanisms/admission"


def test_short_pool_of_unknown_admission_is_at_risk(tmp_path: Path) -> None:
    mechanisms = {switch: True for switch in SWITCHES if switch != "admission"}
    result = saved(tmp_path, files({"mechanisms": mechanisms}, pools=(1024, 8192)))
    assert result.verdict.value == "at-risk"
    assert not finding(result, "KVF102").proves
    assert statuses(result, "KVF201") == {"unknown"}
    assert "unknown" in statuses(result, "KVF801")


def test_short_pool_on_decode_stalls(tmp_path: Path) -> None:
    result = saved(tmp_path, files(pools=(8192, 1024)))
    assert "refused, at once or when its handoff begins" in finding(result, "KVF109").message
    assert statuses(result, "KVF102") == {"pass"}


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_mechanism_that_is_off_fails(switch: str, role: str, tmp_path: Path) -> None:
    result = saved(tmp_path, changed(role, off=(switch,)))
    expected = FAILS.get(switch, (set(), set()))[role == "decode"]
    assert failed(result) == LAB | expected
    assert result.verdict.value == "at-risk"
    assert {line.pointer for line in finding(result, "KVF414").evidence} == {f"/mechanisms/{switch}"}
    assert finding(result, "KVF414").workers == (f"{role}-0",)


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_mechanism_that_is_off_is_never_hidden(switch: str, role: str, tmp_path: Path) -> None:
    """The worker says that it is no lab."""
    result = saved(tmp_path, changed(role, off=(switch,), lab=False))
    assert "KVF414" in failed(result)
    assert result.verdict.value == "at-risk"


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_mechanism_that_is_not_stated_is_unknown(switch: str, role: str, tmp_path: Path) -> None:
    mechanisms = {name: True for name in SWITCHES if name != switch}
    result = saved(tmp_path, changed(role, mechanisms=mechanisms))
    assert (result.verdict.value, failed(result)) == ("unknown", set())
    rules = {"KVF414"} | (FAILS.get(switch, (set(), set()))[role == "decode"] - {"KVF402"})
    assert all("unknown" in statuses(result, rule) for rule in rules)


def test_lab_with_everything_on_is_no_server(tmp_path: Path) -> None:
    result = saved(tmp_path, files({"lab": True}))
    assert failed(result) == {"KVF413"}
    assert result.verdict.value == "at-risk"


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanisms": ...},
        {"mechanisms": None},
        {"mechanisms": dict.fromkeys(SWITCHES, "true")},
        {"mechanisms": dict.fromkeys(SWITCHES, 1)},
        {"mechanisms": {**dict.fromkeys(SWITCHES, True), "telepathy": True}},
        {"mechanisms": {**dict.fromkeys(SWITCHES, True), "": False}},
        {"mechanisms": {switch.replace("-", "_"): True for switch in SWITCHES}},
        {"engine": ...},
        {"engine": "KVFence"},
        {"engine": ["kvfence"]},
        {"lab": ...},
        {"lab": None},
        {"tags": ...},
        {"tags": []},
        {"tags": ["crc32"]},
        {"kv_cache_dtype": ...},
        {"kv_cache_dtype": 5},
        {"page_size": ...},
        {"page_size": 10**40},
        {"max_req_input_len": ...},
        {"max_req_input_len": 10**40},
        {"max_req_input_len": 0},
        {"disaggregation_transfer_backend": ...},
        {"disaggregation_transfer_backend": "rdma"},
        {"disaggregation_transfer_backend": "carrier-pigeon"},
        {"internal_states": [{"memory_usage": {"token_capacity": 1024}}]},
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_odd_answers_are_never_clear(changes: dict[str, Any], role: str, tmp_path: Path) -> None:
    assert saved(tmp_path, changed(role, **changes)).verdict.value != "clear"


def test_answers_without_names_of_sizes_are_never_clear(tmp_path: Path) -> None:
    for name in ("context_length", "max_total_num_tokens", "disaggregation_mode"):
        folder = tmp_path / name
        folder.mkdir()
        said = {}
        for file, role in (("one.json", "prefill"), ("two.json", "decode")):
            document = server_info(role)
            del document[name]
            said[file] = json.dumps(document)
        assert saved(folder, said).verdict.value != "clear"


@pytest.mark.parametrize(
    "other",
    [
        server_info("prefill", off=("binding",), lab=False),
        {**server_info("prefill"), "engine": "sglang"},
        server_info("prefill", lab=True),
    ],
    ids=["mechanism", "engine", "lab"],
)
def test_sources_that_differ_are_never_clear(other: dict[str, Any], tmp_path: Path) -> None:
    result = saved(tmp_path, {**files(), "prefill-0-get_server_info.json": json.dumps(other)})
    assert result.verdict.value != "clear"
    assert "KVF505" in failed(result)


def test_pair_of_two_engines_is_never_clear(tmp_path: Path) -> None:
    said = {name: text for name, text in files().items() if name.startswith("prefill")}
    decode = json.loads((DATA / "real/0.5.23/decode-server_info.json").read_text())
    decode |= {"model_path": "/m/recall", "served_model_name": "recall"}
    result = saved(tmp_path, {**said, "decode-server_info.json": json.dumps(decode)})
    assert len(result.pairs) == 1
    assert statuses(result, "KVF402") == statuses(result, "KVF403") == {"unknown"}
    assert "KVF205" in failed(result)


def test_wider_decode_is_another_layout(tmp_path: Path) -> None:
    assert "attention ranks" in finding(saved(tmp_path, files(decode={"tp_size": 4})), "KVF503").message


def test_log_alone_says_what_it_can(tmp_path: Path) -> None:
    log = f"{start('prefill-0', 1024)}\n{start('decode-0', mechanisms='without binding, tags')}\n"
    result = saved(tmp_path, {"engine.log": log})
    assert {"KVF101", "KVF102", "KVF401", "KVF402", "KVF414"} <= failed(result)
    assert result.verdict.value == "at-risk"
    (tmp_path / "engine.log").write_text(f"{start('prefill-0')}\n{start('decode-0')}\n")
    assert audit_of(tmp_path).verdict.value == "unknown"


def test_other_engines_are_asked_as_ever() -> None:
    result = audit_of(DATA / "real/0.5.23")
    assert statuses(result, "KVF414") == {"not-applicable"}
    (worker, *_) = result.deployment.workers
    assert all(judged(rule.id, worker) is None for rule in all_rules())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(SWITCHES), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(server_info("decode"))), VALUES, min_size=1, max_size=5))
def test_any_answer_is_audited(tmp_path: Path, changes: dict[str, Any]) -> None:
    one, other = tmp_path / "prefill.json", tmp_path / "decode.json"
    one.write_text(json.dumps(server_info("prefill")))
    other.write_text(json.dumps({**documents.server_info("decode"), **changes}))
    result = audit(collect([Input(str(one)), Input(str(other))]))
    needed = ("mechanisms", "lab", "tags", "page_size", "kv_cache_dtype", "max_req_input_len", "engine")
    if any(name in changes and changes[name] != server_info("decode")[name] for name in needed):
        assert result.verdict.value != "clear"
