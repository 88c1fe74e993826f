"""The `kvfence` command: its sub-commands, and what becomes of errors.

Exit codes: 0 good; 1 the thing looked for was found; 2 the call or an input was unusable; 3 nothing
failed but something required is unknown; 70 internal error.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvfence import __version__
from kvfence.cli import audit, drill, gateway, limits, model, rules, serve, simulate
from kvfence.cli.exits import CLOSED, INTERNAL, INTERRUPTED, UNUSABLE
from kvfence.errors import KvfenceError
from kvfence.facts.redact import clean

app = typer.Typer(
    name="kvfence",
    help="Keep one request's KV cache out of another request's answer, in self-hosted disaggregated LLM serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="audit")(audit.command)
app.command(name="limits")(limits.command)
app.command(name="rules")(rules.command)
app.command(name="simulate")(simulate.command)
app.command(name="drill")(drill.command)
app.command(name="gateway")(gateway.command)
app.command(name="serve")(serve.command)
app.add_typer(model.app, name="model")


def _show_version(given: bool) -> None:  # noqa: FBT001 (an option's callback takes its value so)
    if given:
        print(f"kvfence {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _global(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


def run() -> None:
    """Run the command line, and exit."""
    try:
        code = _call()
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer makes this of an interrupt, and says nothing
            _say("interrupted")
        sys.exit(code)
    except typer.TyperException as error:
        message = error.format_message().rstrip(".")
        if message:
            _say(f"{message}; `kvfence --help` and `kvfence COMMAND --help` tell what can be given")
        sys.exit(UNUSABLE)
    except KvfenceError as error:
        _say(str(error))
        sys.exit(UNUSABLE)
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has gone
        _drop_output()
        sys.exit(CLOSED)
    except OSError as error:  # an output that cannot be written; inputs have errors of their own
        _say(f"{error.filename or 'standard output'}: {error.strerror}")
        _drop_output()
        sys.exit(UNUSABLE)
    except Exception as error:  # noqa: BLE001 (nothing may end in a traceback)
        if os.environ.get("KVFENCE_DEBUG"):
            traceback.print_exc()
        _say(
            f"internal error: {type(error).__name__}. This is a fault of kvfence; "
            "please report it with what KVFENCE_DEBUG=1 prints, without secrets."
        )
        sys.exit(INTERNAL)


def _call() -> int:
    try:
        return app(standalone_mode=False) or 0
    except typer.Exit as end:
        return end.exit_code


def _drop_output() -> None:
    """Let what is left in the buffer go nowhere, or Python would try to write it once more on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"kvfence: {clean(text)}"))
