"""The gap of a pair: which lengths, and who refuses them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.happenings import Happenings
from kvfence.facts.model import Environment, Pair, Worker
from kvfence.limits.pair import Gap, PairLimits, limits_of
from tests.limits.conftest import MakeWorker


def of(prefill: Worker, decode: Worker) -> PairLimits:
    return limits_of(Pair(prefill, decode))


def limited(limit: int) -> Worker:
    facts = {"max_input_len": Fact(limit, (Evidence("t", "x"),))}
    return Worker("w", ("w",), facts, Environment(), Happenings())


@given(prefill=st.integers(0, 100), decode=st.integers(0, 100), length=st.integers(0, 120))
def test_gap_holds_exactly_the_lengths_on_which_the_roles_differ(prefill: int, decode: int, length: int) -> None:
    limits = of(limited(prefill), limited(decode))
    differ = (length >= prefill) != (length >= decode)
    gap = limits.gap
    assert differ == (gap is not None and gap.lo <= length < gap.hi)
    if differ and gap is not None:
        assert gap.refuses == ("prefill" if length >= prefill else "decode")
    assert limits.limit == min(prefill, decode)


def test_gap_needs_both_limits(worker: MakeWorker) -> None:
    limits = of(limited(10), worker())
    assert not limits.known
    assert limits.gap is None
    assert limits.limit is None


def test_prompts_beyond_prefills_context_never_reach_its_scheduler(worker: MakeWorker) -> None:
    prefill = worker(context_len=4096, pool_tokens=1024)
    decode = worker(context_len=8192, pool_tokens=9000)
    limits = of(prefill, decode)
    assert limits.gap == Gap(1018, 8186, "prefill")
    assert limits.scheduler_gap == Gap(1018, 4096, "prefill")


def test_whole_gap_is_the_schedulers_where_contexts_are_equal(worker: MakeWorker) -> None:
    limits = of(worker(context_len=4096, pool_tokens=1024), worker(context_len=4096, pool_tokens=9000))
    assert limits.scheduler_gap == limits.gap == Gap(1018, 4090, "prefill")


def test_request_may_meet_the_smallest_rank_of_prefill_and_the_largest_of_decode(worker: MakeWorker) -> None:
    prefill = worker(context_len=16384, pool_tokens=1024)
    decode = worker(context_len=16384, pool_tokens=1024, largest_pool_tokens=8192)
    assert of(prefill, decode).gap == Gap(1018, 8186, "prefill")
    assert of(decode, prefill).gap == Gap(1018, 8186, "decode")
    assert of(decode, decode).gap == Gap(1018, 8186, "prefill")


def test_ranks_larger_than_the_context_make_no_gap(worker: MakeWorker) -> None:
    uneven = worker(context_len=1000, pool_tokens=1024, largest_pool_tokens=8192)
    assert of(uneven, uneven).gap is None
