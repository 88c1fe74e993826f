"""What an engine is started with: what is refused names the option to blame, and what is left out has a default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvfence.engine.settings import Plan, Settings
from kvfence.errors import InputError
from kvfence.fence import ALL
from kvfence.fence.units import FULL, LATENT, ROW

CONTEXT = 8192  # of the model


@pytest.fixture
def settings(recall_model: Path) -> Settings:
    return Settings(recall_model)


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"prefill": 0}, "--prefill"),
        ({"decode": -1}, "--decode"),
        ({"ranks": 0}, "--tp-size"),
        ({"page_tokens": 0}, "--page-size"),
        ({"rows": 0}, "--rows"),
        ({"chunk_tokens": 0}, "--chunked-prefill-size"),
        ({"lanes": 0}, "--lanes"),
        ({"slots": -5}, "--slots"),
        ({"transport": "rdma"}, "--transport"),
        ({"transport": "mooncake-tcp-push"}, "--transport"),  # of the proof table, and not built in
        ({"context_length": CONTEXT + 1}, "--context-length"),
        ({"prefill_pool_tokens": CONTEXT - 1}, "--prefill-pool-tokens"),
        ({"decode_pool_tokens": CONTEXT - 16}, "--decode-pool-tokens"),
        ({"on": ALL.without("tags")}, "--without"),
        ({"prefill_on": ALL.without("canary")}, "--without"),
        ({"allow_short_pool": True}, "--allow-short-pool"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_with_its_option(
    settings: Settings, change: dict[str, Any], option: str
) -> None:
    with pytest.raises(InputError) as refused:
        Plan(replace(settings, **change))
    assert refused.value.source == option


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"context_length": 0}, "--context-length"),
        ({"context_length": -5}, "--context-length"),
        ({"decode_pool_tokens": 15}, "--decode-pool-tokens"),
        ({"decode_pool_tokens": -1}, "--decode-pool-tokens"),
        ({"prefill_pool_tokens": 0}, "--prefill-pool-tokens"),
        ({"tags": "crc32"}, "--tags"),
        ({"wait_seconds": 0.0}, "wait_seconds"),
        ({"retry_seconds": -1.0}, "retry_seconds"),
        ({"fence_seconds": 0.0}, "fence_seconds"),
    ],
    ids=str,
)
def test_what_the_fence_cannot_keep_is_refused_in_words_that_name_it(
    settings: Settings, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        Plan(replace(settings, **change))


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        Plan(Settings(tmp_path))
    with pytest.raises(InputError, match="no directory"):
        Plan(Settings(tmp_path / "nowhere"))


def test_pools_hold_twice_and_four_times_the_context_if_nothing_is_said(settings: Settings) -> None:
    plan = Plan(settings)
    assert plan.context_length == CONTEXT
    assert (plan.pool_tokens("prefill"), plan.pool_tokens("decode")) == (2 * CONTEXT, 4 * CONTEXT)
    assert plan.configs["decode"].pages == {FULL: 4 * CONTEXT // 16, ROW: 64}
    assert plan.limit == CONTEXT
    shorter = Plan(replace(settings, context_length=100))
    assert (shorter.pool_tokens("prefill"), shorter.pool_tokens("decode")) == (224, 448)  # whole pages
    assert shorter.limit == 100


def test_the_fence_is_configured_as_the_engine_is(settings: Settings) -> None:
    plan = Plan(replace(settings, wait_seconds=7.0, lanes=3, slots=9, truncate=True, prefix_cache=False, ranks=1))
    for config in plan.configs.values():
        assert (config.wait_seconds, config.lanes, config.slots) == (7.0, 3, 9)
        assert (config.truncate, config.prefix_cache, config.ranks) == (True, False, 1)
        assert config.model == plan.digest
        assert config.tags == ("blake3-keyed",)
        assert config.transport == "shared-memory"


def test_the_shorter_of_two_pools_sets_the_limit_in_the_lab(settings: Settings) -> None:
    plan = Plan(replace(settings, lab=True, allow_short_pool=True, decode_pool_tokens=100, prefill_pool_tokens=4096))
    assert plan.configs["decode"].limit == 97
    assert plan.configs["prefill"].limit == 4097
    assert plan.limit == 97


def test_a_pool_of_exactly_the_context_is_enough(settings: Settings) -> None:
    plan = Plan(replace(settings, context_length=160, decode_pool_tokens=160, prefill_pool_tokens=175))
    assert plan.limit == 160


def test_the_lab_may_weaken_one_role_alone(settings: Settings) -> None:
    plan = Plan(replace(settings, lab=True, prefill_on=ALL.without("admission", "tags")))
    assert plan.configs["prefill"].on.off == ("admission", "tags")
    assert plan.configs["decode"].on.off == ()


def test_latents_are_the_same_on_every_rank(latent_model: Path, settings: Settings) -> None:
    latent = Plan(Settings(latent_model, ranks=2)).configs["decode"].layout
    assert (latent.kinds, latent.head_shards) == ((LATENT, ROW), 1)
    full = Plan(settings).configs["decode"].layout
    assert (full.kinds, full.head_shards) == ((FULL, ROW), 2)


def test_ranks_add_up_a_chunk_of_hidden_states_at_once(settings: Settings) -> None:
    assert Plan(replace(settings, chunk_tokens=32)).slab_floats() == 32 * 64
