"""What tests share: the inputs of real servers, and one call to audit something."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from kvfence.audit.run import audit
from kvfence.facts.assume import read_assumption
from kvfence.facts.collect import Input, collect
from kvfence.findings import Audit, Finding

# The same examples in every run; `pytest --hypothesis-profile search` looks for new ones.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("repeatable")

DATA = Path(__file__).parent / "data"
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write files into a directory of their own, and give the directory."""

    def write_files(**files: str | bytes) -> Path:
        for name, content in files.items():
            path = tmp_path / name.replace("__", "-").replace("_log", ".log").replace("_sh", ".sh").replace(
                "_json", ".json"
            )
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write_files


def audit_of(
    *inputs: str | Path,
    prefill: str | Path | None = None,
    decode: str | Path | None = None,
    assume: tuple[str, ...] = (),
) -> Audit:
    """Audit some inputs as the command does."""
    given = [Input(str(one)) for one in inputs]
    given += [Input(str(prefill), "prefill")] if prefill is not None else []
    given += [Input(str(decode), "decode")] if decode is not None else []
    return audit(collect(given, assumptions=[read_assumption(text) for text in assume]))


def statuses(result: Audit, rule: str) -> set[str]:
    """Give the statuses a rule came to."""
    return {finding.status.value for finding in result.findings if finding.rule == rule}


def finding(result: Audit, rule: str, status: str = "fail") -> Finding:
    """Give the one finding of a rule with a status."""
    (found,) = (one for one in result.findings if one.rule == rule and one.status.value == status)
    return found


def failed(result: Audit) -> set[str]:
    """Give the rules that failed."""
    return {one.rule for one in result.findings if one.status.value == "fail"}
