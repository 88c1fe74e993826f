"""The data files hold what their readers rely on, with a source in every row."""

from __future__ import annotations

import re

import pytest

from kvfence.findings import Level
from kvfence.knowledge import switches
from kvfence.knowledge.advisories import advisories
from kvfence.knowledge.coverage import Covers, coverage, pool_of
from kvfence.knowledge.protections import backend, protection
from kvfence.knowledge.releases import Version, newest, oldest, sglang_releases
from kvfence.knowledge.tables import read_rows, read_toml

RANGED = ["server_args_fields.tsv", "flags.tsv", "switches.tsv", "families.tsv", "coverage.tsv", "log_wording.tsv"]
TABLES = [*RANGED, "releases.tsv"]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_a_source(name: str) -> None:
    rows = read_rows(f"sglang/{name}")
    assert rows
    assert all(len(row["source"]) > 3 for row in rows)


@pytest.mark.parametrize("name", RANGED)
def test_bounds_are_known_releases_in_order(name: str) -> None:
    known = set(sglang_releases())
    for row in read_rows(f"sglang/{name}"):
        lo = Version.parse(row["since"]) if row["since"] else oldest()
        hi = Version.parse(row["until"]) if row["until"] else newest()
        assert {lo, hi} <= known, row
        assert lo <= hi, row


@pytest.mark.parametrize(("name", "key"), [("families.tsv", "architecture"), ("switches.tsv", "name")])
def test_ranges_of_one_name_do_not_overlap(name: str, key: str) -> None:
    taken: dict[tuple[str, Version], dict[str, str]] = {}
    for row in read_rows(f"sglang/{name}"):
        for version in sglang_releases():
            lo = Version.parse(row["since"]) if row["since"] else oldest()
            hi = Version.parse(row["until"]) if row["until"] else newest()
            if lo <= version <= hi:
                assert (row[key], version) not in taken, row
                taken[row[key], version] = row


def test_protections_say_where_they_were_seen() -> None:
    for row in read_toml("sglang/protections.toml")["protection"]:
        assert row["source"]
        assert row["change"]
        assert row["seen_in"][0] == row["since"]
        assert all(Version.parse(seen) in sglang_releases() for seen in row["seen_in"])
    for row in read_toml("sglang/protections.toml")["backend"]:
        assert row["source"]
        assert row["early_send_source"]


def test_merged_is_not_released() -> None:
    """#36988 was merged on 29 August and #38935 on 10 September; what counts is the release that ships them."""
    assert str(protection("retire-aborted-result").since) == "0.5.20"
    assert str(protection("door-refusal").since) == "0.5.21"


def test_deferred_release_is_on_by_default_from_0_5_21() -> None:
    name = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    defaults = [switches.default_of(name, Version.parse(v)) for v in ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.23")]
    assert defaults == [None, False, False, True, True]


def test_transfer_batches_are_unbounded_by_default_in_every_release() -> None:
    name = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
    assert {switches.default_of(name, version) for version in sglang_releases()} == {None, 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("Y", True), ("no", False), ("0", False), ("on", None), ("", None)],
)
def test_switch_words_are_those_the_engine_takes(text: str, value: bool | None) -> None:
    assert switches.parse("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE", text) is value


def test_advisories_are_complete() -> None:
    assert len({advisory.id for advisory in advisories()}) == len(advisories())
    for advisory in advisories():
        assert re.match(r"CVE-\d{4}-\d+$|sgl-project/sglang#\d+$", advisory.id)
        assert Level(advisory.level)
        assert advisory.title
        assert advisory.fix
        assert advisory.source
        assert all(Version.parse(seen) in sglang_releases() for seen in advisory.seen_in)


@pytest.mark.parametrize(
    "family",
    [
        *("GLM-4", "GLM-5", "DeepSeek-V2", "DeepSeek-V3", "DeepSeek-V3.2", "DeepSeek-V4", "Kimi-K2.5", "Kimi-K3"),
        *(
            "Qwen2",
            "Qwen3",
            "Qwen3-Next",
            "Qwen3.5",
            "Llama",
            "Gemma3",
            "Gemma4",
            "gpt-oss",
            "MiniMax-M2",
            "Nemotron-H",
        ),
    ],
)
def test_family_is_in_the_table(family: str) -> None:
    assert any(row["family"] == family for row in read_rows("sglang/families.tsv"))


@pytest.mark.parametrize(
    ("architecture", "release", "checksum", "canary"),
    [
        ("LlamaForCausalLM", "0.5.23", Covers.YES, Covers.YES),
        ("DeepseekV3ForCausalLM", "0.5.23", Covers.YES, Covers.BREAKS),
        ("GlmMoeDsaForCausalLM", "0.5.23", Covers.YES, Covers.BREAKS),
        ("Glm5NextForConditionalGeneration", "0.5.23", Covers.PARTIAL, Covers.BREAKS),
        ("DeepseekV4ForCausalLM", "0.5.23", Covers.BREAKS, Covers.PARTIAL),
        ("MiniMaxM3SparseForCausalLM", "0.5.22", Covers.BREAKS, Covers.BREAKS),
        ("MiniMaxM3SparseForCausalLM", "0.5.23", Covers.YES, Covers.BREAKS),
        ("GptOssForCausalLM", "0.5.23", Covers.YES, Covers.YES),
    ],
)
def test_coverage_of_a_family(architecture: str, release: str, checksum: Covers, canary: Covers) -> None:
    version = Version.parse(release)
    pool = pool_of(architecture, version)
    assert pool is not None
    for mechanism, expected in (("checksum", checksum), ("canary", canary)):
        row = coverage(mechanism, pool, version)
        assert row is not None
        assert row.covers is expected


def test_unknown_names_are_unknown() -> None:
    assert pool_of("NobodyForCausalLM", newest()) is None
    assert coverage("checksum", "NoPool", newest()) is None
    assert backend("carrier-pigeon") is None
