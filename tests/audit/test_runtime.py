"""KVF801 and KVF810: which requests were affected, and which were not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfence.facts import happenings
from kvfence.facts.keys import POOL_TOKENS
from kvfence.findings import Audit, Requests
from tests.conftest import audit_of, finding, statuses


def at(second: int, text: str) -> str:
    return f"[2026-09-01 08:{second // 60:02}:{second % 60:02}] {text}\n"


def start(role: str, pool: int, context: int = 4096) -> str:
    return at(0, f"server_args={{'disaggregation_mode': '{role}', 'port': 1}}") + at(
        1,
        f"max_total_num_tokens={pool}, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=64, "
        f"context_len={context}, available_gpu_mem=9.12 GB",
    )


def refusal(second: int, tokens: int, rid: str, limit: int = 1018) -> str:
    told = f"Input length ({tokens} tokens) exceeds the maximum allowed length ({limit} tokens)."
    return at(second, f"{told} Use a shorter input or enable --allow-auto-truncate., self.rid='{rid}'")


def batch(second: int, sequences: int, tokens: int) -> str:
    return at(second, f"Prefill batch, #new-seq: {sequences}, #new-token: {tokens}, #cached-token: 0, #inflight-req: 1")


def access(second: int, status: int, path: str = "/generate") -> str:
    return at(second, f'INFO:     10.0.0.9:50000 - "POST {path} HTTP/1.1" {status} OK')


def finish(second: int, rid: str, room: int, prompt: int, completion: int, *, reason: str = "length") -> str:
    return at(
        second,
        f"Finish: obj=GenerateReqInput(rid='{rid}', text='a secret prompt', bootstrap_room={room}), out={{'text': 'an "
        f"answer', 'meta_info': {{'id': '{rid}', 'finish_reason': {{'type': '{reason}', 'length': {completion}}}, "
        f"'prompt_tokens': {prompt}, 'completion_tokens': {completion}}}}}",
    )


def judged(folder: Path, prefill: str, decode: str = "", *, release: str = "0.5.19", pool: int = 8192) -> Audit:
    (folder / "prefill.log").write_text(start("prefill", 1024) + prefill)
    (folder / "decode.log").write_text(start("decode", pool) + decode)
    return audit_of(folder, assume=(f"version={release}",))


def requests(result: Audit, status: str = "fail") -> Requests:
    found = finding(result, "KVF801", status).requests
    assert found is not None
    return found


def test_chain_on_prefill_is_proof(tmp_path: Path) -> None:
    result = judged(tmp_path, refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 200))
    assert requests(result).ids == ("a",)
    assert finding(result, "KVF801").workers == ("prefill",)
    assert result.verdict.value == "exposed"


def test_requests_between_do_not_break_the_chain(tmp_path: Path) -> None:
    busy = refusal(10, 2000, "a") + batch(10, 3, 900) + access(10, 200) + batch(11, 1, 1) + access(11, 200)
    assert requests(judged(tmp_path, busy)).ids == ("a",)


def test_refusal_answered_400_is_well(tmp_path: Path) -> None:
    result = judged(tmp_path, refusal(10, 2000, "a") + access(10, 400), release="0.5.21")
    assert statuses(result, "KVF801") == {"pass"}


def test_0_5_20_runs_the_placeholder_and_answers_400(tmp_path: Path) -> None:
    result = judged(tmp_path, refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 400), release="0.5.20")
    assert statuses(result, "KVF801") == {"pass"}
    assert statuses(result, "KVF202") == {"fail"}


def test_stream_of_a_fixed_release_is_200_and_well(tmp_path: Path) -> None:
    """An SSE answer is 200 whatever it holds; 0.5.20 and later put the refusal into it."""
    log = refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 200, "/v1/completions")
    for release in ("0.5.20", "0.5.21", "0.5.23"):
        assert statuses(judged(tmp_path, log, release=release), "KVF801") == {"pass"}


def test_chain_of_a_release_that_is_not_known_is_no_proof(tmp_path: Path) -> None:
    (tmp_path / "prefill.log").write_text(
        start("prefill", 1024) + refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 200)
    )
    result = audit_of(tmp_path)
    assert statuses(result, "KVF801") == {"unknown"}
    assert requests(result, "unknown").unclear == ("a",)
    assert result.verdict.value != "exposed"


def test_refusal_without_an_end_is_unclear(tmp_path: Path) -> None:
    result = judged(tmp_path, refusal(10, 2000, "a"))
    assert requests(result, "unknown").unclear == ("a",)


def test_prompt_that_decode_refuses_too_is_not_affected(tmp_path: Path) -> None:
    log = refusal(10, 4092, "a") + batch(10, 1, 1) + access(11, 200)
    assert statuses(judged(tmp_path, log), "KVF801") == {"pass"}


def test_request_log_of_both_legs_joins_them_by_room(tmp_path: Path) -> None:
    prefill = refusal(10, 2000, "a") + finish(11, "a", 77, prompt=1, completion=1)
    decode = finish(12, "b", 77, prompt=2000, completion=12)
    result = judged(tmp_path, prefill, decode)
    assert requests(result).ids == ("a",)
    sources = {line.source.rpartition("/")[2] for line in finding(result, "KVF801").evidence}
    assert sources == {"prefill.log", "decode.log"}
    assert "secret" not in repr(finding(result, "KVF801"))


def test_leg_that_ended_in_an_abort_is_not_affected(tmp_path: Path) -> None:
    prefill = refusal(10, 2000, "a") + finish(11, "a", 77, prompt=1, completion=0, reason="abort")
    assert statuses(judged(tmp_path, prefill), "KVF801") == {"pass"}


def test_decode_leg_of_the_same_length_soon_after_is_that_of_a_release_that_hands_off(tmp_path: Path) -> None:
    leg = finish(40, "b", 5, prompt=2000, completion=12)
    assert requests(judged(tmp_path, refusal(10, 2000, "a"), leg)).ids == ("a",)
    assert statuses(judged(tmp_path, refusal(10, 2000, "a"), leg, release="0.5.23"), "KVF801") == {"pass"}


def test_one_decode_leg_speaks_for_one_refusal(tmp_path: Path) -> None:
    twice = refusal(10, 2000, "a") + refusal(11, 2000, "b")
    told = requests(judged(tmp_path, twice, finish(40, "c", 5, prompt=2000, completion=12)))
    assert (told.ids, told.unclear) == (("a",), ("b",))


def test_decode_leg_of_the_same_length_proves_nothing_of_an_unknown_release(tmp_path: Path) -> None:
    """Another client may send a prompt as long, or the router the same one to a larger prefill worker."""
    (tmp_path / "prefill.log").write_text(start("prefill", 1024) + refusal(10, 2000, "a"))
    (tmp_path / "decode.log").write_text(start("decode", 8192) + finish(40, "b", 5, prompt=2000, completion=12))
    assert statuses(audit_of(tmp_path), "KVF801") == {"unknown"}


def test_decode_leg_long_after_or_of_another_length_is_none(tmp_path: Path) -> None:
    for leg in (finish(1200, "b", 5, prompt=2000, completion=12), finish(40, "b", 5, prompt=1999, completion=12)):
        assert statuses(judged(tmp_path, refusal(10, 2000, "a"), leg), "KVF801") == {"unknown"}


def test_error_of_another_client_hides_no_leak(tmp_path: Path) -> None:
    for status in (400, 401):
        log = refusal(10, 2000, "a") + access(10, status) + batch(10, 1, 1) + access(11, 200)
        assert requests(judged(tmp_path, log)).ids == ("a",)
    assert statuses(judged(tmp_path, refusal(10, 2000, "a") + access(10, 400)), "KVF801") == {"unknown"}


def test_id_that_a_client_used_again_is_no_proof(tmp_path: Path) -> None:
    retried = refusal(10, 2000, "a") + finish(20, "a", 77, prompt=900, completion=1)
    assert statuses(judged(tmp_path, retried, release="0.5.23"), "KVF801") == {"pass"}
    assert statuses(judged(tmp_path, retried), "KVF801") == {"unknown"}
    leaked = (
        refusal(10, 2000, "a")
        + finish(11, "a", 77, prompt=1, completion=1)
        + finish(20, "a", 78, prompt=9, completion=1)
    )
    assert requests(judged(tmp_path, leaked)).ids == ("a",)


def test_decode_limit_of_the_time_of_the_refusal_counts(tmp_path: Path) -> None:
    """Both roles restarted with a shorter context after the leak; that changes nothing about it."""
    chain = refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 200)
    later = start("decode", 1024, 1024).replace("08:00:0", "09:00:0")
    assert requests(judged(tmp_path, chain, later)).ids == ("a",)


def test_lines_before_a_start_are_of_no_known_release(tmp_path: Path) -> None:
    chain = refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 200)
    (tmp_path / "decode.log").write_text(start("decode", 8192))
    fixed = start("prefill", 8192).replace("08:00:0", "09:00:0")
    (tmp_path / "prefill.log").write_text(chain + fixed)
    result = audit_of(tmp_path, assume=("version=0.5.23",))
    assert requests(result, "unknown").unclear == ("a",)
    assert result.verdict.value != "clear"


def test_prefill_and_decode_in_one_file(tmp_path: Path) -> None:
    """Whichever started last, what was refused is prefill's."""
    chain = refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 200)
    decode = start("decode", 8192).replace("'port': 1", "'port': 2")
    (tmp_path / "nohup.out").write_text(start("prefill", 1024) + decode + chain)
    assert requests(audit_of(tmp_path, assume=("version=0.5.19",))).ids == ("a",)


