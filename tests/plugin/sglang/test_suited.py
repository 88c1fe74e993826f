"""A server that asks for what was never tried does not start, unless its operator says so by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvfence.errors import InputError
from kvfence.plugin.sglang.suited import UNTRIED, demand_suited, untried

ASKS: dict[str, list[dict[str, Any]]] = {
    "backend": [{"disaggregation_transfer_backend": name} for name in ("nixl", "mori", "ascend", "")],
    "pipeline-parallel": [{"pp_size": 2}],
    "context-parallel": [{"attn_cp_size": 2}, {"dcp_size": 4}, {"moe_dp_size": 2}],
    "speculative": [{"speculative_algorithm": "EAGLE"}],
    "hierarchical-cache": [
        {"enable_hierarchical_cache": True},
        {"disaggregation_decode_enable_offload_kvcache": True},
    ],
    "data-parallel": [{"dp_size": 2}],
    "hisparse": [{"enable_hisparse": True}],
    "staging-buffer": [{"SGLANG_DISAGG_STAGING_BUFFER": value} for value in ("1", "true", "Yes", "Y", "TRUE")],
    "prefill-complete": [{"disaggregation_decode_allocation_policy": "prefill_complete"}],
    "encoder": [{"encoder_only": True}, {"language_only": True}],
}
PLAIN: list[dict[str, Any]] = [
    {},
    {"disaggregation_transfer_backend": "mooncake", "tp_size": 8, "pp_size": 1, "speculative_algorithm": None},
    {"disaggregation_transfer_backend": "mooncake_tcp", "attn_cp_size": None, "dcp_size": 1, "moe_dp_size": 0},
    {"disaggregation_transfer_backend": "fake", "disaggregation_decode_allocation_policy": "early"},
    {"enable_hierarchical_cache": False, "SGLANG_DISAGG_STAGING_BUFFER": "0"},
    {"SGLANG_DISAGG_STAGING_BUFFER": "n", "enable_pd_role_switch": False},
]
CASES = [(name, arguments) for name, each in ASKS.items() for arguments in each]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the arguments of a server, of which some are in its environment."""
    monkeypatch.delenv("SGLANG_DISAGG_STAGING_BUFFER", raising=False)

    def make(arguments: dict[str, Any]) -> SimpleNamespace:
        for name, value in arguments.items():
            if name.isupper():
                monkeypatch.setenv(name, value)
        return SimpleNamespace(**arguments)

    return make


def test_each_untried_feature_is_tried_here() -> None:
    assert set(UNTRIED) <= set(ASKS)


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=str)
def test_an_untried_feature_is_refused_by_its_name(server: Any, name: str, arguments: dict[str, Any]) -> None:
    others = frozenset(UNTRIED) - {name}
    assert untried(server(arguments)) == [name]
    with pytest.raises(InputError, match=f"never run with '{name}'.*KVFENCE_SGLANG_ACCEPT={name} starts"):
        demand_suited(server(arguments), others)


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=str)
def test_an_untried_feature_may_be_accepted(server: Any, name: str, arguments: dict[str, Any]) -> None:
    demand_suited(server(arguments), frozenset({name}))


@pytest.mark.parametrize("arguments", PLAIN, ids=str)
def test_a_plain_server_starts(server: Any, arguments: dict[str, Any]) -> None:
    demand_suited(server(arguments), frozenset())


def test_one_accepted_feature_accepts_no_other(server: Any) -> None:
    with pytest.raises(InputError, match="speculative"):
        demand_suited(server({"pp_size": 2, "speculative_algorithm": "EAGLE"}), frozenset({"pipeline-parallel"}))
