"""The remedy, worked out from numbers that a log prints."""

from __future__ import annotations

import pytest

from kvfence.facts.model import Deployment, Worker, serve_different_models
from kvfence.knowledge.switches import switch_names
from kvfence.limits import remedy as arithmetic
from kvfence.limits.remedy import (
    BATCH,
    DEFERRED_TIMEOUT,
    GIB,
    MOONCAKE,
    Step,
    batch_indices,
    by_model,
    bytes_per_token,
    largest_context,
    missing_bytes,
    prompt_bytes,
    release_timeout,
    remedy_for,
)
from tests.limits.conftest import MakeWorker

GLM = {
    "role": "prefill",
    "context_len": 1048576,
    "pool_tokens": 681280,
    "page_size": 64,
    "rank_pool_tokens": 681280,
    "rank_pool_bytes": round(32.47 * GIB),
    "pool_dtype": "float8_e4m3fn",
}


LARGE = {"pool_tokens": 1200000, "rank_pool_tokens": 1200000, "rank_pool_bytes": round(57.19 * GIB)}


def steps_of(*workers: Worker) -> dict[str, Step]:
    """Give the steps of a remedy by the name of their setting."""
    remedy = remedy_for(Deployment(workers))
    assert remedy is not None
    return {step.setting.partition("=")[0]: step for step in remedy.steps}


def test_bytes_per_token_count_the_padding_page(worker: MakeWorker) -> None:
    each = bytes_per_token(worker(**GLM))
    assert each == pytest.approx(32.47 * GIB / (681280 + 64))


def test_missing_bytes_and_prompt_bytes(worker: MakeWorker) -> None:
    short = worker(**GLM)
    each = bytes_per_token(short)
    assert each is not None
    assert missing_bytes(short) == round((1048576 - 681280) * each)
    assert prompt_bytes(short) == pytest.approx(1048576 * each)


def test_largest_context_is_in_whole_pages_of_the_smallest_pool(worker: MakeWorker) -> None:
    odd = worker(context_len=4096, pool_tokens=1000, page_size=64)
    assert largest_context([worker(**GLM), odd]) == 960
    assert largest_context([worker(context_len=4096)]) is None


def test_batch_bound_keeps_to_its_size(worker: MakeWorker) -> None:
    glm = worker(**GLM)
    each, indices = bytes_per_token(glm), batch_indices(glm, 256 << 20)
    assert each is not None
    assert indices is not None
    assert indices * 64 * each <= 256 << 20 < (indices + 1) * 64 * each
    assert batch_indices(glm, 1) == 1


def test_release_timeout_exceeds_call_timeout_and_a_second_per_gigabyte() -> None:
    for size in (0, 1e9, 53.6e9):
        assert release_timeout(size) > 30 + size / 1e9


def test_context_is_for_both_roles_and_each_switch_for_the_role_that_reads_it(worker: MakeWorker) -> None:
    steps = steps_of(worker("prefill", **GLM), worker("decode", **{**GLM, **LARGE, "role": "decode"}))
    assert steps["--context-length 681280"].roles == ("prefill", "decode")
    assert steps[BATCH].roles == ("prefill",)
    assert steps[DEFERRED_TIMEOUT].roles == ("decode",)


@pytest.mark.parametrize("backend", MOONCAKE)
def test_mooncake_gets_its_switches(worker: MakeWorker, backend: str) -> None:
    steps = steps_of(worker("p", **GLM, disaggregation_transfer_backend=backend))
    assert {BATCH, DEFERRED_TIMEOUT} <= set(steps)
    assert "not known" not in steps[BATCH].why


@pytest.mark.parametrize("backend", ["nixl", "mori", "ascend", "fake"])
def test_switches_of_mooncake_are_not_for_other_backends(worker: MakeWorker, backend: str) -> None:
    other = worker("p", **GLM, disaggregation_transfer_backend=backend)
    decode = worker("d", **{**GLM, **LARGE, "role": "decode"})
    steps = steps_of(other, decode)
    assert "--context-length 681280" in steps
    assert not {BATCH, DEFERRED_TIMEOUT} & set(steps)


def test_backend_that_is_not_known_is_said_to_be(worker: MakeWorker) -> None:
    steps = steps_of(worker("p", **GLM), worker("q", **GLM))
    assert steps[BATCH].why.endswith("; the transfer backend of p and 1 more is not known")
    assert steps[DEFERRED_TIMEOUT].why.endswith("; the transfer backend of p and 1 more is not known")


def test_batch_bound_counts_the_pages_of_prefill(worker: MakeWorker) -> None:
    prefill, wide = worker("p", **GLM), {**GLM, **LARGE, "role": "decode", "rank_pool_bytes": round(500 * GIB)}
    steps = steps_of(prefill, worker("d", **wide))
    assert steps[BATCH].setting == f"{BATCH}={batch_indices(prefill)}"
    (decode_alone,) = [steps_of(worker("d", **{**wide, "pool_tokens": 1000}))]
    assert BATCH not in decode_alone
    assert DEFERRED_TIMEOUT in decode_alone


