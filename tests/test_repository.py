"""The house rules that no linter holds."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize(
    "path", [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_file_is_longer_than_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_fit_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            body = node.end_lineno - node.body[0].lineno + 1
            assert body <= 60, f"{node.name} has {body} lines"


def test_tests_mirror_the_source() -> None:
    packages = {
        path.parent.relative_to(ROOT / "src/kvfence").parts[0]
        for path in SOURCES
        if path.parent != ROOT / "src/kvfence"
    }
    assert {package for package in packages if not (ROOT / "tests" / package).is_dir()} == set()


def test_no_path_of_a_machine_and_no_registry_host_is_tracked() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    # Spelled so that this file holds none of them either.
    wrong = re.compile(
        rb"/h[o]me/\w+/|/r[o]ot/|/w[o]rk/|p[y]pi\.org|files\.p[y]thonhosted|registry\.n[p]mjs|deb\.d[e]bian\.org"
    )
    for name in done.stdout.split(b"\0"):
        path = ROOT / name.decode()
        if name and path.is_file():
            assert wrong.findall(path.read_bytes()) == [], path
