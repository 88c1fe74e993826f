"""docs/protocol.md is true of the fence: what it names exists, what exists is named, and made parts are up to date."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from kvfence.fence import Config, commands, events, messages, proof
from kvfence.fence.canary import RECORD_BYTES
from kvfence.fence.mechanisms import PROPERTIES, SWITCHES
from kvfence.fence.tags import Algorithm
from kvfence.fence.units import FULL, KINDS, Layout
from kvfence.simulate import matrix, walk
from tests.test_docs import build

__all__ = ["build"]

ROOT = Path(__file__).parents[1]
FENCE = ROOT / "src/kvfence/fence"
SIMULATE = ROOT / "src/kvfence/simulate"
PAGE = ROOT / "docs/protocol.md"
TEXT = PAGE.read_text()
DIAGRAMS = re.findall(r"^```mermaid\n(\w[\w-]*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
STATES = [body for kind, body in DIAGRAMS if kind == "stateDiagram-v2"]
SEQUENCES = [body for kind, body in DIAGRAMS if kind == "sequenceDiagram"]
LAYOUT = Layout(4, (FULL,))


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Give the cells of the tables of a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rules = [index for index, line in enumerate(lines) if set(line) <= set("|-")]
    heads = {index - 1 for index in rules} | set(rules)
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for index, line in enumerate(lines) if index not in heads
    ]


def constants(module: str) -> dict[str, str]:
    """Give the texts that a module of the fence defines as `Final`."""
    found = {}
    for node in ast.parse((FENCE / f"{module}.py").read_text()).body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(node.annotation, ast.Name)
            and node.annotation.id == "Final"
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            found[node.target.id] = node.value.value
    return found


def known_words() -> set[str]:
    """Give every name and every short text of the fence and the simulator."""
    words: set[str] = set()
    for path in (*FENCE.glob("*.py"), *SIMULATE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                words.add(node.name)
            elif isinstance(node, ast.Name):
                words.add(node.id)
            elif isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.arg):
                words.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    return words


def resolve(module: str, name: str) -> object:
    found: object = importlib.import_module(f"kvfence.fence.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_made_parts_are_up_to_date(build: ModuleType) -> None:
    assert build.protocol(TEXT) == TEXT, "run python docs/build.py to write protocol.md"
    assert set(re.findall(r"<!-- made by docs/build\.py: (\w+) -->", TEXT)) == set(build.PROTOCOL)
    assert TEXT.count("<!-- end -->") == len(build.PROTOCOL)


def test_a_made_part_without_a_place_is_refused(build: ModuleType) -> None:
    with pytest.raises(ValueError, match="one place for 'messages'"):
        build.protocol("")


def test_every_message_has_its_row() -> None:
    table = rows(section("Messages"))
    assert [name for name, *_ in table] == [f"`{message.__name__}`" for message in get_args(messages.Message)]
    for _, source, to, says, fields, again in table:
        assert all((source, to, says, fields, again))


def test_every_message_is_shown_and_every_arrow_is_one_of_the_fence() -> None:
    shown = set()
    for body in SEQUENCES:
        for label in re.findall(r"^ *\w+-?->>\w+: (.*)$", body, re.MULTILINE):
            name = re.match(r"\w+", label)
            assert name is not None, label
            assert any(inspect.isclass(getattr(module, name[0], None)) for module in (messages, events, commands)), (
                label
            )
            shown.add(name[0])
    # That a cancel was heard is shown where ranks have not agreed, which no diagram needs.
    assert {message.__name__ for message in get_args(messages.Message)} - shown <= {"Heard"}


def test_each_part_of_the_story_has_a_diagram() -> None:
    parts = section("What happens").split("\n### ")[1:]
    assert len(parts) == len(SEQUENCES) == 7
    assert all(part.count("```mermaid") == 1 for part in parts)
    # A semicolon ends a statement of mermaid.
    assert not [body for _, body in DIAGRAMS if ";" in body]


@pytest.mark.parametrize(
    ("diagram", "module", "others"), [(0, "prefill", set()), (1, "arbiter", {"SLOT"})], ids=["prefill", "decode"]
)
def test_every_state_of_a_leg_is_in_its_diagram(diagram: int, module: str, others: set[str]) -> None:
    states = {value for name, value in constants(module).items() if name not in others}
    states.add(constants("worker")["QUEUED"])
    drawn = {state for pair in re.findall(r"^ *(\S+) --> (\S+):", STATES[diagram], re.MULTILINE) for state in pair} - {
        "[*]"
    }
    assert drawn == states


def test_every_state_of_a_page_has_its_row() -> None:
    states = list(constants("pool").values())
    table = rows(section("States"))
    assert [row[0] for row in table] == [f"`{state}`" for state in states]
    for _, _, goes_to in table:
        assert set(re.findall(r"`([a-z]+)`", goes_to)) <= set(states)


def test_mechanisms_act_where_the_table_says(build: ModuleType) -> None:
    table = rows(section("Mechanisms"))
    assert [row[0].strip("`") for row in table] == list(SWITCHES) == list(build.ACTS)
    declared = {row.switch: row for row in matrix.TABLE}
    for switch, _, switched, also, serves, _ in table:
        assert switched, switch
        for part in filter(None, f"{switched}; {also}".split("; ")):
            file, _, methods = part.partition(": ")
            for method in methods.split(", "):
                assert callable(resolve(file.strip("`").removesuffix(".py"), method.strip("`"))), method
        row = declared[switch.strip("`")]
        assert {row.breaks or row.then} <= set(serves.split(", ")) <= set(PROPERTIES)


def test_every_switch_that_is_read_is_found(build: ModuleType) -> None:
    for path in FENCE.glob("*.py"):
        for name in re.findall(r"\bon\.(\w+)", path.read_text()):
            if (switch := name.replace("_", "-")) in SWITCHES:
                assert any(place.startswith(f"{path.stem}.") for place in build.switched()[switch]), (path, switch)


def test_properties_are_those_of_the_fence() -> None:
    named = {row[0] for row in rows(section("Properties")) if row[0].startswith("P")}
    assert named == {f"{name} {text.partition(':')[0]}" for name, text in PROPERTIES.items()}


def test_every_row_of_the_proof_table_is_shown() -> None:
    shown = {}
    for transport, found, target, source, evidence in rows(section("Proof")):
        for event in proof.EVENTS if found == "any" else found.split(", "):
            shown[transport.strip("`"), event] = (target, source, evidence)
    words = {True: "yes", False: "no", None: "not measured"}
    assert shown == {
        (row.transport, row.event): (words[row.target], words[row.source], row.evidence) for row in proof.TABLE
    }


def test_what_is_said_of_transports_holds() -> None:
    for transport in proof.TRANSPORTS:
        if transport in {"mooncake-tcp-pull", "rdma", "gpudirect"}:
            with pytest.raises(ValueError, match="it is not known that"):
                Config(LAYOUT, {FULL: 1}, 8, transport=transport)
        else:
            assert Config(LAYOUT, {FULL: 1}, 8, transport=transport).transport == transport
            assert proof.proves(transport, proof.RECEIVER_FENCED, "target")
    unproved = [name for name in proof.TRANSPORTS if not proof.proves(name, proof.SENDER_FENCED, "source")]
    assert unproved == ["mooncake-tcp-pull", "rdma", "gpudirect"]


def test_numbers_are_those_of_the_code() -> None:
    config = Config(LAYOUT, {FULL: 1}, 8)
    defaults = {row[0].strip("`"): row[1] for row in rows(section("Properties")) if row[0].startswith("`")}
    assert defaults == {name: str(getattr(config, name)) for name in defaults}
    assert {"wait_seconds", "retry_seconds", "tries", "fence_seconds", "quarantine_bound"} <= set(defaults)
    assert f"more than {walk.LONGEST} steps" in TEXT
    assert f"a record of {RECORD_BYTES} bytes" in TEXT
    sizes = {row[0]: row[1] for row in rows(section("Tags, keys and canaries"))}
    for algorithm in Algorithm:
        assert sizes[f"`{algorithm.value}`"] == f"{algorithm.tag_bytes} bytes"


def test_every_cache_kind_is_in_the_example() -> None:
    assert [row[0] for row in rows(section("Cache kinds"))] == [f"`{kind}`" for kind in KINDS]


def test_everything_named_exists() -> None:
    words = known_words() | set(SWITCHES)
    classes = {
        name: path.stem
        for path in FENCE.glob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    }
    for name in set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))):
        owner, _, member = name.partition(".")
        if name.endswith((".py", "/")):
            assert (FENCE / name).exists() or (ROOT / name).exists(), name
        elif member:
            assert callable(resolve(classes[owner], name)), name
        else:
            assert name in words, name
