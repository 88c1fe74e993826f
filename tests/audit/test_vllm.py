"""vLLM: what each rule answers on what 0.32.0 really wrote, and that none of SGLang's switches is asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfence.audit.registry import all_rules
from kvfence.findings import Audit, Level
from tests.conftest import DATA, audit_of, failed, finding, statuses

REAL = DATA / "real" / "vllm-0.32"
PAIR = [REAL / "pair" / "prefill.log", REAL / "pair" / "decode.log"]
NIXL = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'"""
SAID = """{{'host': '{host}', 'port': 8000, 'model': 'm', 'kv_transfer_config': KVTransferConfig(\
kv_connector='{connector}', kv_role='{role}')}}"""

# What each rule answers on the logs of a prefill and a decode server, on loopback, and on their whole bundle.
RULES = {
    **dict.fromkeys(("KVF101", "KVF102", "KVF103", "KVF105", "KVF107", "KVF109"), ("pass", "pass")),
    **dict.fromkeys(("KVF104", "KVF108"), ("not-applicable", "not-applicable")),
    "KVF106": ("unknown", "pass"),
    **dict.fromkeys(("KVF201", "KVF202", "KVF205"), ("pass", "pass")),
    **dict.fromkeys(("KVF203", "KVF204"), ("not-applicable", "not-applicable")),
    **dict.fromkeys(("KVF301", "KVF305"), ("unknown", "unknown")),
    **dict.fromkeys(("KVF302", "KVF303", "KVF304", "KVF306"), ("not-applicable", "not-applicable")),
    **dict.fromkeys(("KVF401", "KVF402", "KVF403"), ("not-applicable", "not-applicable")),
    **dict.fromkeys(("KVF411", "KVF412", "KVF413", "KVF414", "KVF415", "KVF416"), ("not-applicable", "not-applicable")),
    "KVF501": ("unknown", "pass"),
    **dict.fromkeys(("KVF502", "KVF503", "KVF504"), ("pass", "pass")),
    "KVF505": ("unknown", "pass"),
    "KVF701": ("not-applicable", "not-applicable"),
    **dict.fromkeys(("KVF702", "KVF703", "KVF704"), ("pass", "pass")),
    "KVF705": ("unknown", "unknown"),
    "KVF801": ("not-applicable", "not-applicable"),
    "KVF810": ("unknown", "unknown"),
}


def said(
    host: str = "0.0.0.0", role: str = "kv_consumer", connector: str = "NixlConnector", release: str = "0.32.0"
) -> str:
    head = "(APIServer pid=1) INFO 12-01 02:01:46 [a.py:1] "
    config = "dtype=torch.float32, quantization=None, kv_cache_dtype=auto, enable_prefix_caching=True"
    return (
        f"{head}non-default args: {SAID.format(host=host, connector=connector, role=role)}\n"
        f"{head}Initializing a V1 LLM engine (v{release}) with config: {config}\n"
        f"{head}Using max model len 4096\n{head}GPU KV cache size: 16,384 tokens, Maximum concurrency\n"
    )


def audit_said(folder: Path, **files: str) -> Audit:
    for name, content in files.items():
        (folder / f"{name}.log").write_text(content)
    return audit_of(folder)


def test_every_rule_is_in_the_table() -> None:
    assert RULES.keys() == {rule.id for rule in all_rules()}


@pytest.mark.parametrize("rule", RULES)
def test_rule_on_real_logs(rule: str) -> None:
    assert statuses(audit_of(*PAIR), rule) == {RULES[rule][0]}


@pytest.mark.parametrize("rule", RULES)
def test_rule_on_a_real_bundle(rule: str) -> None:
    assert statuses(audit_of(REAL / "pair"), rule) == {RULES[rule][1]}


def test_real_pair_is_unknown_and_never_clear() -> None:
    """How long pages are held was not looked at, so nothing can show that all is well."""
    result = audit_of(REAL / "pair")
    assert (result.verdict.value, failed(result), result.remedy) == ("unknown", set(), None)
    pair = result.pairs[0]
    assert (pair.limit, pair.gap) == (4096, None)


@pytest.mark.parametrize("folder", [path.name for path in REAL.iterdir()])
def test_no_real_server_meets_what_is_said_of_sglang(folder: str) -> None:
    for one in audit_of(REAL / folder).findings:
        told = f"{one.message} {' '.join(one.fix)} {' '.join(item.shown_by for item in one.missing)}"
        assert "server_args" not in told, told
        assert "tables, which go up to" not in told, told
        if one.status.value in ("pass", "fail"):
            assert "SGLang" not in told, told


@pytest.mark.parametrize("folder", ["refused", "refused-blocks"])
def test_pool_below_the_context_is_refused_at_the_start(folder: str) -> None:
    result = audit_of(REAL / folder)
    assert failed(result) == {"KVF105"}
    assert "a context of 8,192 tokens does not fit" in finding(result, "KVF105").message


def test_role_of_a_server_that_may_be_both_is_not_made_up() -> None:
    both = (REAL / "kv-both" / "decode.log").read_text()
    result = audit_of(REAL / "kv-both")
    assert [worker.role for worker in result.deployment.workers] == ["prefill", "decode"]  # by the names of the files
    assert "kv_both" in both


