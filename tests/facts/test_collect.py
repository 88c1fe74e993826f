from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvfence.errors import InputError
from kvfence.facts import collect as collect_module
from kvfence.facts import keys
from kvfence.facts.collect import Input, collect
from kvfence.facts.model import Deployment, Worker
from tests.facts.conftest import REAL, CollectFiles, start, value

INFO = json.dumps({"disaggregation_mode": "prefill", "max_total_num_tokens": 1024, "version": "0.5.21"})


def only(deployment: Deployment) -> Worker:
    (worker,) = deployment.workers
    return worker


def test_directory_of_two_roles(collect_files: CollectFiles) -> None:
    prefill, decode = start(1024, disaggregation_mode="prefill"), start(8192, disaggregation_mode="decode")
    deployment = collect_files({"prefill.log": prefill, "decode.log": decode})
    assert [(w.name, w.role, value(w, keys.POOL_TOKENS)) for w in deployment.workers] == [
        ("prefill", "prefill", 1024),
        ("decode", "decode", 8192),
    ]


def test_files_of_one_stem_are_one_worker(collect_files: CollectFiles) -> None:
    files = {
        "prefill-0.log": start(1024, context=2048),
        "prefill-0-server_info.json": INFO,
        "prefill-0.sh": "sglang serve --kv-canary log",
    }
    worker = only(collect_files(files))
    assert (worker.name, worker.role, value(worker, keys.CONTEXT_LEN)) == ("prefill-0", "prefill", 2048)
    assert value(worker, keys.CANARY) == "log"
    assert len(worker.sources) == 3


def test_nameless_files_of_a_directory_are_called_after_it(collect_files: CollectFiles) -> None:
    files = {
        f"{name}/{file}": content
        for name in ("decode-0", "decode-1")
        for file, content in (("server.log", start(8192 if name[-1] == "0" else 4096)), ("metrics.txt", METRICS))
    }
    deployment = collect_files(files)
    assert [(w.name, w.role) for w in deployment.workers] == [("decode-0", "decode"), ("decode-1", "decode")]


METRICS = '# TYPE sglang:context_len gauge\nsglang:context_len{engine_type="decode"} 4096.0\n'


def test_directory_of_a_real_pair() -> None:
    deployment = collect([Input(str(REAL / "0.5.21"))])
    assert [(w.name, w.role, value(w, keys.POOL_TOKENS), value(w, keys.MAX_INPUT_LEN)) for w in deployment.workers] == [
        ("prefill", "prefill", 1024, 1018),
        ("decode", "decode", 8192, 4090),
    ]
    assert {str(value(w, keys.VERSION)) for w in deployment.workers} == {"0.5.21"}
    assert all(w.disagreements == () for w in deployment.workers)


def test_files_that_say_nothing_are_passed_over_with_a_note(collect_files: CollectFiles) -> None:
    others: dict[str, str | bytes] = {"README.md": "words", "x.bin": bytes(range(256)), "e.log": ""}
    deployment = collect_files({"prefill.log": start(1024), **others})
    assert len(deployment.workers) == 1
    notes = [note for note in deployment.notes if note.startswith("not read: ")]
    assert len(notes) == 3
    assert all(any(name in note for note in notes) for name in others)


def test_hidden_files_are_left_alone(collect_files: CollectFiles) -> None:
    deployment = collect_files({"prefill.log": start(1024), ".git/x.log": start(9), ".hidden.log": start(9)})
    assert value(only(deployment), keys.POOL_TOKENS) == 1024


def test_directory_that_says_nothing_is_refused(collect_files: CollectFiles) -> None:
    with pytest.raises(InputError, match="holds no file that says something of a server"):
        collect_files({"README.md": "words"})


def test_directory_of_too_many_files_is_refused(collect_files: CollectFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_module, "LARGEST_DIRECTORY", 3)
    with pytest.raises(InputError, match="holds more than 3 files"):
        collect_files({f"{n}.log": start(1) for n in range(5)})


def test_config_file_that_a_script_names_is_no_worker_of_its_own(collect_files: CollectFiles) -> None:
    files = {"prefill.sh": "sglang serve --config shared.yaml --port 1\n", "shared.yaml": "page-size: 64\n"}
    worker = only(collect_files(files))
    assert (worker.name, value(worker, keys.PAGE_SIZE), value(worker, keys.PORT)) == ("prefill", 64, 1)


