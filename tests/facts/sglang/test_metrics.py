from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import keys
from kvfence.facts.dialects.metrics import is_metrics, read_metrics
from kvfence.facts.model import Kind, Sighting
from tests.facts.conftest import REAL, value

LABELS = 'engine_type="decode",model_name="/m",tp_rank="0"'


def sample(name: str, content: object, labels: str = LABELS) -> str:
    return f"# HELP sglang:{name} What it is.\n# TYPE sglang:{name} gauge\nsglang:{name}{{{labels}}} {content}\n"


def read(text: str) -> Sighting:
    return read_metrics(text, "w.txt", "w", "g")


def test_sizes_and_role_are_read() -> None:
    found = read(sample("max_total_num_tokens", "8192.0") + sample("context_len", "4096.0"))
    assert (value(found, keys.POOL_TOKENS), value(found, keys.CONTEXT_LEN)) == (8192, 4096)
    assert (value(found, keys.ROLE), value(found, keys.ENGINE), found.kind) == ("decode", "sglang", Kind.METRICS)


def test_evidence_names_the_line() -> None:
    fact = read(sample("max_total_num_tokens", "8192.0")).get(keys.POOL_TOKENS)
    assert fact is not None
    assert fact.evidence[0].place == "w.txt:3"


@pytest.mark.parametrize(
    ("engine", "role"),
    [("prefill", "prefill"), ("decode", "decode"), ("unified", "unified"), ("null", "unified"), ("x", None)],
)
def test_role_is_that_of_the_label(engine: str, role: str | None) -> None:
    assert value(read(sample("context_len", 1, f'engine_type="{engine}"')), keys.ROLE) == role


def test_smallest_pool_of_the_ranks_counts() -> None:
    text = "".join(f'sglang:max_total_num_tokens{{dp_rank="{rank}"}} {pool}\n' for rank, pool in enumerate((9, 4, 7)))
    assert value(read(text), keys.POOL_TOKENS) == 4


def test_highest_usage_counts() -> None:
    text = sample("token_usage", 0.5) + sample("full_token_usage", 0.498) + sample("swa_token_usage", 0.9)
    assert value(read(text), keys.PEAK_USAGE) == 0.9


@pytest.mark.parametrize("number", ["0.0", "0", "-1", "NaN", "+Inf", "1e300"])
def test_metric_that_is_not_set_is_no_size(number: str) -> None:
    found = read(sample("max_total_num_tokens", number) + sample("context_len", number))
    assert value(found, keys.POOL_TOKENS) is None
    assert value(found, keys.CONTEXT_LEN) is None


def test_no_retraction_is_a_fact_too() -> None:
    assert value(read(sample("num_retracted_reqs", "0.0")), keys.RETRACTIONS) == 0


def test_usage_that_is_no_number_is_passed_over() -> None:
    assert value(read(sample("token_usage", "NaN") + sample("swa_token_usage", 0.9)), keys.PEAK_USAGE) == 0.9


@pytest.mark.parametrize("cut", range(1, 60, 4))
def test_last_line_that_was_cut_off_makes_nothing_up(cut: int) -> None:
    whole = sample("context_len", "4096.0") + f"sglang:max_total_num_tokens{{{LABELS}}} "
    found = read(whole[:-cut])
    assert value(found, keys.CONTEXT_LEN) in (4096, None)
    assert value(found, keys.POOL_TOKENS) is None


def test_number_that_was_cut_off_is_not_taken() -> None:
    assert value(read(sample("max_total_num_tokens", "8192.0").removesuffix("92.0\n")), keys.POOL_TOKENS) is None


@pytest.mark.parametrize(
    "line",
    [
        "sglang:token_usage",
        "sglang:token_usage{",
        'sglang:token_usage{a="b} 1',
        "sglang:token_usage{} x",
        "sglang:token_usage{} ",
    ],
)
def test_broken_lines_are_passed_over(line: str) -> None:
    assert value(read(f"{line}\n{sample('context_len', 4096)}"), keys.CONTEXT_LEN) == 4096


def test_metrics_of_like_names_are_others() -> None:
    text = (
        sample("pending_prealloc_token_usage", 0.9) + sample("max_total_num_tokens_swa", 5) + sample("context_lens", 5)
    )
    assert read(text).facts == {}


def test_exposition_is_told_by_its_head() -> None:
    assert is_metrics(sample("token_usage", 0))
    assert not is_metrics("# TYPE tgi:usage gauge\n")
    assert not is_metrics("sglang: a word in some text\n")


@pytest.mark.parametrize(("role", "pool"), [("prefill", 1024), ("decode", 8192)])
def test_metrics_of_a_real_server(role: str, pool: int) -> None:
    found = read((REAL / "0.5.19" / f"{role}-metrics.txt").read_text())
    assert (value(found, keys.ROLE), value(found, keys.POOL_TOKENS), value(found, keys.CONTEXT_LEN)) == (
        role,
        pool,
        4096,
    )


@given(st.text(max_size=80))
def test_no_line_stops_it(rest: str) -> None:
    for name in ("token_usage", "max_total_num_tokens", "context_len"):
        read(f"sglang:{name}{rest}\n")


@given(st.text(st.sampled_from('{}",=\\ 0123456789.eE+-#\nNaInf'), max_size=60))
def test_no_exposition_stops_it(rest: str) -> None:
    read(f"sglang:token_usage{rest}")