def test_restart_on_another_port_is_the_same_worker(tmp_path: Path) -> None:
    stopped = at(20, "SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    again = start("prefill", 8192).replace("'port': 1", "'port': 2")
    (tmp_path / "prefill.log").write_text(start("prefill", 1024) + stopped + again)
    (tmp_path / "decode.log").write_text(start("decode", 8192))
    result = audit_of(tmp_path, assume=("version=0.5.19",))
    assert [worker.value(POOL_TOKENS) for worker in result.deployment.workers] == [8192, 8192]
    assert statuses(result, "KVF102") == {"pass"}


def test_data_parallel_ranks_that_log_no_refusal_are_not_well(tmp_path: Path) -> None:
    log = start("prefill", 1024).replace("'port': 1", "'port': 1, 'enable_dp_attention': True, 'dp_size': 8")
    (tmp_path / "prefill.log").write_text(log + batch(10, 1, 900))
    assert statuses(audit_of(tmp_path, assume=("version=0.5.19",)), "KVF801") == {"unknown"}
    assert statuses(audit_of(tmp_path, assume=("version=0.5.23",)), "KVF801") == {"pass"}


def test_server_of_no_known_role_is_not_said_to_leak(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        refusal(10, 2000, "a") + batch(10, 1, 1).replace(", #inflight-req: 1", "") + access(11, 200)
    )
    assert statuses(audit_of(tmp_path, assume=("version=0.5.18",)), "KVF801") == {"unknown"}


def test_refusals_that_were_only_counted_are_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(happenings, "KEPT", 1)
    told = at(10, "[http_server] Error: " + refusal(10, 2000, "a").split("] ")[1].partition(" Use")[0])
    log = (refusal(10, 2000, "a") + told) * 3
    assert statuses(judged(tmp_path, log, release="0.5.19"), "KVF801") == {"unknown"}


def test_upgrade_in_between_is_judged_by_the_release_of_each_start(tmp_path: Path) -> None:
    printed = "{'disaggregation_mode': 'prefill', 'port': 1}"  # a class repr up to 0.5.18, a dict from 0.5.19 on
    old = start("prefill", 1024).replace(printed, "ServerArgs(disaggregation_mode='prefill', port=1)")
    chain = refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 200)
    fixed = start("prefill", 8192) + at(70, "Init parallel begin.")
    (tmp_path / "prefill.log").write_text(old + chain + fixed)
    (tmp_path / "decode.log").write_text(start("decode", 8192))
    assert requests(audit_of(tmp_path)).ids == ("a",)


