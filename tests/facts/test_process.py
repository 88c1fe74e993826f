from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.errors import InputError
from kvfence.facts import keys, process
from kvfence.facts.model import Kind, Seen
from tests.facts.conftest import value

COMMAND = b"python3\0-m\0sglang.launch_server\0--model-path\0/models/a b\0--disaggregation-mode\0prefill\0"
ENVIRON = b"PATH=/bin\0SGLANG_DISAGGREGATION_WAITING_TIMEOUT=60\0API_TOKEN=hunter2hunter2\0EMPTY=\0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "cmdline").write_bytes(COMMAND)
    (tmp_path / "4711" / "environ").write_bytes(ENVIRON)
    return tmp_path / "4711"


def test_process_folder_is_told_by_its_files(folder: Path) -> None:
    assert process.is_process_folder(folder)
    (folder / "environ").unlink()
    assert not process.is_process_folder(folder)


def test_process_folder_gives_arguments_and_environment(folder: Path) -> None:
    command, environment = process.read_process_folder(folder, "/proc/4711")
    assert (command.kind, command.name, command.group) == (Kind.PROCESS, "process 4711", "/proc/4711")
    assert value(command, keys.MODEL_PATH) == "/models/a b"
    assert value(command, keys.ROLE) == "prefill"
    assert environment.environment.seen is Seen.WHOLE
    assert environment.environment.variables["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"].value == "60"


def test_other_variables_are_let_go(folder: Path) -> None:
    told = repr(process.read_process_folder(folder, "/proc/4711"))
    assert "hunter2" not in told
    assert "/bin" not in told


def test_process_that_serves_no_model_is_refused(folder: Path) -> None:
    (folder / "cmdline").write_bytes(b"sleep\x00100\x00")
    with pytest.raises(InputError, match="no process that serves a model"):
        process.read_process_folder(folder, "/proc/4711")


def test_process_that_ended_is_refused(folder: Path) -> None:
    (folder / "cmdline").write_bytes(b"")
    (folder / "environ").write_bytes(b"")
    with pytest.raises(InputError, match="no process that serves a model"):
        process.read_process_folder(folder, "/proc/4711")


def test_environment_of_another_user_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(_: Path) -> bytes:
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", deny)
    with pytest.raises(InputError, match="run as the server's user"):
        process.read_process_folder(folder, "/proc/4711")


@pytest.mark.parametrize(
    "content",
    [
        ENVIRON,
        ENVIRON.rstrip(b"\0"),
        b"A=1\nB=2\n",
        b"A=1\r\nB=2\r\n",
        b"A=with\nline\0B=2\0",
        b"BASH_FUNC_x%%=() {\0B=2\0",
    ],
)
def test_environments_are_recognised(content: bytes) -> None:
    assert process.is_environment(content)


@pytest.mark.parametrize("content", [b"", b"A=1", b"A=1\nhello\n", b"a\0b\0", b"=1\0=2\0", b"1A=1\n2B=2\n"])
def test_other_bytes_are_no_environment(content: bytes) -> None:
    assert not process.is_environment(content)


def test_command_lines_are_recognised() -> None:
    assert process.is_command_line(COMMAND)
    assert process.is_command_line(b"/opt/bin/sglang\0serve\0--port\x0030000\0")
    assert not process.is_command_line(COMMAND.replace(b"\0", b" "))
    assert not process.is_command_line(b"sleep\x00100\0")


def test_saved_environment_names_lines_only_where_there_are_any() -> None:
    name = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
    for content, line in ((b"A=1\nSGLANG_DISAGGREGATION_WAITING_TIMEOUT=9\n", 2), (ENVIRON, None)):
        found = process.read_saved(content, "environ", "w", "g")
        assert found is not None
        assert found.environment.variables[name].evidence[0].line == line


def test_variables_keep_equals_signs_and_strange_bytes() -> None:
    found = process.read_saved(b"A=1\0SGLANG_MOONCAKE_CUSTOM_MEM_POOL=a=\xff\0", "environ", "w", "g")
    assert found is not None
    assert found.environment.variables["SGLANG_MOONCAKE_CUSTOM_MEM_POOL"].value == "a=\\xff"


def test_command_line_alone_shows_nothing_of_the_environment() -> None:
    found = process.read_saved(COMMAND, "cmdline", "w", "g")
    assert found is not None
    assert found.environment.seen is Seen.NOTHING


@given(st.binary(max_size=200))
def test_no_bytes_stop_it(content: bytes) -> None:
    found = process.read_saved(content, "s", "n", "g")
    assert found is None or found.kind is Kind.PROCESS
