from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts.command import Command, split_command
from kvfence.facts.shell import read_script


def commands(text: str) -> list[Command]:
    return list(read_script(text))


def one(text: str) -> Command:
    (command,) = commands(text)
    return command


def set_by(command: Command) -> dict[str, str]:
    return {name: value for name, (value, _) in command.variables.items()}


def test_words_of_a_plain_command() -> None:
    assert one("python -m sglang.launch_server --port 30000").words == [
        *("python", "-m", "sglang.launch_server", "--port", "30000"),
    ]


def test_continued_lines_are_one_command_that_starts_at_the_first() -> None:
    command = one("#!/bin/bash\nset_me=1\nsglang serve \\\n  --port 1 \\\n  --host h\n")
    assert (command.line, command.words) == (3, ["sglang", "serve", "--port", "1", "--host", "h"])


def test_windows_line_ends_do_not_break_continuations() -> None:
    assert one("sglang serve \\\r\n  --port 1\r\n").words == ["sglang", "serve", "--port", "1"]


def test_comment_inside_a_continued_command_is_passed_over() -> None:
    assert one("sglang serve \\\n  # --port 2 \\\n  --port 1\n").words == ["sglang", "serve", "--port", "1"]


def test_comments_are_no_commands() -> None:
    assert commands("# sglang serve --port 1\n   # again\n\n") == []


def test_comment_behind_a_command_is_dropped() -> None:
    assert one("sglang serve --port 1 # not --port 2").words == ["sglang", "serve", "--port", "1"]


def test_quoted_words_stay_whole() -> None:
    assert one("""sglang serve --model-path "/m/a b" --x '{"a": "b;c"}'""").words == [
        *("sglang", "serve", "--model-path", "/m/a b", "--x", '{"a": "b;c"}'),
    ]


@pytest.mark.parametrize("operator", [";", "&&", "||", "|", "&", " & \n"])
def test_operators_part_commands(operator: str) -> None:
    assert [command.words for command in commands(f"sleep 1 {operator} sglang serve")] == [
        *(["sleep", "1"], ["sglang", "serve"]),
    ]


def test_command_in_the_background_keeps_its_words() -> None:
    assert commands("sglang serve --port 1 > out.log 2>&1 &")[0].words[:4] == ["sglang", "serve", "--port", "1"]


def test_redirection_does_not_part_a_command() -> None:
    assert one("sglang serve --port 1 2>&1 --host h").words[-2:] == ["--host", "h"]


@pytest.mark.parametrize("word", ["nohup", "exec", "sudo", "setsid", "time", "then", "do", "nohup exec"])
def test_words_that_only_start_a_command_are_dropped(word: str) -> None:
    assert one(f"{word} sglang serve").words == ["sglang", "serve"]


@pytest.mark.parametrize("reference", ["$PORT", "${PORT}", '"$PORT"', "${PORT:-9}"])
def test_variable_that_the_script_sets_is_put_in(reference: str) -> None:
    assert one(f"PORT=30000\nsglang serve --port {reference}").words[-1] == "30000"


def test_variable_that_nothing_sets_stays() -> None:
    assert one("sglang serve --port $PORT").words[-1] == "$PORT"


@pytest.mark.parametrize("reference", ["${PORT:-30001}", "${PORT-30001}", "${PORT:=30001}"])
def test_default_of_a_variable_that_nothing_sets_is_taken(reference: str) -> None:
    assert one(f"sglang serve --port {reference}").words[-1] == "30001"


def test_variable_made_of_variables_is_put_in() -> None:
    assert one("BASE=/models\nMODEL=$BASE/m\nsglang serve --model-path ${MODEL}-fp8").words[-1] == "/models/m-fp8"


def test_later_value_wins_for_later_commands() -> None:
    assert [c.words[-1] for c in commands("P=1\nserve $P\nP=2\nserve $P")] == ["1", "2"]


def test_nothing_is_put_in_between_single_quotes() -> None:
    assert one("P=1\nserve '$P'").words[-1] == "$P"


def test_unquoted_variable_of_several_arguments_becomes_words() -> None:
    assert one('ARGS="--port 1 --host h"\nsglang serve $ARGS').words == [
        "sglang",
        "serve",
        "--port",
        "1",
        "--host",
        "h",
    ]


def test_exports_reach_the_commands_after_them() -> None:
    first, second = commands("serve a\nexport A=1 B=2\nserve b")
    assert set_by(first) == {}
    assert set_by(second) == {"A": "1", "B": "2"}
    assert second.variables["A"] == ("1", 2)


def test_variable_that_is_not_exported_stays_in_the_shell() -> None:
    assert set_by(one("A=1\nserve")) == {}


def test_variable_exported_after_it_was_set_counts() -> None:
    assert set_by(one("A=1\nexport A\nserve")) == {"A": "1"}


def test_exported_variable_set_anew_counts_anew() -> None:
    assert set_by(one("export A=1\nA=2\nserve")) == {"A": "2"}


@pytest.mark.parametrize("front", ["A=1 B='x y'", "env A=1 B='x y'", "env -i A=1 B='x y'"])
def test_assignment_before_a_command_is_its_own(front: str) -> None:
    first, second = commands(f"{front} serve\nserve again")
    assert (first.words, set_by(first), set_by(second)) == (["serve"], {"A": "1", "B": "x y"}, {})


def test_unset_takes_a_variable_away() -> None:
    *_, last = commands("export A=1\nunset A\nserve")
    assert last.words == ["serve"]


def test_variable_that_was_unset_is_not_set() -> None:
    assert set_by(commands("export A=1\nunset A\nserve")[-1]) == {}