def wait(second: int, rid: str, how: str) -> str:
    return at(
        second,
        f"Decode transfer failed for request rank=0 decode_req.req.rid='{rid}' decode_req.req.bootstrap_room=7 with "
        f"exception KVTransferError(bootstrap_room=7): {how}",
    )


def test_time_out_on_decode_was_left_waiting(tmp_path: Path) -> None:
    decode = wait(320, "b", "Request 7 timed out after 300.0s in KVPoll.WaitingForInput")
    result = judged(tmp_path, refusal(20, 2000, "a") + access(20, 400), decode, release="0.5.22")
    found = finding(result, "KVF810")
    assert found.requests is not None
    assert found.requests.ids == ("b",)
    assert "1 of them after prefill had refused them; the longest waited 300 s" in found.message


def test_client_that_left_counts_only_after_a_refusal(tmp_path: Path) -> None:
    decode = wait(100, "b", "Aborted by AbortReq.")
    assert statuses(judged(tmp_path, "", decode, release="0.5.22"), "KVF810") == {"pass"}
    refused = refusal(20, 2000, "a") + access(20, 400)
    assert statuses(judged(tmp_path, refused, decode, release="0.5.22"), "KVF810") == {"fail"}


def test_one_refusal_explains_one_wait(tmp_path: Path) -> None:
    decode = wait(100, "b", "Aborted by AbortReq.") + wait(101, "c", "Aborted by AbortReq.")
    found = finding(judged(tmp_path, refusal(20, 2000, "a") + access(20, 400), decode, release="0.5.22"), "KVF810")
    assert found.requests is not None
    assert found.requests.ids == ("b",)