def test_server_of_unknown_role_takes_references_all_the_same(tmp_path: Path) -> None:
    other = said(host="127.0.0.1", role="kv_both").replace("model len 4096", "model len 2048")
    result = audit_said(tmp_path, a=said(role="kv_both"), b=other)
    assert {worker.role for worker in result.deployment.workers} == {None}
    assert statuses(result, "KVF704") == {"unknown", "pass"}
    assert statuses(result, "KVF301") == {"unknown"}
    assert statuses(result, "KVF102") == {"unknown"}
    assert "KVF704" not in failed(result)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (f"vllm serve m {NIXL}\n", "fail"),
        (f"vllm serve m --host 127.0.0.1 {NIXL}\n", "pass"),
        (f"vllm serve m --api-key $KEY {NIXL}\n", "pass"),
        (f"export VLLM_API_KEY=$KEY\nvllm serve m {NIXL}\n", "pass"),
        (f"vllm serve m --config x.yaml {NIXL}\n", "unknown"),
        (f"vllm serve m --host 0.0.0.0 $MORE {NIXL}\n", "unknown"),
        ("vllm serve m\n", "not-applicable"),
    ],
)
def test_handoff_fields_of_a_launch_script(tmp_path: Path, script: str, status: str) -> None:
    (tmp_path / "decode.sh").write_text(script)
    assert statuses(audit_of(tmp_path / "decode.sh"), "KVF704") == {status}


def test_log_alone_does_not_show_that_there_is_no_key(tmp_path: Path) -> None:
    """VLLM_API_KEY gives one too, and is in no log."""
    result = audit_said(tmp_path, decode=said())
    assert statuses(result, "KVF704") == {"unknown"}
    assert any("VLLM_API_KEY" in item.shown_by for item in finding(result, "KVF704", "unknown").missing)


@pytest.mark.parametrize(
    ("role", "connector", "release", "level"),
    [
        ("kv_consumer", "NixlConnector", "0.32.0", Level.HIGH),
        ("kv_both", "MooncakeConnector", "0.32.0", Level.HIGH),
        ("kv_producer", "NixlConnector", "0.32.0", Level.MEDIUM),
        ("kv_consumer", "LMCacheConnectorV1", "0.32.0", Level.MEDIUM),
        ("kv_consumer", "NixlConnector", "0.31.0", Level.MEDIUM),
    ],
)
def test_high_is_what_was_seen(tmp_path: Path, role: str, connector: str, release: str, level: Level) -> None:
    (tmp_path / "a.log").write_text(said(role=role, connector=connector, release=release))
    result = audit_of(tmp_path / "a.log", assume=("api_key_set=false",))
    found = finding(result, "KVF704")
    assert found.level is level
    assert ("seen on 0.32.0" in found.message) is (level is Level.HIGH)
    assert "prefix cache may keep it" in found.message or level is Level.MEDIUM
    assert result.verdict.value == ("at-risk" if level is Level.HIGH else "unknown")


@pytest.mark.parametrize(
    ("connector", "release", "status"),
    [
        ("MooncakeConnector", "0.32.0", "fail"),
        ("MooncakeConnector", "0.31.0", "unknown"),
        ("NixlConnector", "0.31.0", "not-applicable"),
        ("Other", "0.32.0", "unknown"),
    ],
)
def test_bootstrap_server(tmp_path: Path, connector: str, release: str, status: str) -> None:
    result = audit_said(tmp_path, prefill=said("127.0.0.1", "kv_producer", connector, release))
    assert statuses(result, "KVF701") == {status}


def test_release_that_was_not_run_is_not_known_to_refuse(tmp_path: Path) -> None:
    result = audit_said(tmp_path, prefill=said(role="kv_producer", release="0.31.0"), decode=said(release="0.31.0"))
    assert statuses(result, "KVF201") == {"unknown"}
    assert statuses(result, "KVF801") == {"unknown"}
    assert "run on 0.32.0" in finding(result, "KVF201", "unknown").message


@pytest.mark.parametrize(("shorter", "rule"), [("prefill", "KVF102"), ("decode", "KVF109")])
def test_contexts_that_differ_make_a_gap(tmp_path: Path, shorter: str, rule: str) -> None:
    roles = {"prefill": said(role="kv_producer"), "decode": said()}
    roles[shorter] = roles[shorter].replace("max model len 4096", "max model len 2048")
    result = audit_said(tmp_path, **roles)
    gap = result.pairs[0].gap
    assert gap is not None
    assert (gap.lo, gap.hi, gap.refuses) == (2048, 4096, shorter)
    found = finding(result, rule)
    assert found.fix[0].startswith("--max-model-len")
    assert not found.proves
    assert result.verdict.value != "exposed"


def test_what_differs_and_was_not_tried_is_unknown(tmp_path: Path) -> None:
    result = audit_said(tmp_path, prefill=said(role="kv_producer"), decode=said().replace("float32", "float16"))
    assert statuses(result, "KVF502") == {"unknown"}
    assert "was not tried" in finding(result, "KVF502", "unknown").message


def test_vllm_and_another_engine_are_no_pair_that_is_understood(tmp_path: Path) -> None:
    dump = (
        "[2026-09-01 08:00:00] server_args={'model_path': 'm', 'disaggregation_mode': 'prefill', 'host': '0.0.0.0'}\n"
    )
    result = audit_said(tmp_path, prefill=dump, decode=said())
    for rule in ("KVF104", "KVF302", "KVF402"):
        assert statuses(result, rule) == {"unknown"}
        assert "is not known to run vLLM" in finding(result, rule, "unknown").message


def test_full_pool_is_told_with_vllms_flags(tmp_path: Path) -> None:
    metrics = 'vllm:num_preemptions_total{engine="0"} 3.0\nvllm:kv_cache_usage_perc{engine="0"} 1.0\n'
    (tmp_path / "decode-metrics.txt").write_text(metrics)
    result = audit_of(tmp_path)
    for rule in ("KVF106", "KVF107"):
        assert "--max-num-seqs" in " ".join(finding(result, rule).fix)
        assert "--max-running-requests" not in " ".join(finding(result, rule).fix)
