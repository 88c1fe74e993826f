"""The comparison of how two roles spread KV over ranks."""

from __future__ import annotations

from typing import Any

import pytest

from kvfence.audit.layout import Layout, attention_width, compare_layout, is_latent
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.happenings import Happenings
from kvfence.facts.keys import KEYS
from kvfence.facts.model import Environment, Worker
from kvfence.knowledge.releases import Version, VersionRange

LATENT = {"architecture": "DeepseekV2ForCausalLM", "version": "0.5.23"}
WHOLE = {"architecture": "CohereForCausalLM", "version": "0.5.23"}


def worker(name: str = "decode", **values: Any) -> Worker:
    """Make a worker of which these facts are known; `version` is given as text, with ` to ` as a range."""
    facts = {}
    for key, value in values.items():
        assert key in KEYS
        facts[key] = Fact(releases(value) if key == "version" else value, (Evidence("test", f"{key}={value}"),))
    return Worker(name, (name,), facts, Environment(), Happenings())


def releases(text: str) -> VersionRange:
    lo, _, hi = text.partition(" to ")
    return VersionRange(Version.parse(lo), Version.parse(hi or lo))


def compared(one: dict[str, Any], other: dict[str, Any]) -> Layout:
    return compare_layout(worker("prefill", **one), worker("decode", **other))


def lacking(layout: Layout) -> set[tuple[str, str | None]]:
    return {(missing.fact, missing.worker) for missing in layout.missing}


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ({}, None),
        ({"tp_size": 8}, 8),
        ({"tp_size": 8, "dp_size": 8}, 8),
        ({"tp_size": 8, "dp_size": 4, "enable_dp_attention": False}, 8),
        ({"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}, 2),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 1),
        ({"tp_size": 4, "dp_size": 8, "enable_dp_attention": True}, 1),
        ({"tp_size": 8, "enable_dp_attention": True}, None),
        ({"dp_size": 8, "enable_dp_attention": True}, None),
    ],
)
def test_attention_width_is_tensor_width_over_data_parallel_attention(
    values: dict[str, Any], width: int | None
) -> None:
    assert attention_width(worker(**values)) == width


@pytest.mark.parametrize(
    ("architecture", "version", "latent"),
    [
        ("DeepseekV2ForCausalLM", "0.5.23", True),
        ("DeepseekV32ForCausalLM", "0.5.12 to 0.5.13", True),
        ("CohereForCausalLM", "0.5.23", False),
        ("DeepseekV32ForCausalLM", "0.4.6 to 0.5.3", None),
        ("NeverHeardOfForCausalLM", "0.5.23", None),
        (None, "0.5.23", None),
        ("DeepseekV2ForCausalLM", None, None),
    ],
)
def test_latent_pools_are_told_by_model_class_and_release(
    architecture: str | None, version: str | None, latent: bool | None
) -> None:
    told = {"architecture": architecture, "version": version}
    assert is_latent(worker(**{key: value for key, value in told.items() if value is not None})) is latent


def test_same_widths_are_alike_and_quoted() -> None:
    layout = compared({"tp_size": 8, "pp_size": 1}, {"tp_size": 8, "pp_size": 1})
    assert (layout.apart, layout.missing, layout.note) == ((), (), "")
    assert [fact.value for fact in layout.evidence] == [8, 1, 8, 1]


def test_different_attention_widths_of_whole_heads_are_apart() -> None:
    layout = compared({"tp_size": 8, "pp_size": 1}, {"tp_size": 4, "pp_size": 1, **WHOLE})
    assert layout.apart == ("attention ranks (8 and 4)",)
    assert not layout.missing


def test_different_attention_widths_of_latent_kv_are_alike() -> None:
    layout = compared({"tp_size": 8, "pp_size": 1}, {"tp_size": 4, "pp_size": 1, **LATENT})
    assert (layout.apart, layout.missing) == ((), ())
    assert layout.note == " (latent KV is the same on 8 and 4 ranks)"


def test_data_parallel_attention_makes_equal_tensor_widths_differ() -> None:
    split = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "pp_size": 1, **WHOLE}
    assert compared({"tp_size": 8, "pp_size": 1}, split).apart == ("attention ranks (8 and 1)",)


def test_data_parallel_attention_makes_different_tensor_widths_equal() -> None:
    split = {"tp_size": 16, "dp_size": 2, "enable_dp_attention": True, "pp_size": 1}
    layout = compared({"tp_size": 8, "pp_size": 1}, split)
    assert (layout.apart, layout.missing) == ((), ())


def test_tensor_width_that_is_not_known_is_missing_and_not_compared() -> None:
    layout = compared({"pp_size": 1}, {"tp_size": 4, "pp_size": 1, **WHOLE})
    assert layout.apart == ()
    assert lacking(layout) == {("tp_size", "prefill")}


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({}, {"architecture", "version"}),
        ({"architecture": "CohereForCausalLM"}, {"version"}),
        ({"version": "0.5.23"}, {"architecture"}),
        ({"architecture": "NeverHeardOfForCausalLM", "version": "0.5.23"}, {"architecture"}),
    ],
)
def test_pool_that_is_not_known_leaves_different_widths_open(known: dict[str, Any], missing: set[str]) -> None:
    layout = compared({"tp_size": 8, "pp_size": 1}, {"tp_size": 4, "pp_size": 1, **known})
    assert (layout.apart, layout.note) == ((), "")
    assert lacking(layout) == {(fact, "decode") for fact in missing}


@pytest.mark.parametrize("name", ["pp_size", "dcp_size", "attn_cp_size"])
def test_other_widths_are_compared_where_both_are_known(name: str) -> None:
    same = {"tp_size": 8, "pp_size": 1}
    assert compared({**same, name: 2}, {**same, name: 4}).apart == (f"{name} (2 and 4)",)
    assert compared({**same, name: 2}, {**same, name: 2}).apart == ()
    without = {key: value for key, value in same.items() if key != name}
    assert compared({**same, name: 2}, without).apart == ()
