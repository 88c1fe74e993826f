"""What a mutant is."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
FENCE: Final = Path("kvfence/fence")
"""Where the mutated files are, below the folder of the sources."""

SIMULATOR: Final = "simulator"
TESTS: Final = "tests"


class Mutant(NamedTuple):
    """One fault that somebody could make.

    Attributes:
        name: says what the mutated code does.
        file: of the fence.
        before: text that occurs once in it.
        after: what stands there instead.
        of: the mechanism, or the property, that it takes away.
        why: what that leads to.
        killer: which is expected to notice it first.

    """

    name: str
    file: str
    before: str
    after: str
    of: str
    why: str
    killer: str

    def applied(self, text: str) -> str:
        """Give the mutated text of the file.

        Raises:
            ValueError: if `before` does not occur in it exactly once.

        """
        if (found := text.count(self.before)) != 1:
            raise ValueError(f"{self.name}: the text to replace occurs {found} times in {self.file}, not once")
        return text.replace(self.before, self.after)
