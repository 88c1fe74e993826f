"""Hold an audit against what was expected of it: `kvfence.expectation/1`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from kvfence.errors import InputError
from kvfence.findings import Audit, Status


class ExpectedGap(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A gap: lengths from `lo` up to, not including, `hi`, and the role that refuses them."""

    lo: int
    hi: int
    refuses: Literal["prefill", "decode"]


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an audit must come to."""

    schema: Literal["kvfence.expectation/1"]
    verdict: Literal["exposed", "at-risk", "unknown", "clear"]
    gaps: list[ExpectedGap]
    failed: list[str]


def read_expectation(path: Path) -> Expectation:
    """Read an expectation.

    Raises:
        InputError: the file cannot be read, or is no expectation.

    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Expectation)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"is no kvfence.expectation/1 ({error})") from None


def compare(expected: Expectation, result: Audit) -> list[str]:
    """List the differences; none if verdict, gaps and failed rules are as expected."""
    differences = []
    if result.verdict.value != expected.verdict:
        differences.append(f"verdict {result.verdict.value}, expected {expected.verdict}")
    gaps = {(gap.lo, gap.hi, gap.refuses) for pair in result.pairs if (gap := pair.gap) is not None}
    wanted = {(gap.lo, gap.hi, gap.refuses) for gap in expected.gaps}
    differences += [f"gap [{lo}, {hi}) refused by {role} was not found" for lo, hi, role in sorted(wanted - gaps)]
    differences += [f"gap [{lo}, {hi}) refused by {role} was not expected" for lo, hi, role in sorted(gaps - wanted)]
    failed = {finding.rule for finding in result.findings if finding.status is Status.FAIL}
    differences += [f"{rule} did not fail" for rule in sorted(set(expected.failed) - failed)]
    differences += [f"{rule} failed" for rule in sorted(failed - set(expected.failed))]
    return differences
