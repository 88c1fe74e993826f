from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvfence.facts.dialects.sglang import release
from kvfence.facts.dialects.sglang.lines import ACCESS, BATCH, FORMS, NEEDLES, USAGE, Form, Says
from tests.facts.conftest import REAL, access, batch, dump, refusal, summary
from tests.facts.sglang.growth import is_linear

GIB = "K size: 1.50 GB, V size: 1.50 GB"

# A line of each kind as some release writes it, and what is taken out of it.
EXAMPLES: list[tuple[Says, str, dict[str, str | None]]] = [
    (Says.DUMP, dump(tp_size=2), {"dump": "{'model_path': '/models/m', 'tp_size': 2}"}),
    (Says.DUMP, "server_args=ServerArgs(tp_size=2)", {"dump": "ServerArgs(tp_size=2)"}),
    (
        Says.COMMAND,
        "+ python3 -m sglang.launch_server --port 1",
        {"flags": "--port 1"},
    ),
    (Says.COMMAND, "+ sglang serve --port 1", {"flags": "--port 1"}),
    (Says.SUMMARY, summary(681280, 1048576), {"pool": "681280", "context": "1048576", "running": "512"}),
    (
        Says.SUMMARY,
        "max_total_num_tokens=20, chunked_prefill_size=-1, max_prefill_tokens=9, max_running_requests=7, context_len=9",
        {"pool": "20", "context": "9", "running": "7", "memory": None},
    ),
    (
        Says.SUMMARY,
        (
            "max_total_num_tokens=20, chunked_prefill_size=None, max_prefill_tokens=1, max_running_requests=7,"
            " context_len=9, available_cpu_mem=1.00 GB"
        ),
        {"pool": "20", "memory": ", available_cpu_mem="},
    ),
    (Says.SUMMARY, "max_total_num_tokens=20, context_len=9", {"pool": "20", "context": "9", "running": None}),
    (Says.POOL, f"KV Cache is allocated. #tokens: 1024, {GIB}", {"tokens": "1024", "dtype": None}),
    (Says.POOL, "KV Cache is allocated. #tokens: 1024, KV size: 3.00 GB", {"tokens": "1024"}),
    (
        Says.POOL,
        f"Draft KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1024, {GIB}",
        {"dtype": "torch.bfloat16", "kind": "is allocated"},
    ),
    (Says.POOL, f"KV Cache VA upper bound. dtype: torch.uint8, #tokens: 9, {GIB}", {"kind": "VA upper bound"}),
    (
        Says.POOL_HOLDS,
        "KV pool holds 1024 tokens, fewer than --context-length 4096. One full-length request cannot fit",
        {"pool": "1024", "context": "4096"},
    ),
    (
        Says.SLIDING,
        "Use Sliding window memory pool. full_layer_tokens=10, swa_layer_tokens=5",
        {"capital": "S", "full": "10", "swa": "5"},
    ),
    (Says.SLIDING, "Use sliding window memory pool (all SWA). swa_layer_tokens=5", {"full": None, "swa": "5"}),
    (
        Says.WEIGHTS,
        "Load weight end. elapsed=0.08 s, type=LlamaForCausalLM, quant=fp8, avail mem=1.00 GB",
        {"type": "LlamaForCausalLM", "dtype": None},
    ),
    (
        Says.WEIGHTS,
        "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=1.00 GB",
        {"elapsed": None, "type": "LlamaForCausalLM"},
    ),
    (Says.POST_CAPTURE, "Post-capture KV sizing: full_layer_tokens=10, swa_layer_tokens=0", {"full": "10", "swa": "0"}),
    (Says.POST_CAPTURE, "Post-capture KV sizing: max_total_num_tokens=10, free memory=1.00 GB", {"full": None}),
    (Says.DECODE_ROLE, "KV cache is forced as chunk cache for decode server", {}),
    (Says.DECODE_ROLE, "Radix cache is disabled for decode server", {}),
    (Says.BOOTSTRAP, "CommonKVBootstrapServer started successfully on 127.0.0.1:8978", {"host": "127.0.0.1"}),
    (Says.BOOTSTRAP, "CommonKVBootstrapServer started successfully on [::1]:8978", {"host": "[::1]", "port": "8978"}),
    (Says.LISTENING, "INFO:     Uvicorn running on http://127.0.0.1:30120 (Press CTRL+C to quit)", {"port": "30120"}),
    (Says.LISTENING, "INFO:     Uvicorn running on http://[::]:30120 (Press CTRL+C to quit)", {"port": "30120"}),
    (Says.READY, "The server is fired up and ready to roll!", {}),
    (Says.REFUSED_START, "Not enough memory. Please try to increase --mem-fraction-static.", {}),
    (Says.REFUSAL, refusal(2000, 1018, "r1"), {"tokens": "2000", "limit": "1018", "rid": "r1"}),
    (
        Says.REFUSAL,
        (
            "Input length (9 tokens) exceeds the maximum allowed length (8 tokens). Use a shorter input or enable"
            " --allow-auto-truncate."
        ),
        {"tokens": "9", "rid": None},
    ),
    (
        Says.TRUNCATED,
        (
            "Request length is longer than the KV cache pool size or the max context length. Truncated."
            " len(req.origin_input_ids)=2000, max_req_input_len=1018"
        ),
        {"tokens": "2000", "limit": "1018"},
    ),
    (
        Says.WAIT,
        (
            "Decode transfer failed for request rank=0 decode_req.req.rid='r1' decode_req.req.bootstrap_room=7 with"
            " exception KVTransferError(bootstrap_room=7): Request r1 timed out after 300.0s in KVPoll.WaitingForInput"
        ),
        {"rid": "r1", "room": "7", "seconds": "300.0", "aborted": None},
    ),
    (
        Says.WAIT,
        (
            "Decode transfer failed for request decode_req.req.rid='r1' decode_req.req.bootstrap_room=7 with"
            " exception KVTransferError(bootstrap_room=7): Aborted by AbortReq."
        ),
        {"seconds": None, "aborted": "Aborted by AbortReq"},
    ),
    (Says.FINISH, "Finish: obj=GenerateReqInput(rid='r1')", {"rest": "GenerateReqInput(rid='r1')"}),
    (Says.FULL, "Decode batch, #running-req: 3, token usage: 0.99, gen throughput", {"usage": "0.99"}),
    (Says.RETRACTED, "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens", {"count": "3"}),
    (Says.CANARY, "install_canary: disaggregation_mode=decode", {"role": "decode"}),
]


