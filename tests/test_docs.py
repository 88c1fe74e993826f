"""The docs are true: what they show is run, what exists is documented, what is made from code is up to date."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from kvfence.audit.registry import all_rules, page_of
from kvfence.audit.rule import Rule
from kvfence.facts.keys import KEYS, PAGE_SIZE, PEAK_USAGE, PP, RANK_POOL_BYTES, TP, VERSION
from kvfence.findings import Level, Status
from kvfence.knowledge.switches import switch_names
from tests.conftest import DATA, audit_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHOWN = [page for page in PAGES if "```console" in page.read_text()]


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "examples", folder / "examples")
    command = folder / "bin" / "kvfence"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvfence "$@"\n')
    command.chmod(0o755)
    return folder


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def steps(block: str) -> list[tuple[str, str]]:
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def matches(shown: str, printed: str) -> bool:
    """Whether output is as shown; a line of `...` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in shown.splitlines())
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize("page", SHOWN, ids=[str(page.relative_to(ROOT)) for page in SHOWN])
def test_shown_commands_print_what_is_shown(page: Path, playground: Path) -> None:
    env = {**os.environ, "PATH": f"{playground / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1"}
    for block in blocks(page):
        code = "0"
        for command, shown in steps(block):
            script = command.replace("$?", code) if command == "echo $?" else command
            done = subprocess.run(
                ["sh", "-c", script], cwd=playground, env=env, capture_output=True, text=True, timeout=60, check=False
            )
            code = str(done.returncode)
            assert matches(shown, done.stdout), f"{page.name}: $ {command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "command", ["audit", "limits", "rules", "simulate", "drill", "serve", "gateway", "model recall"]
)
def test_every_option_is_documented(command: str) -> None:
    page, _, _ = command.partition(" ")
    text = (DOCS / "commands" / f"{page}.md").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "kvfence", *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"},
    )
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", done.stdout)) - {"--help"}
    assert options or command == "rules"
    for option in options:
        assert option in text, option


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", DOCS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_made_files_are_up_to_date(build: ModuleType) -> None:
    for path, content in build.made().items():
        assert path.read_text() == content, f"run python docs/build.py to write {path.name}"


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_needs_of_a_rule_are_facts_and_switches(build: ModuleType, rule: Rule) -> None:
    needs = build.needed(page_of(rule))
    assert needs
    assert set(re.findall(r"`([^`]+)`", needs)) <= {*KEYS, *switch_names()}


def test_every_fact_is_documented_with_its_unit(build: ModuleType) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \| [^|]+ \| (yes|no) \|$", build.facts_table(), re.MULTILINE)
    assert [name for name, _, _ in rows] == list(KEYS)
    assert {assumed for _, _, assumed in rows} == {"yes"}
    units = {name: unit for name, unit, _ in rows}
    assert [units[key.name] for key in (PAGE_SIZE, RANK_POOL_BYTES, TP, PP)] == ["tokens", "bytes", "ranks", "stages"]
    assert [units[key.name] for key in (VERSION, PEAK_USAGE)] == ["release", "share, 0 to 1"]


def test_facts_are_linked_from_the_option_that_takes_them() -> None:
    assert "(../facts.md)" in (DOCS / "commands" / "audit.md").read_text()


EVIDENCE = re.findall(
    r"^\| (0\.\S+)( with `--allow-auto-truncate`)? \|.*\| `([\w-]+)`: (.*) \|$",
    (DOCS / "evidence.md").read_text(),
    re.MULTILINE,
)


@pytest.mark.parametrize(("version", "truncates", "verdict", "rules"), EVIDENCE, ids=range(len(EVIDENCE)))
def test_rules_named_as_evidence_are_those_that_fail(version: str, truncates: str, verdict: str, rules: str) -> None:
    result = audit_of(DATA / "real" / (f"{version}-auto-truncate" if truncates else version))
    failed = [found for found in result.findings if found.status is Status.FAIL]
    grave = {found.rule for found in failed if found.level.rank <= Level.HIGH.rank or found.rule.startswith("KVF8")}
    assert result.verdict.value == verdict
    assert set(re.findall(r"KVF\d+", rules)) == grave


@pytest.mark.parametrize("rule", ["KVF102", "KVF202", "KVF504", "KVF705", "KVF801"])
def test_releases_that_a_page_says_were_run_are_in_the_evidence(rule: str) -> None:
    page = (ROOT / "src/kvfence/audit/pages" / f"{rule}.md").read_text()
    claims = re.findall(r"[Rr]un on ((?:[\d.]*\d(?:, | and | to )?)+)", page)
    assert claims
    assert set(re.findall(r"[\d.]*\d", " ".join(claims))) <= {version for version, *_ in EVIDENCE}


def test_every_core_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[<>=\[]", name)[0] for name in project["dependencies"]}
    text = (DOCS / "dependencies.md").read_text()
    assert set(re.findall(r"^\| ([\w.-]+) \|", text, re.MULTILINE)) - {"package", "---"} == core
    for name in project["optional-dependencies"]["dev"]:
        assert re.split(r"[<>=\[]", name)[0] in text


def test_number_of_rules_in_the_changelog() -> None:
    rules = len(list((ROOT / "src/kvfence/audit/pages").glob("*.md")))
    assert f"- {rules} rules, each with a page" in (ROOT / "CHANGELOG.md").read_text()
