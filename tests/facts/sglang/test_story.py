from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import keys
from kvfence.facts.happenings import Answer
from kvfence.facts.model import Sighting
from tests.facts.conftest import REAL, access, at, batch, dump, refusal, stamped, start, summary, tell, tell_one, value
from tests.facts.sglang.growth import is_linear

DECODE_WAIT = (
    "Decode transfer failed for request rank=0 decode_req.req.rid='r1' decode_req.req.bootstrap_room=7 with exception"
    " KVTransferError(bootstrap_room=7): Request r1 timed out after 300.0s in KVPoll.WaitingForInput"
)


def under(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def by_name(sightings: list[Sighting]) -> dict[str, Sighting]:
    return {sighting.name: sighting for sighting in sightings}


def pools(sightings: list[Sighting]) -> dict[str, int]:
    return {sighting.name: value(sighting, keys.POOL_TOKENS) for sighting in sightings}


def test_start_tells_arguments_pool_and_context() -> None:
    told = tell_one(start(1024, context=4096, disaggregation_mode="prefill", port=30000, page_size=64))
    assert (value(told, keys.ROLE), value(told, keys.PORT), value(told, keys.PAGE_SIZE)) == ("prefill", 30000, 64)
    assert (value(told, keys.POOL_TOKENS), value(told, keys.CONTEXT_LEN)) == (1024, 4096)
    assert value(told, keys.STARTED) is True


def test_evidence_names_the_line() -> None:
    fact = tell_one("noise\n" + start(1024)).get(keys.POOL_TOKENS)
    assert fact is not None
    assert fact.evidence[0].place == "w.log:3"
    assert fact.evidence[0].text.startswith("max_total_num_tokens=1024")


def test_log_of_others_says_nothing() -> None:
    assert tell("a log\nof something else\n") == []


def test_two_workers_by_prefix_are_two() -> None:
    prefill, decode = start(1024, disaggregation_mode="prefill"), start(8192, disaggregation_mode="decode")
    mixed = zip(under("prefill-0  | ", prefill).splitlines(), under("decode-0   | ", decode).splitlines(), strict=True)
    told = tell("".join(f"{one}\n{other}\n" for one, other in mixed))
    assert pools(told) == {"prefill-0": 1024, "decode-0": 8192}
    assert {name: value(one, keys.ROLE) for name, one in by_name(told).items()} == {
        "prefill-0": "prefill",
        "decode-0": "decode",
    }
    assert not any("start" in note for one in told for note in one.notes)


def test_refusal_of_one_worker_is_not_answered_by_another() -> None:
    text = under("a-0  | ", stamped(refusal(), batch(1))) + under("b-0  | ", stamped(access(200)))
    assert [one.answer for told in tell(text) for one in told.happenings.refusals] == [Answer.UNCLEAR]


def test_last_of_several_starts_is_judged() -> None:
    told = tell_one(start(1024, page_size=1) + start(2048, 100, page_size=64) + start(4096, 200, page_size=64))
    assert (value(told, keys.POOL_TOKENS), value(told, keys.PAGE_SIZE)) == (4096, 64)
    assert any("3 starts" in n and "the last one is judged (pools of 1024, 2048, 4096 tokens)" in n for n in told.notes)


def test_what_happened_in_an_earlier_start_still_counts() -> None:
    first, second = (start(pool, at_, disaggregation_mode="prefill") for pool, at_ in ((1024, 0), (4096, 200)))
    told = tell_one(first + stamped(refusal(), batch(1), access(200), seconds=50) + second)
    assert [one.answer for one in told.happenings.refusals] == [Answer.ANSWERED]


def test_restart_that_has_not_told_its_role_is_no_other_worker() -> None:
    first = at(0, summary(1024)) + "\n" + stamped(batch(900), seconds=50)
    assert len(tell(first + at(900, summary(2048)) + "\n")) == 1


def test_start_that_crashed_before_its_pool_does_not_hide_the_next() -> None:
    failed = (
        at(0, dump(page_size=1))
        + "\n"
        + at(1, "Not enough memory. Please try to increase --mem-fraction-static")
        + "\n"
    )
    told = tell_one(failed + start(1024, 60))
    assert value(told, keys.POOL_TOKENS) == 1024
    assert value(told, keys.START_REFUSED) is None


def test_start_without_a_dump_is_told_by_its_other_pool() -> None:
    told = tell_one(at(0, summary(1024)) + "\n" + at(900, summary(2048)) + "\n")
    assert value(told, keys.POOL_TOKENS) == 2048


def test_two_servers_mixed_without_a_mark_are_given_up() -> None:
    lines = [
        at(0, dump(disaggregation_mode="prefill", port=1)),
        at(1, dump(disaggregation_mode="decode", port=2)),
        at(2, summary(1024)),
        at(3, summary(8192)),
    ]
    (told,) = tell("\n".join(lines) + "\n")
    assert told.facts.keys() == {"engine"}
    assert any("nothing tells their lines apart" in note for note in told.notes)


def test_two_servers_one_after_the_other_are_two_workers() -> None:
    told = tell(
        start(1024, disaggregation_mode="prefill", port=1) + start(8192, 99, disaggregation_mode="decode", port=2)
    )
    assert pools(told) == {"w (role prefill, port 1)": 1024, "w (role decode, port 2)": 8192}


def test_smallest_data_parallel_rank_counts() -> None:
    lines = [at(0, dump(dp_size=2)), at(1, summary(4096), " DP0"), at(1, summary(1024), " DP1")]
    told = tell_one("\n".join(lines) + "\n")
    assert value(told, keys.POOL_TOKENS) == 1024
    assert not any("starts" in note for note in told.notes)


def test_tensor_parallel_ranks_are_one_pool() -> None:
    lines = [at(0, dump(tp_size=4)), *(at(1, summary(1024), f" TP{rank}") for rank in range(4))]
    assert value(tell_one("\n".join(lines) + "\n"), keys.POOL_TOKENS) == 1024


def test_pool_is_measured_in_bytes_over_its_layers() -> None:
    line = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1024, K size: 1.50 GB, V size: 1.50 GB"
    told = tell_one(start(1024) + at(3, line) + "\n")
    assert value(told, keys.RANK_POOL_BYTES) == 3 << 30
    assert (value(told, keys.RANK_POOL_TOKENS), value(told, keys.POOL_DTYPE)) == (1024, "bfloat16")


def test_pool_too_small_for_its_two_decimals_is_not_measured() -> None:
    line = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1024, K size: 0.01 GB, V size: 0.01 GB"
    assert value(tell_one(at(3, line) + "\n"), keys.RANK_POOL_BYTES) is None


def test_sliding_window_sizes_are_read() -> None:
    line = "Use sliding window memory pool. full_layer_tokens=1000, swa_layer_tokens=800"
    told = tell_one(at(0, dump()) + "\n" + at(1, line) + "\n")
    assert (value(told, keys.FULL_POOL_TOKENS), value(told, keys.SWA_POOL_TOKENS)) == (1000, 800)


def test_role_is_told_by_lines_without_a_dump() -> None:
    assert value(tell_one(at(0, "Radix cache is disabled for decode server") + "\n"), keys.ROLE) == "decode"
    bootstrap = at(0, "CommonKVBootstrapServer started successfully on 0.0.0.0:8998")
    assert value(tell_one(bootstrap + "\n"), keys.ROLE) == "prefill"


def test_release_is_narrowed_by_wordings() -> None:
    told = tell_one(
        at(0, "Init parallel begin.") + "\n" + at(1, "KV cache is forced as chunk cache for decode server") + "\n"
    )
    assert str(value(told, keys.VERSION)) == "0.5.21"


def test_wordings_of_two_releases_are_noted() -> None:
    told = tell_one(at(0, "Init parallel begin.") + "\n" + at(1, "Using KV cache dtype: torch.bfloat16") + "\n")
    assert any("is this the log of one worker?" in note for note in told.notes)


def test_refusal_names_the_release_that_refused_it() -> None:
    told = tell_one(at(0, "Init parallel begin.") + "\n" + stamped(refusal()))
    (found,) = told.happenings.refusals
    assert found.release is not None
    assert str(found.release.lo) == "0.5.21"


def test_waits_and_truncations_are_kept() -> None:
    cut = (
        "Request length is longer than the KV cache pool size or the max context length. Truncated."
        " len(req.origin_input_ids)=2000, max_req_input_len=1018"
    )
    happened = tell_one(stamped(DECODE_WAIT, cut)).happenings
    assert [(one.rid, one.room, one.seconds) for one in happened.waits] == [("r1", "7", 300.0)]
    assert [(one.tokens, one.limit) for one in happened.truncations] == [(2000, 1018)]
    assert happened.watched


def test_what_is_quoted_without_a_time_did_not_happen_here() -> None:
    assert not any(told.happenings for told in tell(f"{refusal()}\n{DECODE_WAIT}\n"))


def test_usage_and_retractions_are_read() -> None:
    full = "Decode batch, #running-req: 3, #token: 9, token usage: 0.99, pre-allocated usage: 0.00"
    told = tell_one(
        stamped(
            full,
            "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 9",
            "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 9",
        )
    )
    assert (value(told, keys.PEAK_USAGE), value(told, keys.RETRACTIONS)) == (0.99, 5)


def test_split_entries_are_joined() -> None:
    whole = at(0, dump(page_size=64, served_model_name="x" * 100))
    parts = [whole[:60], whole[60:120], whole[120:]]
    marks = ["P", "P", "F"]
    text = "".join(f"2026-11-30T15:00:00Z stdout {m} {p}\n" for m, p in zip(marks, parts, strict=True))
    assert value(tell_one(text), keys.PAGE_SIZE) == 64


def test_split_docker_entries_are_joined() -> None:
    whole = at(0, dump(served_model_name="x " * (5 << 10), page_size=64)) + "\n"
    text = "".join(f'{{"log": {json.dumps(part)}}}\n' for part in (whole[: 9 << 10], whole[9 << 10 :]))
    assert value(tell_one(text), keys.PAGE_SIZE) == 64


def test_command_echoed_by_the_shell_is_read() -> None:
    told = tell_one(
        "+ python -m sglang.launch_server --model-path m --disaggregation-mode prefill --port 1\n" + start(1024)
    )
    assert (value(told, keys.ROLE), value(told, keys.PORT)) == ("prefill", 1)


def test_cut_dump_is_noted() -> None:
    told = tell_one(at(0, dump(page_size=64, context_length=7))[:-20] + "\n")
    assert any("is cut off; what it lacks says nothing" in note for note in told.notes)


def test_log_that_begins_in_the_middle_is_still_watched() -> None:
    told = tell_one(stamped(batch(900, usage="0.42")))
    assert told.happenings.watched
    assert value(told, keys.PEAK_USAGE) == 0.42
    assert value(told, keys.POOL_TOKENS) is None


@pytest.mark.parametrize("folder", ["0.5.19", "0.5.21", "0.5.22", "0.5.23"])
def test_refusals_of_real_servers(folder: str) -> None:
    (told,) = tell((REAL / folder / "prefill.log").read_bytes())
    assert told.happenings.refusals
    answers = {one.answer for one in told.happenings.refusals}
    assert answers == {Answer.ANSWERED} if folder == "0.5.19" else Answer.REFUSED in answers
    assert {one.limit for one in told.happenings.refusals} == {1018}


def test_truncations_of_a_real_server() -> None:
    (told,) = tell((REAL / "0.5.23-auto-truncate" / "prefill.log").read_bytes())
    assert told.happenings.truncations
    assert {one.limit for one in told.happenings.truncations} == {1018}


def test_secret_in_a_dump_is_told_of_and_not_kept() -> None:
    told = tell_one(at(0, dump(api_key="hunter2hunter2")) + "\n")
    assert "hunter2" not in repr(told)
    assert [one.value for one in told.secrets_shown] == ["api_key"]


@pytest.mark.parametrize("word", ["a", "token", "api_key", "a-b.", "--a"])
def test_time_for_a_logged_prompt_grows_with_its_length_and_no_faster(word: str) -> None:
    def line(length: int) -> str:
        return at(1, f"Finish: obj=GenerateReqInput(rid='r1', text='{word * (length // len(word))}')") + "\n"

    assert is_linear(tell, line, 30_000)


@pytest.mark.parametrize("line", [summary(1).replace("=1,", f"={'9' * 5000},"), refusal().replace("2000", "9" * 5000)])
def test_endless_number_does_not_stop_it(line: str) -> None:
    assert value(tell_one(start(1024) + at(9, line) + "\n"), keys.POOL_TOKENS) == 1024


PIECES = st.sampled_from(
    [
        at(0, dump(page_size=1)),
        at(1, summary(5)),
        at(2, refusal()),
        at(3, batch(1)),
        at(4, access()),
        at(5, DECODE_WAIT),
        "server_args={",
        "KV Cache is allocated. #tokens: 5, KV size: 1.00 GB",
        '{"log": "x"}',
        "p  | ",
        "Finish: obj=",
        "\x1b[",
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=12), st.sampled_from(["\n", "\r\n", "", " "]))
def test_no_mixture_of_lines_stops_it(pieces: list[str], between: str) -> None:
    for told in tell(between.join(pieces)):
        assert told.facts or told.happenings


def test_prompt_in_a_request_log_makes_no_facts_and_is_not_quoted() -> None:
    forged = "max_total_num_tokens=999, context_len=5 Load weight end. type=Fake, SIGTERM received. x"
    for kind in ("Receive", "Finish"):
        told = tell_one(
            at(0, f"{kind}: obj=GenerateReqInput(rid='a', text='{forged} swordfish')") + "\n" + start(1024, 5)
        )
        assert value(told, keys.POOL_TOKENS) == 1024
        assert value(told, keys.ARCHITECTURE) is None
        assert "swordfish" not in repr(told)


def test_uvicorn_alone_names_no_engine() -> None:
    sightings = tell(at(0, "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)") + "\n")
    assert all(value(told, keys.ENGINE) is None for told in sightings)


def test_shutdown_ends_a_worker_on_its_port() -> None:
    stopped = stamped("INFO:     Finished server process [4502]", seconds=50)
    both = start(1024, port=1) + stopped + start(8192, 60, port=2)
    assert value(tell_one(both), keys.POOL_TOKENS) == 8192
    assert len(tell(start(1024, port=1) + start(8192, 60, port=2))) == 2
