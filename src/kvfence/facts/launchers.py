"""What programs that start others hand on: docker, kubectl, ssh, srun, mpirun, env, sudo and shells.

A container and another host see of the environment only what they are told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import dropwhile, takewhile

from kvfence.facts.command import Command, Variables

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
STARTERS = frozenset({"!", "exec", "nohup", "time", "setsid", "numactl", "command"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "kubectl", "oc"})
_CLUSTERS = frozenset({"kubectl", "oc"})
PASSING = _CONTAINERS | SHELLS | {"env", "sudo", "ssh", "srun", "sbatch", "mpirun", "mpiexec"}
_SSH_VALUES = frozenset("-" + letter for letter in "BbcDEeFIiJLlmOopQRSWw")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def hand_on(command: Command, tool: str, position: int, own: Variables) -> None:
    """Change the variables of a command to those that a launcher among its words hands on.

    Args:
        command: the command.
        tool: the launcher, one of `PASSING`.
        position: where it stands among the words.
        own: the variables that are set for this command alone.

    """
    words = command.words[position + 1 :]
    if tool == "env":
        _env(command, words)
    elif tool == "sudo":
        _sudo(command, words, own)
    elif tool in _CONTAINERS:
        _container(command, words, tool)
    elif tool == "ssh":
        command.variables.clear()
        command.whole = False
    elif tool in ("srun", "sbatch"):
        _slurm(command, words)
    elif tool in ("mpirun", "mpiexec"):
        _mpi(command, words)
    elif words and re.fullmatch(r"-\w*l\w*|--login", words[0]):  # a login shell reads profiles first
        _leave_open(command.variables, command.variables.keys())
        command.whole = False


def _env(command: Command, words: list[str]) -> None:
    if words[:1] in (["-i"], ["-"], ["--ignore-environment"]):
        command.variables.clear()
    set_here = takewhile(lambda word: word.startswith("-") or _ASSIGNMENT.fullmatch(word) is not None, words)
    command.variables.update(assignments_in(list(set_here), command.line))


def _sudo(command: Command, words: list[str], own: Variables) -> None:
    if not any(word in ("-E", "--preserve-env") for word in words[:4]):
        _leave_open(command.variables, command.variables.keys() - own.keys())
    set_here = takewhile(lambda word: "=" in word or word.startswith("-"), words)
    command.variables.update(assignments_in(list(set_here), command.line))


def _container(command: Command, words: list[str], tool: str) -> None:
    passed = options_of(words, ("-e", "--env"), glued=True)
    kept = {name: command.variables[name] for name in passed if name in command.variables}
    command.variables.clear()
    command.variables.update({**kept, **assignments_in(passed, command.line)})
    loaded = any(word.partition("=")[0] in ("--env-file", "--env-host") for word in words)
    # A container that runs already, or that a manifest describes, has an environment of its own.
    command.whole = (command.whole or not kept) and not loaded and "run" in words[:4] and tool not in _CLUSTERS


def _slurm(command: Command, words: list[str]) -> None:
    passed = [part for text in options_of(words, ("--export",)) for part in text.split(",")]
    if passed and "ALL" not in passed:
        for name in command.variables.keys() - set(passed):
            del command.variables[name]
    command.variables.update(assignments_in(passed, command.line))
    command.whole = command.whole and not any(word.startswith("--export-file") for word in words)


def _mpi(command: Command, words: list[str]) -> None:
    passed = options_of(words, ("-x",))
    _leave_open(command.variables, command.variables.keys() - set(passed))  # other hosts see none of them
    command.variables.update(assignments_in(passed, command.line))
    command.whole = command.whole and not any(word in ("-env", "-genv", "-tune", "--tune") for word in words)


def _leave_open(variables: Variables, names: Iterable[str]) -> None:
    for name in list(names):
        variables[name] = (f"${name}", variables[name][1])


def behind_env(words: list[str]) -> list[str]:
    """Take `env` and what it sets off a command."""
    while len(words) > 1 and words[0] in ("sudo", *STARTERS):
        words = words[1:]
    if words[0] != "env":
        return words
    rest = list(dropwhile(lambda word: word.startswith("-") or _ASSIGNMENT.fullmatch(word) is not None, words[1:]))
    return rest or words


def tool_of(word: str) -> str:
    """Name the program that a word starts."""
    return word.rpartition("/")[2]


def options_of(words: list[str], names: tuple[str, ...], *, glued: bool = False) -> list[str]:
    """List what an option is given, in each of its spellings."""
    found = []
    for position, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if word in names and position + 1 < len(words):
            found.append(words[position + 1])
        elif has_value and name in names and name.startswith("--"):
            found.append(value)
        elif glued and re.match(r"-[A-Za-z]{0,3}e[A-Za-z_]", word) and not word.startswith("--"):
            found.append(word.partition("e")[2])
    return found


def assignments_in(words: list[str], line: int) -> Variables:
    """Keep the words that set variables."""
    matches = (_ASSIGNMENT.fullmatch(word) for word in words)
    return {match[1]: (match[2], line) for match in matches if match is not None}


def script_in(words: list[str]) -> str | None:
    """Find the script in the words of `bash -c SCRIPT` and `ssh HOST SCRIPT`."""
    for position, word in enumerate(words[:64]):
        tool = tool_of(word)
        if tool in SHELLS:
            for option, inner in zip(
                words[position + 1 : position + 4], words[position + 2 : position + 5], strict=False
            ):
                if re.fullmatch(r"-[a-z]*c[a-z]*", option):
                    return inner
        elif tool == "ssh":
            at = position + 1
            while at < len(words) and words[at].startswith("-"):
                at += 2 if words[at] in _SSH_VALUES else 1
            return " ".join(words[at + 1 :]) or None
    return None
