"""All mutants."""

from __future__ import annotations

from mutants import decoding, parts, prefilling, units, working
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *prefilling.MUTANTS,
    *decoding.MUTANTS,
    *working.MUTANTS,
    *parts.MUTANTS,
    *units.MUTANTS,
)
