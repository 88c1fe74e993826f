"""`kvfence rules`: list the rules, or explain one. Works offline."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table

from kvfence.audit.registry import all_rules, page_of
from kvfence.audit.rule import RULES
from kvfence.cli.console import Console
from kvfence.errors import InputError
from kvfence.report import plain


def command(
    rule: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A rule's id or name, such as KVF101.", show_default=False),
    ] = None,
) -> None:
    """List the rules of the audit, or print the page of one."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=plain.WIDTH)
    if rule is None:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("rule", "level", "name", "what it looks for"):
            table.add_column(title)
        for known in all_rules():
            table.add_row(known.id, known.level.value, known.name, page_of(known).summary)
        console.print(table)
        return
    found = RULES.get(rule.upper()) or next((one for one in all_rules() if one.name == rule.lower()), None)
    if found is None:
        raise InputError(rule, "is no rule; `kvfence rules` lists them")
    text = page_of(found).text
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