def modelled(folder: Path, prefill: str, decode: str) -> Audit:
    for role, pool, told in (("prefill", 1024, prefill), ("decode", 8192, decode)):
        log = start(role, pool).replace("'port': 1", f"'port': 1, {told}")
        (folder / f"{role}.log").write_text(log)
    return audit_of(folder, assume=("version=0.5.19",))


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("/data0/tiny-llama", "hf-org/tiny-llama"),
        ("/models/a", "/mnt/checkpoints/b/"),
        ("/data/cache/hub/models--org--tiny-llama/snapshots/0a1b", "org/tiny-llama"),
    ],
)
def test_path_that_is_spelled_otherwise_hides_no_gap(tmp_path: Path, prefill: str, decode: str) -> None:
    paths = [f"'model_path': '{path}', 'served_model_name': '{path}'" for path in (prefill, decode)]
    assert statuses(modelled(tmp_path, *paths), "KVF102") == {"fail"}


def test_workers_of_differing_models_leave_the_pair_unknown(tmp_path: Path) -> None:
    result = modelled(tmp_path, "'served_model_name': 'a'", "'served_model_name': 'b'")
    assert statuses(result, "KVF102") == {"unknown"}
    missing = {item.fact for found in result.findings if found.rule == "KVF102" for item in found.missing}
    assert missing == {"a prefill worker of the same model", "a decode worker of the same model"}


ARMED = (
    "kvfence 0.1.0 guards prefill of sglang 0.5.19: door, coverage, notices, batches; batch 67108864 bytes, "
    "silent peer deny, prefill limit learned, accepted untried: none"
)


def test_what_guards_turned_away_was_not_handed_off(tmp_path: Path) -> None:
    """The same lines without the guards are proof: see `test_chain_on_prefill_is_proof`."""
    result = judged(tmp_path, at(2, ARMED) + refusal(10, 2000, "a") + batch(10, 1, 1) + access(11, 200))
    assert statuses(result, "KVF801") == {"pass"}
    assert result.verdict.value == "at-risk"


def test_who_leaves_decode_after_guards_refused_another_was_not_left_waiting(tmp_path: Path) -> None:
    left = at(
        20,
        "Decode transfer failed for request rank=0 decode_req.req.rid='b' decode_req.req.bootstrap_room=7 with "
        "exception KVTransferError(bootstrap_room=7): Aborted by AbortReq.",
    )
    refused = refusal(10, 2000, "a")
    assert statuses(judged(tmp_path, refused, left, release="0.5.21"), "KVF810") == {"fail"}
    assert statuses(judged(tmp_path, at(2, ARMED) + refused, left, release="0.5.21"), "KVF810") == {"pass"}
    # What is handed off is answered, and what decode refuses too it does not wait for.
    assert statuses(judged(tmp_path, refused, left, release="0.5.19"), "KVF810") == {"pass"}
    assert statuses(judged(tmp_path, refused, left, release="0.5.21", pool=1024), "KVF810") == {"pass"}


def test_last_token_of_a_cached_prompt_is_no_placeholder(tmp_path: Path) -> None:
    """Seen on the real 0.5.19: a prompt of 976 tokens of which the prefix cache held 975, and its 200."""
    hit = at(10, "Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 975, #inflight-req: 1")
    result = judged(tmp_path, refusal(10, 2000, "a") + hit + access(11, 200))
    assert statuses(result, "KVF801") == {"unknown"}
