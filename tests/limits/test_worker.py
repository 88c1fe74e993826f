"""The limit of a worker, as each release works it out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.happenings import Happenings
from kvfence.facts.model import Environment, Worker
from kvfence.limits.worker import Lacking, Size, capacity_of, limit_of
from tests.limits.conftest import MakeWorker


def tokens(worker: Worker) -> int | None:
    limit = limit_of(worker)
    return limit.tokens if isinstance(limit, Size) else None


def lacking(worker: Worker) -> set[str]:
    limit = limit_of(worker)
    assert isinstance(limit, Lacking)
    return {key.name for key in limit.keys}


def test_incident(worker: MakeWorker) -> None:
    assert tokens(worker(context_len=1048576, pool_tokens=681280)) == 681274
    assert tokens(worker(context_len=1048576, pool_tokens=1200000)) == 1048570


@given(context=st.integers(7, 10**7), pool=st.integers(7, 10**7))
def test_limit_is_the_smaller_less_six(context: int, pool: int) -> None:
    facts = {n: Fact(v, (Evidence("t", n),)) for n, v in (("context_len", context), ("pool_tokens", pool))}
    assert tokens(Worker("w", ("w",), facts, Environment(), Happenings())) == min(context, pool) - 6


def test_what_the_server_says_wins(worker: MakeWorker) -> None:
    assert tokens(worker(context_len=4096, pool_tokens=8192, max_input_len=1018)) == 1018


def test_missing_facts_are_named(worker: MakeWorker) -> None:
    assert lacking(worker()) == {"pool_tokens", "context_len"}
    assert lacking(worker(context_len=4096)) == {"pool_tokens"}
    assert lacking(worker(pool_tokens=4096)) == {"context_len"}


@pytest.mark.parametrize(
    ("release", "limit"),
    [("0.5.16", 994), ("0.5.17", 3994), ("0.5.20", 3994), ("0.5.21", 994), ("0.5.23", 994)],
)
def test_context_parallel_pools_are_widened_by_some_releases(worker: MakeWorker, release: str, limit: int) -> None:
    """Up to 0.5.20 the log prints one rank's size; 0.5.17 to 0.5.20 multiply it, from 0.5.21 it is printed widened."""
    assert tokens(worker(context_len=100000, pool_tokens=1000, dcp_size=4, version=release)) == limit


def test_context_parallel_pool_of_unknown_release_is_unknown(worker: MakeWorker) -> None:
    assert lacking(worker(context_len=100000, pool_tokens=1000, dcp_size=4)) == {"version"}
    both = worker(context_len=100000, pool_tokens=1000, dcp_size=4, version=("0.5.20", "0.5.21"))
    assert lacking(both) == {"version"}


@pytest.mark.parametrize(
    ("release", "limit"), [("0.5.6", 9994), ("0.5.8", 1994), ("0.5.10.post1", 1994), ("0.5.11", 9994)]
)
def test_sliding_window_pool_bounds_in_some_releases(worker: MakeWorker, release: str, limit: int) -> None:
    assert tokens(worker(context_len=100000, pool_tokens=10000, swa_pool_tokens=2000, version=release)) == limit


def test_sliding_window_pool_that_covers_the_context_never_bounds(worker: MakeWorker) -> None:
    assert tokens(worker(context_len=2000, pool_tokens=10000, swa_pool_tokens=2000)) == 1994


def test_sliding_window_pool_of_unknown_release_is_unknown(worker: MakeWorker) -> None:
    assert lacking(worker(context_len=100000, pool_tokens=10000, swa_pool_tokens=2000)) == {"version"}


def test_diffusion_block_is_taken_off_from_0_5_21(worker: MakeWorker) -> None:
    base = {"context_len": 4096, "pool_tokens": 8192, "dllm_algorithm": "LowConfidence"}
    assert tokens(worker(**base, version="0.5.20")) == 4090
    assert tokens(worker(**base, version="0.5.21", dllm_block_size=32)) == 4058
    assert lacking(worker(**base, version="0.5.21")) == {"max_input_len"}


def test_interleaved_pages_need_the_servers_word(worker: MakeWorker) -> None:
    assert lacking(worker(context_len=4096, pool_tokens=8192, enable_kv_cache_sharding=True)) == {"max_input_len"}


@pytest.mark.parametrize("pool", [None, 4096, 100_000])
def test_context_alone_bounds_a_prompt_of_vllm(worker: MakeWorker, pool: int | None) -> None:
    """Run on 0.32.0 with 8,192: 8,191 were answered, 8,192 refused; a smaller pool does not come up."""
    known = {} if pool is None else {"pool_tokens": pool}
    assert tokens(worker(engine="vllm", context_len=8192, version="0.32.0", **known)) == 8192
    assert lacking(worker(engine="vllm", **known)) == {"context_len"}


def test_pool_of_vllm_is_as_it_states_it(worker: MakeWorker) -> None:
    found = capacity_of(worker(engine="vllm", pool_tokens=1000, largest_pool_tokens=2000, dcp_size=4))
    assert isinstance(found, Size)
    assert (found.tokens, found.most) == (1000, 2000)