def test_notes_are_not_endless(collect_files: CollectFiles) -> None:
    files: dict[str, str] = {f"{n}.txt": "words" for n in range(80)}
    notes = collect_files({"prefill.log": start(1024), **files}).notes
    assert len([note for note in notes if note.startswith("not read: ")]) == collect_module.SHOWN_NOTES
    assert "and 30 more notes of this kind" in notes


def test_file_named_by_the_user_that_says_nothing_is_an_unknown_worker(tmp_path: Path) -> None:
    (tmp_path / "decode.log").write_text("nothing of interest\n")
    deployment = collect([Input(str(tmp_path / "decode.log"), "decode")])
    assert (only(deployment).name, only(deployment).role) == ("decode", "decode")
    told = "no line of it is one that SGLang or vLLM writes; nothing is known of its worker"
    assert deployment.notes[0].endswith(told)


@pytest.mark.parametrize("content", [b"", b"{]", b"\x7fELF" + bytes(range(256)) * 8, b'{"a": 1}'])
def test_file_named_by_the_user_that_cannot_be_read_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "decode.log").write_bytes(content)
    with pytest.raises(InputError):
        collect([Input(str(tmp_path / "decode.log"))])


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        collect([Input(str(tmp_path / "none.log"))])


def test_role_given_for_an_input_reaches_its_workers(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(start(1024))
    (tmp_path / "b.log").write_text(start(8192))
    deployment = collect([Input(str(tmp_path / "a.log"), "prefill"), Input(str(tmp_path / "b.log"), "decode")])
    assert [(w.name, w.role) for w in deployment.workers] == [("a", "prefill"), ("b", "decode")]


def test_files_of_two_directories_with_one_name_are_two_workers(tmp_path: Path) -> None:
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "server.log").write_text(start(1024 + number))
    inputs = [Input(str(tmp_path / folder / "server.log")) for folder in ("one", "two")]
    assert [w.name for w in collect(inputs).workers] == ["one", "two"]


def test_log_with_prefixes_gives_every_worker(collect_files: CollectFiles) -> None:
    text = "".join(
        f"[pod/{name}/sglang] {line}\n"
        for name, pool in (("prefill-0", 1024), ("decode-0", 8192))
        for line in start(pool, disaggregation_mode=name[:-2]).splitlines()
    )
    deployment = collect_files({"all.log": text})
    assert [(w.name, w.role, value(w, keys.POOL_TOKENS)) for w in deployment.workers] == [
        ("prefill-0/sglang", "prefill", 1024),
        ("decode-0/sglang", "decode", 8192),
    ]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(start(1024).encode())))
    worker = only(collect([Input("-")]))
    assert (worker.sources, value(worker, keys.POOL_TOKENS)) == (("standard input",), 1024)


def test_copied_process_folder_is_read(collect_files: CollectFiles) -> None:
    deployment = collect_files({"cmdline": b"sglang\0serve\0--port\x001\0", "environ": b"A=1\0MC_TRANSFER_TIMEOUT=9\0"})
    worker = only(deployment)
    assert value(worker, keys.PORT) == 1
    assert worker.environment.variables["MC_TRANSFER_TIMEOUT"].value == "9"


def test_assumptions_are_taken(collect_files: CollectFiles) -> None:
    deployment = collect_files({"prefill.log": start(1024)}, "prefill.page_size=64", "decode.page_size=1")
    assert value(only(deployment), keys.PAGE_SIZE) == 64


def test_secret_in_a_file_name_is_blanked(collect_files: CollectFiles) -> None:
    deployment = collect_files({"token=hunter2hunter2.log": start(1024), "password=hunter2.txt": "words"})
    assert "hunter2" not in repr((deployment.workers[0].sources, deployment.notes))


def test_link_that_leads_nowhere_does_not_stop_a_directory(collect_files: CollectFiles, tmp_path: Path) -> None:
    (tmp_path / "gone.log").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(collect_files({"prefill.log": start(1024)}).workers) == 1


def test_order_of_the_inputs_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a-server_info.json").write_text(INFO)
    (tmp_path / "a.log").write_text(start(1024, context=512))
    inputs = [Input(str(path)) for path in tmp_path.iterdir()]
    one, other = collect(inputs), collect(inputs[::-1])
    assert [(w.name, w.facts, w.sources) for w in one.workers] == [(w.name, w.facts, w.sources) for w in other.workers]