def test_no_hold_is_named_where_the_bytes_of_a_prompt_are_not_known(worker: MakeWorker) -> None:
    small = {key: value for key, value in GLM.items() if not key.startswith("rank_")}
    assert set(steps_of(worker(**small))) == {"--context-length 681280"}


def test_small_pool_of_another_model_shrinks_nothing(worker: MakeWorker) -> None:
    glm = [worker(role, **{**GLM, "role": role}, served_model_name="glm") for role in ("prefill", "decode")]
    tiny = worker("t", role="prefill", context_len=4096, pool_tokens=1000, page_size=1, served_model_name="tiny")
    remedy = remedy_for(Deployment((*glm, tiny)))
    assert remedy is not None
    whys = {step.setting: step.why for step in remedy.steps if step.setting.startswith("--context-length")}
    assert set(whys) == {"--context-length 681280", "--context-length 1000"}
    assert whys["--context-length 681280"].startswith("glm: ")
    assert whys["--context-length 1000"].startswith("tiny: ")


def test_groups_hold_no_two_workers_of_different_models(worker: MakeWorker) -> None:
    workers = [
        worker("p", role="prefill", served_model_name="a"),
        worker("t", role="prefill", served_model_name="b"),
        worker("d", role="decode", model_path="/a"),
        worker("u", role="decode", model_path="/b"),
    ]
    groups = by_model(Deployment(tuple(workers)))
    for group in groups:
        assert not any(serve_different_models(one, other) for one in group for other in group)
    assert {member.name for group in groups for member in group} == {"p", "t", "d", "u"}


def test_roles_that_a_router_may_combine_are_one_group(worker: MakeWorker) -> None:
    prefill = worker("p", **GLM, model_path="/nfs/glm")
    decode = worker("d", **{**GLM, **LARGE, "role": "decode"}, model_path="/mnt/glm-5-fp8")
    assert [pair.decode.name for pair in Deployment((prefill, decode)).pairs()] == ["d"]
    assert by_model(Deployment((prefill, decode))) == [[prefill, decode]]


def test_model_that_is_well_gets_no_step(worker: MakeWorker) -> None:
    fine = worker("f", **{**GLM, **LARGE}, served_model_name="fine")
    steps = steps_of(worker("p", **GLM, served_model_name="glm"), fine)
    assert all("fine" not in step.why for step in steps.values())


def test_workers_of_unknown_model_are_of_every_group(worker: MakeWorker) -> None:
    prefill = {"role": "prefill"}
    workers = (
        worker("anyone", **prefill),
        worker("one", **prefill, served_model_name="a"),
        worker("other", **prefill, served_model_name="b"),
        worker("late", **prefill),
        worker("router", role="router"),
    )
    assert [[member.name for member in group] for group in by_model(Deployment(workers))] == [
        ["anyone", "one", "late"],
        ["anyone", "other", "late"],
    ]
    assert by_model(Deployment(())) == []


def test_many_models_are_taken_one_by_one(worker: MakeWorker) -> None:
    many = [worker(f"w{i}", role="prefill", served_model_name=f"m{i}") for i in range(arithmetic.MOST_MODELS + 1)]
    anyone = worker("anyone", role="prefill")
    assert by_model(Deployment((*many, anyone)))[-1] == [anyone]


def test_step_for_one_worker_is_said_once(worker: MakeWorker) -> None:
    models = [worker(name, role="prefill", served_model_name=name, context_len=9, pool_tokens=9) for name in "ab"]
    remedy = remedy_for(Deployment((worker("short", **GLM), *models)))
    assert remedy is not None
    assert [step.setting for step in remedy.steps].count("a higher --mem-fraction-static, or more ranks") == 1


def test_longest_prompt_follows_from_the_margin(worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "681,273 tokens (the engine keeps 6 " in steps_of(worker(**GLM))["--context-length 681280"].why
    monkeypatch.setattr(arithmetic, "MARGIN", 10)
    assert "681,269 tokens (the engine keeps 10 " in steps_of(worker(**GLM))["--context-length 681280"].why


def test_switches_are_spelled_as_the_tables_spell_them() -> None:
    assert {BATCH, DEFERRED_TIMEOUT} <= switch_names()


def test_fp8_is_offered_where_it_halves_the_bytes(worker: MakeWorker) -> None:
    wide = worker(**{**GLM, "pool_dtype": "bfloat16"})
    remedy = remedy_for(Deployment((wide,)))
    assert remedy is not None
    (step,) = [step for step in remedy.steps if "fp8" in step.setting]
    assert "1,362,560 tokens, which covers the context" in step.why


def test_no_remedy_where_nothing_is_short(worker: MakeWorker) -> None:
    fine = {**GLM, "pool_tokens": 1200000}
    assert remedy_for(Deployment((worker(**fine), worker(**{**fine, "role": "decode"})))) is None


def test_sizes_too_small_to_say_anything_give_no_bytes(worker: MakeWorker) -> None:
    small = {k: v for k, v in GLM.items() if not k.startswith("rank_")}
    assert bytes_per_token(worker(**small)) is None
    assert missing_bytes(worker(**small)) is None