@pytest.mark.parametrize("tool", ["docker", "podman", "nerdctl", "/usr/bin/docker", "sudo docker"])
@pytest.mark.parametrize("given", ["-e A=1", "--env A=1", "--env=A=1"])
def test_variables_of_a_container_are_its_own(tool: str, given: str) -> None:
    assert set_by(one(f"{tool} run {given} image sglang serve")) == {"A": "1"}


def test_container_variable_without_a_space() -> None:
    assert set_by(one("docker run -eA=1 image sglang serve")) == {"A": "1"}


def test_option_e_of_other_tools_sets_nothing() -> None:
    assert set_by(one("grep -e A=1 file")) == {}


def test_value_with_equals_signs_is_whole() -> None:
    assert set_by(one("export A=b=c=d\nserve"))["A"] == "b=c=d"


def test_several_servers_of_one_script_keep_their_lines() -> None:
    text = "sglang serve --port 1 &\nsglang serve \\\n --port 2 &\nwait\n"
    assert [(c.line, c.words[-1]) for c in commands(text)][:2] == [(1, "1"), (2, "2")]


def test_command_inside_if_and_for_is_found() -> None:
    text = "if [ -n x ]; then sglang serve --port 1; fi\nfor i in 1; do\n  sglang serve --port 2\ndone"
    assert [c.words[-1] for c in commands(text) if "serve" in c.words] == ["1", "2"]


@pytest.mark.parametrize("text", ["sglang serve --x 'open", 'sglang serve --x "open', "sglang serve --x \\"])
def test_broken_quotes_do_not_stop_it(text: str) -> None:
    assert commands(text)[0].words[:2] == ["sglang", "serve"]


def test_split_command_survives_a_broken_quote() -> None:
    assert split_command("a 'b c") == ["a", "'b", "c"]
    assert split_command("a 'b c'") == ["a", "b c"]


@given(st.text(max_size=200))
def test_no_text_stops_it(text: str) -> None:
    for command in commands(text):
        assert 1 <= command.line <= text.count("\n") + 1


SHELL = st.lists(
    st.sampled_from(
        ["A=1", "export", "env", "$A", "${A", "'", '"', "\\", "\n", ";", "&&", "(", ")", "#", "docker", "-e"]
    ),
    max_size=30,
).map(" ".join)


@given(SHELL)
def test_no_shell_text_stops_it(text: str) -> None:
    assert all(command.line >= 1 for command in commands(text))


def test_variable_that_doubles_itself_stays_small() -> None:
    text = "A=xxxxxxxx\n" + 'A="$A$A"\n' * 18 + "serve $A"
    assert len(one(text).words[-1]) <= 1 << 20


def test_long_script_is_read_in_one_pass() -> None:
    assert len(commands("sglang serve --port 1\n" * 5000)) == 5000


@pytest.mark.parametrize("load", [". /etc/a.env", "source a.env", "module load cuda", 'eval "$(x)"'])
def test_what_is_loaded_from_elsewhere_leaves_earlier_values_open(load: str) -> None:
    command = one(f"export A=1\n{load}\nexport B=2\nserve")
    assert (command.whole, set_by(command)) == (False, {"A": "$A", "B": "2"})


@pytest.mark.parametrize("given", ["srun --export=ALL,A=1", "srun --export ALL,A=1", "mpirun -x A=1"])
def test_launchers_hand_variables_on(given: str) -> None:
    assert set_by(one(f"{given} serve")) == {"A": "1"}


def test_environment_file_of_a_container_is_not_seen() -> None:
    command = one("docker run --env-file a.env -e A=1 img serve")
    assert (command.whole, set_by(command)) == (False, {"A": "1"})


@pytest.mark.parametrize("tool", ["docker run img", "ssh host"])
def test_exports_do_not_enter_a_container_or_another_host(tool: str) -> None:
    assert set_by(one(f"export A=1\n{tool} serve x")) == {}


def test_exported_variable_is_passed_into_a_container_by_name() -> None:
    assert set_by(one("export A=1 B=2\ndocker run -e A img serve")) == {"A": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "if x; then\n export A=1\nfi",
        "x && export A=1",
        "case $R in\n d) export A=1 ;;\nesac",
        "f() {\n export A=1\n}\nf",
        "while x; do export A=1; done",
    ],
)
def test_variable_that_may_not_be_set_is_open(text: str) -> None:
    assert set_by(commands(f"{text}\nserve")[-1]) == {"A": "$A"}


def test_command_in_a_branch_sees_what_the_branch_sets() -> None:
    assert set_by(commands("if x; then export A=1; serve; fi")[-1]) == {"A": "1"}


@pytest.mark.parametrize("front", [":", "cat > file"])
def test_heredoc_is_no_part_of_the_script(front: str) -> None:
    assert set_by(commands(f"{front} <<EOF\nexport A=1\nEOF\nserve")[-1]) == {}


def test_heredoc_of_a_shell_is_a_script() -> None:
    assert set_by(one("bash <<'EOF'\nexport A=1\nserve\nEOF\n")) == {"A": "1"}


@pytest.mark.parametrize(
    "text",
    [
        'A="--x 1"\nA+=" --y"\nserve $A',
        'A=(--x 1)\nA+=(--y)\nserve "${A[@]}"',
        "A=(\n --x 1 # no\n --y\n)\nserve ${A[*]}",
    ],
)
def test_arguments_that_are_put_together_become_words(text: str) -> None:
    assert one(text).words == ["serve", "--x", "1", "--y"]


def test_virtual_environment_sets_no_switch() -> None:
    (command,) = commands("export A=1\nsource /opt/venv/bin/activate\npython -m x\n")
    assert (command.variables["A"][0], command.whole) == ("1", True)