@pytest.mark.parametrize(("says", "line", "taken"), EXAMPLES)
def test_line_is_recognised(says: Says, line: str, taken: dict[str, str | None]) -> None:
    matches = [m for form in FORMS if form.says is says and form.needle in line and (m := form.shape.search(line))]
    assert len(matches) == 1
    assert {name: matches[0][name] for name in taken} == taken


@pytest.mark.parametrize(("says", "line"), [(says, line) for says, line, _ in EXAMPLES])
def test_line_is_of_one_kind_only(says: Says, line: str) -> None:
    assert {form.says for form in FORMS if form.needle in line and form.shape.search(line)} == {says}


@pytest.mark.parametrize(
    "line",
    [
        'client got {"error": {"message": "Input length (9 tokens) exceeds the maximum allowed length (8 tokens)."}}',
        "'Input length (9 tokens) exceeds the maximum allowed length (8 tokens). Use a shorter input', 'code': 400}",
    ],
)
def test_refusal_that_is_quoted_by_another_is_no_refusal(line: str) -> None:
    assert not any(form.shape.search(line) for form in FORMS if form.says is Says.REFUSAL)


def test_refusal_that_the_http_server_tells_the_client_is_marked() -> None:
    line = "[http_server] Error: Input length (9 tokens) exceeds the maximum allowed length (8 tokens). Use a shorter"
    (form,) = (form for form in FORMS if form.says is Says.REFUSAL)
    for text, told in ((line, "Error: "), (line.partition("Error: ")[2], None)):
        match = form.shape.search(text)
        assert match is not None
        assert match["told"] == told


def test_failed_transfer_of_another_kind_is_no_wait() -> None:
    line = (
        "Decode transfer failed for request rank=0 decode_req.req.rid='r1' decode_req.req.bootstrap_room=7 with"
        " exception KVTransferError(bootstrap_room=7): Failed to send kv chunk"
    )
    assert not any(form.shape.search(line) for form in FORMS if form.says is Says.WAIT)


def test_needles_do_not_hide_each_other() -> None:
    for one in NEEDLES:
        for other in NEEDLES:
            if one is not other:
                assert one not in other


def test_needles_stand_for_their_forms_in_order() -> None:
    assert [needle.decode() for needle in NEEDLES] == [form.needle for form in FORMS]
    assert all("\n" not in form.needle for form in FORMS)


def test_wordings_are_known_to_the_tables() -> None:
    assert all(release.from_wording(form.wording) for form in FORMS if form.wording is not None)


FILLERS = ("a", "'", "{", "KV Cache ")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("filler", FILLERS)
def test_time_grows_with_the_length_of_a_line_and_no_faster(form: Form, filler: str) -> None:
    assert is_linear(form.shape.search, lambda length: form.needle + filler * (length // len(filler)), 8_000)


def test_batch_lines_are_told_apart() -> None:
    found = BATCH.search(batch(tokens=5, sequences=2))
    assert found is not None
    assert (found["kind"], found["seqs"], found["tokens"]) == ("Prefill", "2", "5")
    decode = BATCH.search("Decode batch, #running-req: 3, #token: 9, token usage: 0.10, pre-allocated usage: 0.00")
    assert decode is not None
    assert (decode["kind"], decode["tokens"]) == ("Decode", None)
    assert BATCH.search("Prefill batch [12], #new-seq: 1, #new-token: 1") is not None
    assert BATCH.search("Prefill batch. #new-seq: 1, #new-token: 1") is not None


def test_usages_of_a_line_are_all_read() -> None:
    assert USAGE.findall("full token usage: 0.10, swa token usage: 0.90, mamba usage: 0.20") == ["0.10", "0.90"]


@pytest.mark.parametrize("status", [200, 400, 500])
def test_access_lines_are_read(status: int) -> None:
    found = ACCESS.search(access(status, "/v1/chat/completions"))
    assert found is not None
    assert (found["path"], found["status"]) == ("/v1/chat/completions", str(status))


@pytest.mark.parametrize("path", sorted(REAL.glob("*/*.log")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_real_logs_hold_every_line_of_a_start(path: Path) -> None:
    text = path.read_text()
    found = {
        form.says
        for form in FORMS
        for line in re.findall(f"(?m)^.*{re.escape(form.needle)}.*$", text)
        if form.shape.search(line)
    }
    assert {Says.DUMP, Says.COMMAND, Says.SUMMARY, Says.POOL, Says.WEIGHTS, Says.LISTENING, Says.READY} <= found
