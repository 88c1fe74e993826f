"""Secrets in inputs reach no output, wherever they stand."""

from __future__ import annotations

import json
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvfence.audit.run import audit
from kvfence.facts.collect import Input, collect
from kvfence.facts.redact import clean
from kvfence.report import document, plain, terminal
from kvfence.report import json as report_json

# Begun with letters that nothing else in a report begins with.
SECRET = st.text(string.ascii_letters + string.digits + "-_", min_size=5, max_size=40).map(lambda text: f"Zq7{text}")

REFUSAL = "Input length (9 tokens) exceeds the maximum allowed length (5 tokens)."

# Each plants a secret in one file the way it is found in the field.
PLANTS = {
    "prefill.log": [
        "[2026-09-01 08:00:00] server_args=ServerArgs(model_path='/m', api_key='{s}', disaggregation_mode='prefill')\n",
        "[2026-09-01 08:00:00] server_args={{'model_path': '/m', 'admin_api_key': '{s}', 'api_key': None}}\n",
        "[2026-09-01 08:00:00] server_args={{'api_key': '{s}', 'context_length': 4096, 'model_pa",
        "+ python -m sglang.launch_server --model-path /m --api-key {s} --disaggregation-mode prefill\n",
        "+ python -m sglang.launch_server --model-path https://user:{s}@host/m --disaggregation-mode prefill\n",
        f"[2026-09-01 08:00:00] {REFUSAL} api_key={{s}}, self.rid='a'\n",
        f"[2026-09-01 08:00:00] {REFUSAL}, self.rid='token={{s}}'\n",
        "[2026-09-01 08:00:00 TP0] Load weight end. type=Llama, authorization: Bearer {s}\n",
    ],
    "prefill-launch.sh": [
        "export OPENAI_API_KEY={s}\npython -m sglang.launch_server --model-path /m --disaggregation-mode prefill\n",
        "python -m sglang.launch_server --model-path /m --api-key={s} --port 1\n",
        "docker run -e HF_TOKEN={s} lmsysorg/sglang:v0.5.19 python -m sglang.launch_server --model-path /m --tp 2\n",
        "smg --pd-disaggregation --prefill http://10.0.0.1:1 --api-key {s}\n",
    ],
    "prefill-environ": ["SGLANG_API_KEY={s}\0MC_TRANSFER_TIMEOUT=30\0DB_PASSWORD={s}\0"],
    "prefill-server_info.json": [
        '{{"disaggregation_mode": "prefill", "max_total_num_tokens": 9, "api_key": "{s}", "model_path": "/m"}}',
        '{{"disaggregation_mode": "prefill", "max_total_num_tokens": 9, "model_path": "https://u:{s}@h/m"}}',
    ],
    "args.yaml": ["model-path: /m\ntp-size: 2\napi-key: {s}\n"],
    "notes.txt": ["context_len=4096, max_total_num_tokens=1024, api_key={s}\n"],
}
CASES = [(name, template) for name, templates in PLANTS.items() for template in templates]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=st.sampled_from(CASES), secret=SECRET)
def test_planted_secret_reaches_no_output(case: tuple[str, str], secret: str) -> None:
    name, template = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(template.format(s=secret))
        result = audit(collect([Input(str(path))]))
    printed = report_json.render(document.build(result)) + plain.render(lambda console: terminal.show(console, result))
    assert secret not in printed


def test_every_plant_is_read() -> None:
    """The property above would hold of files that are not read at all."""
    for name, template in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(template.format(s="s3cret-value"))
            (worker,) = collect([Input(str(path))]).workers
            assert worker.facts or worker.environment.variables, (name, template)


def test_shown_key_is_a_finding_that_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "prefill.log").write_text(PLANTS["prefill.log"][0].format(s="s3cret-value"))
    result = audit(collect([Input(str(tmp_path))]))
    (found,) = [f for f in result.findings if f.rule == "KVF703"]
    assert found.status.value == "fail"
    assert found.evidence[0].line == 1


@pytest.mark.parametrize(
    "text",
    [
        "Prefill batch, #new-seq: 1, #new-token: 2000, #cached-token: 0, token usage: 0.98, #pending-token: 0",
        "max_total_num_tokens=1024, chunked_prefill_size=2048, context_len=4096",
        "tokenizer_path='/models/m', skip_tokenizer_init=False, tokenizer_mode='auto'",
        "gen throughput (token/s): 35.36",
        "api_key=None, admin_api_key=None",
        "#full token: 2642688, full token usage: 1.00, #swa token: 14592, swa token usage: 0.06",
        json.dumps({"token_capacity": 4096, "token_usage": 0.5}),
    ],
)
def test_counts_of_tokens_are_no_secrets(text: str) -> None:
    assert clean(text) == text


def test_control_characters_are_taken_out() -> None:
    assert clean("a\x1b]0;x\x07b\x9b31mc\u202e") == "a ]0;x b 31mc "
