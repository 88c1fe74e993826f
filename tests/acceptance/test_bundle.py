from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from acceptance import bundle
from acceptance.places import CHECKOUT, SHIM, cache
from acceptance.servers import Launch, Server
from acceptance.texts import ANSWER, CUE, FACT, NOTE, NOTED, normal, question


def test_nothing_of_the_machine_is_left_in_what_is_shown() -> None:
    text = f"'{cache()}/models/recall' {cache()}/sglang-0.5.19/lib/python3.11/site-packages/sglang/x.py:3 {CHECKOUT}/a"
    assert bundle.scrub(text) == "'/models/recall' site-packages/sglang/x.py:3 CHECKOUT/a"
    assert bundle.scrub("ipc:///var/tmp/kvfence-pair-ab12_x9z/tmpq") == "ipc://TMPDIR/tmpq"
    assert str(Path.home()) not in bundle.scrub(f"in {Path.home()}/elsewhere and {SHIM}/sitecustomize.py")


def test_a_bundle_is_copied_without_what_is_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "prefill.log").write_text(f"{Path.home()}/x")
    bundle.scrub_bundle(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "prefill.log").read_text() == "HOME/x"


def test_only_the_switches_of_engines_are_told(tmp_path: Path) -> None:
    added = {"SGLANG_PLUGINS": "none", "HOME": "x", "MC_FORCE_TCP": "1", "A_SECRET": "y"}
    assert Launch("decode", ("python",), added, tmp_path / "x.log").told() == {
        "SGLANG_PLUGINS": "none",
        "MC_FORCE_TCP": "1",
    }


def test_a_launch_is_told_as_a_script(tmp_path: Path) -> None:
    launch = Launch("decode", ("bin/python", "-m", "sglang.launch_server"), {"MC_X": "a b", "S": "y"}, tmp_path / "log")
    assert launch.script() == "#!/bin/sh\nexport MC_X='a b'\nexec python -m sglang.launch_server\n"


def test_a_server_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        f"if not os.fork(): open({str(child)!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    server = Server(Launch("decode", (sys.executable, "-c", script), {}, tmp_path / "decode.log"))
    while not child.exists() or not child.read_text():
        time.sleep(0.01)
    server.grace = 0.2
    server.stop()
    assert server.ended
    with pytest.raises(FileNotFoundError):
        Path(f"/proc/{child.read_text()}/cmdline").read_text()


def test_a_server_leaves_no_shared_memory_behind(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = (
        "import multiprocessing, os, signal, time\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "lock = multiprocessing.get_context('spawn').Lock()\n"
        "memory = SharedMemory(create=True, size=4096)\n"
        f"open({str(ready)!r}, 'w').write(' '.join([memory.name, 'sem.' + lock._semlock.name.strip('/')]))\n"
        "time.sleep(60)\n"
    )
    server = Server(Launch("decode", (sys.executable, "-c", script), {}, tmp_path / "decode.log"))
    server.grace = 0.2
    while not ready.exists() or not ready.read_text():
        time.sleep(0.01)
    made = [Path("/dev/shm") / name.strip("/") for name in ready.read_text().split()]
    assert all(path.exists() for path in made)
    server.stop()
    assert not any(path.exists() for path in made)


def test_prompts_have_the_length_that_is_asked_for() -> None:
    for length in (300, 1017, 3000):
        assert len(question(length)) == len(normal(length)) == length
    assert len(normal(7)) == 7


def test_questions_hold_their_answers() -> None:
    assert FACT.startswith(f"{CUE.strip()}{ANSWER}")
    assert f"{NOTE.strip()}{NOTED}" in normal(300)
