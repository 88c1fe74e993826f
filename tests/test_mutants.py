"""The mutants of the fence fit the code as it is. `make mutants` runs them."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from kvfence.fence.mechanisms import PROPERTIES, SWITCHES
from mutants.catalog import MUTANTS
from mutants.mutant import FENCE, ROOT, SIMULATOR, TESTS, Mutant

MODULES = sorted((ROOT / "src" / FENCE).glob("*.py"))
each = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@each
def test_a_mutant_fits_the_code_and_changes_it(mutant: Mutant) -> None:
    text = (ROOT / "src" / FENCE / mutant.file).read_text()
    mutated = mutant.applied(text)
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text))


@each
def test_a_mutant_says_what_it_takes_away_and_what_must_notice(mutant: Mutant) -> None:
    assert mutant.of in {*SWITCHES, *PROPERTIES}
    assert mutant.killer in {SIMULATOR, TESTS}
    assert mutant.why


@pytest.mark.parametrize("before", ["absent", "twice"])
def test_a_mutant_that_does_not_fit_is_refused(before: str) -> None:
    mutant = MUTANTS[0]._replace(before=before)
    with pytest.raises(ValueError, match=mutant.name):
        mutant.applied("twice twice")


def test_there_are_enough_and_each_has_its_name() -> None:
    assert len(MUTANTS) >= 30
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    assert [edit for edit, count in Counter(mutant[1:4] for mutant in MUTANTS).items() if count > 1] == []


def test_every_module_with_logic_and_every_mechanism_has_one() -> None:
    with_logic = {
        path.name
        for path in MODULES
        if any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert with_logic - {mutant.file for mutant in MUTANTS} == set()
    assert set(SWITCHES) - {mutant.of for mutant in MUTANTS} == set()
