from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts.prefix import peel
from tests.facts.conftest import at, summary

MESSAGE = summary(1024)
LINE = at(0, MESSAGE)
TIME = "2026-11-30 15:00:00"
ISO = "2026-11-30T15:00:00.123456789Z"

# What stands before the line, and the stream it names.
FORMS = {
    "nothing": ("", ""),
    "kubectl logs --prefix": ("[pod/prefill-0/sglang] ", "prefill-0/sglang"),
    "kubectl logs --timestamps": (f"{ISO} ", ""),
    "kubectl logs --prefix --timestamps": (f"[pod/prefill-0/sglang] {ISO} ", "prefill-0/sglang"),
    "containerd": (f"{ISO} stdout F ", ""),
    "containerd, with an offset": ("2026-11-30T16:00:00.5+01:00 stderr F ", ""),
    "kubectl over containerd": (f"[pod/prefill-0/sglang] {ISO} stderr F ", "prefill-0/sglang"),
    "Compose": ("prefill-1  | ", "prefill-1"),
    "Compose with timestamps": (f"prefill-1  | {ISO} ", "prefill-1"),
    "journald": ("Nov 30 15:00:00 node-7 sglang-prefill[812]: ", "node-7 sglang-prefill"),
    "journald, early in a month": ("Dec  1 15:00:00 node-7 sglang-prefill[812]: ", "node-7 sglang-prefill"),
    "journald, short-iso": ("2026-11-30T15:00:00+0000 node-7 sglang[812]: ", "node-7 sglang"),
    "journald, short-precise": ("Nov 30 15:00:00.123456 node-7 sglang@0.service[9]: ", "node-7 sglang@0.service"),
    "Ray": ("(Prefill pid=811) ", "Prefill"),
    "Ray on several nodes": ("(Prefill pid=811, ip=10.0.0.3) ", "Prefill 10.0.0.3"),
    "stern": ("prefill-0 sglang ", "prefill-0 sglang"),
    "stern --timestamps": ("sglang-0 sglang 2026-11-30T15:19:14.123456789Z ", "sglang-0 sglang"),
    "srun --label": ("12: ", "12"),
    "grep -H": ("logs/prefill-0.log:", "logs/prefill-0.log"),
    "grep -Hn": ("logs/prefill-0.log:117:", "logs/prefill-0.log"),
    "colour": ("\x1b[32mprefill-1  |\x1b[0m ", "prefill-1"),
    "level and logger": ("INFO sglang.srt.managers.scheduler scheduler.py:947 ", ""),
    "level in brackets": ("[INFO] ", ""),
    "someone's own name": ("<east.node> ", "east.node"),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_collector_put_in_front_is_taken_off(form: str) -> None:
    prefix, stream = FORMS[form]
    peeled = peel(prefix + LINE)
    assert (peeled.stream, peeled.time, peeled.message, peeled.partial) == (stream, TIME, MESSAGE, False)


@pytest.mark.parametrize("form", FORMS)
def test_ranks_are_read_behind_every_prefix(form: str) -> None:
    peeled = peel(FORMS[form][0] + at(0, MESSAGE, " DP1 PP0 ATTN_CP2 TP3 EP3"))
    assert peeled.ranks == (("DP", 1), ("PP", 0), ("ATTN_CP", 2), ("TP", 3), ("EP", 3))
    assert peeled.message == MESSAGE


@pytest.mark.parametrize(
    "form",
    [
        "prefill-{}: ",
        "[prefill-{}] ",
        "<node-{}> ",
        "{}.prefill ",
    ],
)
def test_names_that_differ_in_a_number_stay_apart(form: str) -> None:
    assert peel(form.format(0) + LINE).stream != peel(form.format(1) + LINE).stream


JSON_NAMES: dict[str, dict[str, object]] = {
    "fluent-bit": {"kubernetes": {"pod_name": "prefill-0", "container_name": "c"}, "stream": "stderr"},
    "filebeat": {"kubernetes": {"pod": {"name": "prefill-0"}}},
    "Google": {"resource": {"labels": {"pod_name": "prefill-0"}}},
    "OpenTelemetry": {"k8s.pod.name": "prefill-0"},
    "Docker with a tag": {"attrs": {"tag": "prefill-0"}},
    "journald -o json": {"_SYSTEMD_UNIT": "prefill-0", "_HOSTNAME": "node-7", "PRIORITY": "6"},
    "Vector": {"host": "prefill-0"},
}


@pytest.mark.parametrize("source", JSON_NAMES)
@pytest.mark.parametrize("field", ["log", "message", "msg", "MESSAGE", "textPayload"])
def test_json_entries_are_opened(source: str, field: str) -> None:
    peeled = peel(json.dumps({"time": ISO, **JSON_NAMES[source], field: f"{LINE}\n"}))
    assert (peeled.stream, peeled.time, peeled.message) == ("prefill-0", TIME, MESSAGE)


def test_json_behind_a_prefix_is_opened() -> None:
    peeled = peel("[pod/prefill-0/sglang] " + json.dumps({"message": LINE}))
    assert (peeled.stream, peeled.message) == ("prefill-0/sglang", MESSAGE)


def test_prefix_inside_json_is_taken_off() -> None:
    peeled = peel(json.dumps({"log": f"{ISO} stdout F {LINE}\n"}))
    assert peeled.message == MESSAGE


def test_docker_entry_that_goes_on_is_marked() -> None:
    assert peel(json.dumps({"log": "x" * (16 << 10), "stream": "stderr", "time": ISO})).partial
    assert not peel(json.dumps({"log": "x" * (16 << 10) + "\n", "stream": "stderr", "time": ISO})).partial
    assert not peel(json.dumps({"log": "short", "stream": "stderr", "time": ISO})).partial


def test_containerd_entry_that_goes_on_is_marked() -> None:
    first, last = peel(f"{ISO} stderr P {LINE}"), peel(f"{ISO} stderr F and the rest")
    assert (first.partial, first.message) == (True, MESSAGE)
    assert (last.partial, last.message) == (False, "and the rest")


def test_mark_of_a_piece_survives_what_follows_it() -> None:
    assert peel(f"{ISO} stderr P {ISO} server_args=ServerArgs(").partial


@pytest.mark.parametrize(
    "text",
    ['{"rid": "abc"}', "{'model_path': 'm'}", "{", "[1, 2]", "{" * 5000, '{"a":' * 5000, '{"log": 7}', '{"log": null}'],
)
def test_what_is_no_log_entry_stays_as_it_is(text: str) -> None:
    assert peel(text).message == text


def test_request_log_entry_is_not_mistaken_for_a_message() -> None:
    entry = json.dumps({"timestamp": ISO, "event": "request.finished", "rid": "r1"})
    peeled = peel(entry)
    assert (peeled.message, peeled.time[:19]) == (entry, TIME)


def test_colours_are_taken_out_of_the_message() -> None:
    assert peel(f"\x1b[2m{LINE[:40]}\x1b[1;31m{LINE[40:]}\x1b[0m").message == MESSAGE


def test_terminal_titles_and_links_are_taken_out() -> None:
    assert peel(f"\x1b]0;title\x07{LINE}").message == MESSAGE


def test_colours_inside_json_are_taken_out() -> None:
    peeled = peel(json.dumps({"log": f"\x1b[32m{LINE}\x1b[0m\n"}))
    assert (peeled.time, peeled.message) == (TIME, MESSAGE)


def test_progress_bar_gives_way_to_the_line_written_over_it() -> None:
    bar = "\r".join(f"{n:3}%|{'#' * n}| {n}/10" for n in range(3))
    assert peel(f"{bar}\r{LINE}").message == MESSAGE


@pytest.mark.parametrize(
    "bar",
    [
        "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:02<00:00,  1.91it/s]",
        "Capturing batches (bs=1 avail_mem=10.31 GB): 100%|██████████| 4/4 [00:01<00:00,  2.55it/s]",
    ],
)
def test_progress_bar_on_the_same_line_names_no_worker(bar: str) -> None:
    assert peel(f"\r{bar}{LINE}").stream == ""


CUSTOM = {
    "asctime level": "2026-11-30 15:00:00,123 INFO ",
    "asctime level name": "2026-11-30 15:00:00,123 INFO sglang.srt.managers.scheduler ",
    "asctime - name - level": "2026-11-30 15:00:00,123 - sglang.srt.managers.scheduler - ERROR - ",
    "level asctime": "INFO 11-30 2026-11-30 15:00:00 scheduler.py:947] ",
    "with slashes": "I 2026/11/30 15:00:00 ",
    "level: asctime": "ERROR: 2026-11-30 15:00:00: ",
}


@pytest.mark.parametrize("form", CUSTOM)
def test_time_of_a_custom_logging_format_is_kept(form: str) -> None:
    peeled = peel(CUSTOM[form] + MESSAGE)
    assert peeled.time[:19] == TIME
    assert peeled.stream == ""
    assert MESSAGE in peeled.message


def test_logger_and_level_name_no_worker() -> None:
    names = {
        peel(f"2026-11-30 15:00:00,123 sglang.srt.{module} {level}: {MESSAGE}").stream
        for module, level in (("managers.scheduler", "ERROR"), ("entrypoints.engine", "INFO"))
    }
    assert names == {""}


def test_ranks_of_a_custom_format_are_read() -> None:
    assert peel(f"INFO 2026-11-30 15:00:00 DP1 TP0 scheduler: {MESSAGE}").ranks == (("DP", 1), ("TP", 0))


def test_ranks_are_not_read_out_of_names() -> None:
    assert peel("model-TP4-fp8 DP1.log MYTP2 message").ranks == ()


def test_milliseconds_are_part_of_the_time() -> None:
    assert peel("[2026-11-30 15:00:00.250 TP0] x").time == "2026-11-30 15:00:00.250"


@pytest.mark.parametrize("bad", ["\x1b[", "\x1b]", "\r\r\r", "[pod/", "x | ", f"{ISO} ", "[2026-11-30 15:00:00]"])
def test_stumps_are_taken_as_they_are(bad: str) -> None:
    assert peel(bad).message in bad


@given(st.text(max_size=300))
def test_no_text_stops_it(text: str) -> None:
    assert isinstance(peel(text).message, str)


@given(st.lists(st.sampled_from([prefix for prefix, _ in FORMS.values()]), max_size=12).map("".join))
def test_no_pile_of_prefixes_stops_it(prefix: str) -> None:
    assert peel(prefix + LINE).message.endswith(MESSAGE)
