"""Standard output as every sub-command writes to it."""

from __future__ import annotations

from typing import NoReturn

import rich.console


class Console(rich.console.Console):
    """A console that leaves it to the command to say how it ends when nobody reads on.

    Rich would exit with 1, which here means that the thing looked for was found.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Pass the error on.

        Raises:
            BrokenPipeError: always.

        """
        raise BrokenPipeError
