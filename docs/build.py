"""Write the parts of the docs that are made from the code: the tables of rules and facts, and the JSON schemas.

    python docs/build.py

A test holds the files to what this writes.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvfence.audit.registry import FAMILIES, Page, all_rules, page_of
from kvfence.errors import InputError
from kvfence.facts.assume import read_assumption
from kvfence.facts.fact import Key
from kvfence.facts.keys import KEYS
from kvfence.knowledge.releases import VersionRange
from kvfence.knowledge.switches import switch_names
from kvfence.report.json import schema

DOCS = Path(__file__).parent
HEAD = """\
# Rules

A rule answers `fail`, `pass`, `unknown` or `not-applicable` from facts alone. `kvfence rules ID` prints its page.
This file is made by `docs/build.py`.
"""
FACTS_HEAD = """\
# Facts

What kvfence can know of a worker, by the names of the JSON report and of `--assume [ROLE.]NAME=VALUE`. Most are those
of SGLang's server arguments. This file is made by `docs/build.py`.

| fact | unit | what it is | shown by | `--assume` |
|---|---|---|---|---|
"""
KINDS = {str: "word", bool: "true or false", VersionRange: "release", int: "number", float: "number"}
# What a number counts, by the end of its name; the longest that fits.
COUNTS = {
    "_tokens": "tokens",
    "_len": "tokens",
    "_bytes": "bytes",
    "port": "TCP port",
    "page_size": "tokens",
    "dllm_block_size": "tokens",
    "_size": "ranks",
    "pp_size": "stages",
    "_requests": "requests",
    "retractions": "requests",
    "_interval": "steps",
    "_fraction_static": "share, 0 to 1",
    "_usage": "share, 0 to 1",
}
# A value of each kind, to ask whether `--assume` takes a fact.
EXAMPLES = ("prefill", "true", "1", "0.5", "0.5.19")
COLUMNS = "| rule | name | level | what it looks for | facts it needs |\n|---|---|---|---|---|\n"


def needed(page: Page) -> str:
    """Give the facts and switches that a page's table of needs names, or else the words of its first row."""
    body = page.text.split("\n## Needs\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in body.splitlines() if row.startswith("| ")][1:]
    words = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    names = [word for word in dict.fromkeys(words) if word in KEYS or word in switch_names()]
    return ", ".join(f"`{name}`" for name in names) or rows[0].strip().replace("`", "")


def rules_table() -> str:
    """Make docs/rules.md."""
    parts = [HEAD]
    for digit, (_, family) in sorted(FAMILIES.items()):
        parts.append(f"\n## {digit}xx: {family}\n\n{COLUMNS}")
        for rule in all_rules():
            if rule.id[3] == digit:
                page = page_of(rule)
                link = f"[{rule.id}](../src/kvfence/audit/pages/{rule.id}.md)"
                parts.append(f"| {link} | {rule.name} | {rule.level.value} | {page.summary} | {needed(page)} |\n")
    return "".join(parts)


def unit(key: Key[Any]) -> str:
    """Say what the values of a fact are counted in, or are."""
    ends = [end for end in COUNTS if key.name.endswith(end) and key.kind in (int, float)]
    return COUNTS[max(ends, key=len)] if ends else KINDS[key.kind]


def is_assumed(key: Key[Any]) -> bool:
    """Whether `--assume` takes a fact."""
    for value in EXAMPLES:
        with suppress(InputError):
            return read_assumption(f"{key.name}={value}").key is key
    return False


def facts_table() -> str:
    """Make docs/facts.md."""
    rows = [
        f"| `{key.name}` | {unit(key)} | {key.meaning} | {key.shown_by} | {'yes' if is_assumed(key) else 'no'} |\n"
        for key in KEYS.values()
    ]
    return FACTS_HEAD + "".join(rows)


def made() -> dict[Path, str]:
    """Give every made file with its content."""
    return {
        DOCS / "rules.md": rules_table(),
        DOCS / "facts.md": facts_table(),
        DOCS / "schemas" / "audit-1.json": json.dumps(schema(), indent=2) + "\n",
    }


if __name__ == "__main__":
    for path, content in made().items():
        path.write_text(content)
