"""Write the parts of the docs that are made from the code: tables of rules, facts and the protocol, and JSON schemas.

    python docs/build.py

A test holds the files to what this writes.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from kvfence.audit.registry import FAMILIES, Page, all_rules, page_of
from kvfence.drill.document import DrillDocument
from kvfence.drill.scenarios import SCENARIOS
from kvfence.engine.http.documents import ServeDocument
from kvfence.errors import InputError
from kvfence.facts.assume import read_assumption
from kvfence.facts.fact import Key
from kvfence.facts.keys import KEYS
from kvfence.fence import messages, proof
from kvfence.fence.mechanisms import SERVES, SWITCHES
from kvfence.fence.units import KINDS as CACHE_KINDS
from kvfence.fence.units import RECURRENT, ROW, Layout
from kvfence.gateway.group import Status
from kvfence.knowledge.releases import VersionRange
from kvfence.knowledge.switches import switch_names
from kvfence.report.document import AuditDocument
from kvfence.report.json import schema
from kvfence.simulate import matrix
from kvfence.simulate.document import SimulateDocument

DOCS = Path(__file__).parent
DRILL = DOCS / "commands" / "drill.md"
FENCE = DOCS.parent / "src" / "kvfence" / "fence"
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


# How often each message of the fence is said.
SAID = {
    "Hello": "never by a timer: said to every peer on start, and to whoever does not know this life",
    "Offer": "never",
    "Grant": "never",
    "Landed": "never",
    "Cancel": "`Ended`, at most `tries` times; a `Heard` starts the count anew, `patience` times at most",
    "Heard": "never: each `Cancel` is answered",
    "Ended": "`Noted`, at most `tries` times; one that says `pending` starts the count anew, `patience` times at most",
    "Noted": "never by a timer: each `Ended` is answered, and once more when `pending` operations have drained",
    "Vote": "`Verdict`, without end",
    "Verdict": "never by a timer: each `Vote` is answered once there is a verdict",
}


class Act(NamedTuple):
    """What a mechanism does, and where it acts beside where its switch is read."""

    what: str
    also: tuple[str, ...]


ACTS: dict[str, Act] = {
    "admission": Act(
        "What this role refuses, or the limit that its peer has stated, reserves nothing and begins no handshake; "
        "decode reserves on prefill's `Offer`, not before",
        ("config.Config.judge", "decode.Decode._begin"),
    ),
    "cancel-both": Act(
        "A leg that cannot go on tells the other at once, and again until it is answered; a handoff that decode has"
        " not seen is ended by a tombstone",
        ("arbiter.Arbiter._on_cancel", "arbiter.Arbiter._end_unseen", "prefill.Prefill._ended", "worker.Worker._again"),
    ),
    "binding": Act(
        "Decode goes on only if prefill's statement of prompt, length, model, adapter, content, scope and layout "
        "equals its own",
        ("statement.statement",),
    ),
    "coverage": Act(
        "Decode commits only if every unit that a step will read was transferred; prefill refuses a grant for units"
        " that its prompt lacks",
        ("units.Layout.required", "decode.Decode._room"),
    ),
    "ready-before-send": Act(
        "No operation reads a source page before the forward pass that fills it has completed; its tag is made then",
        ("prefill.Prefill._computed", "prefill.Prefill._make_ready", "prefill.Prefill._write", "units.Layout.ready"),
    ),
    "source-hold": Act(
        "A source page stays with its leg while an operation may read it: until completion, or proof",
        ("prefill.Prefill._settle", "prefill.Prefill._proved"),
    ),
    "release-on-proof": Act(
        "A target returns to its allocator on proof that nothing can land in it any more; else it stays in "
        "quarantine until the engine is fenced",
        (
            "arbiter.Arbiter._known",
            "arbiter.Arbiter._proved",
            "arbiter.Arbiter._peer_restarted",
            "worker.Worker._doubt",
            "worker.Worker._try_fence",
            "proof.proves",
        ),
    ),
    "bounded-batches": Act(
        "A call has at most `lanes` operations, and the next is granted when it is over; so no more than that is "
        "left behind",
        (),
    ),
    "landing-arena": Act(
        "Remote writers reach the slots of the arena alone; a slot is copied into its page after its operation "
        "completed, and the tag is made over the copy",
        ("decode.Decode._copied",),
    ),
    "tags": Act(
        "Every unit is verified before the commit; one without a tag, or with another tag, ends the handoff",
        ("prefill.Prefill._sealed", "decode.Decode._verified", "worker.Worker._binding", "tags.Tagger.tag"),
    ),
    "canary": Act(
        "The slot canaries of all that a step reads are checked before the step",
        ("decode.Decode._next_step", "decode.Decode._checked", "canary.check"),
    ),
    "clean-cache": Act(
        "Decode caches verified pages alone; a hit compares tokens, content and adapter; a bad page takes what was "
        "derived from it along",
        ("worker.Worker._cache", "prefix.PrefixIndex.taint"),
    ),
    "scope-salt": Act(
        "A prefix is shared within one isolation scope",
        ("prefix.PrefixIndex.match",),
    ),
    "scrub": Act(
        "Pages are poisoned when reserved, so what was not written since is nobody's data and fails the canary",
        (),
    ),
    "rank-agreement": Act(
        "The leader commits when every rank of decode is ready, and ends the handoff for all when one is not or is "
        "silent",
        (
            "arbiter.Arbiter._decide",
            "arbiter.Arbiter._count",
            "arbiter.Arbiter._rule",
            "arbiter.Arbiter._on_vote",
            "arbiter.Arbiter._on_verdict",
        ),
    ),
    "skew-refusal": Act(
        "No handoff with a peer that can do less; a unit without a tag fails; canaries are checked whatever the "
        "peer says",
        ("worker.Worker._learn", "capabilities.mismatch"),
    ),
}


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


def messages_table() -> str:
    """Make the table of messages from their docstrings."""
    parties = {"Either way, ": ("either", "the other")}
    lines = ["| message | from | to | what it says | fields | sent again until |", "|---|---|---|---|---|---|"]
    for message in get_args(messages.Message):
        text = " ".join((inspect.getdoc(message) or "").split())
        begin = next((begin for begin in parties if text.startswith(begin)), "")
        source, to = parties.get(begin, ("", ""))
        text = text.removeprefix(begin)
        if not begin:
            source, to, text = re.fullmatch(r"(.+?) to (.+?): (.+)", text, re.DOTALL).groups()  # type: ignore[union-attr]  # a message without parties must fail
        fields = ", ".join(f"`{field}`" for field in message._fields)
        name = message.__name__
        lines.append(f"| `{name}` | {source.lower()} | {to} | {text} | {fields} | {SAID[name]} |")
    return "\n".join(lines)


def switched() -> dict[str, list[str]]:
    """Give the functions of the fence that read each switch, as `module.Class.method`."""
    found: dict[str, list[str]] = {switch: [] for switch in SWITCHES}
    for path in sorted(FENCE.glob("*.py")):
        for name, function in functions(ast.parse(path.read_text())):
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Attribute)
                    and node.value.attr == "on"
                ):
                    places = found.get(node.attr.replace("_", "-"), [])
                    place = f"{path.stem}.{name}"
                    if place not in places:
                        places.append(place)
    return found


def functions(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Give the functions and methods of a module with their names."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    yield f"{node.name}.{item.name}", item


def places(names: list[str]) -> str:
    """Give places by file."""
    by_file = groupby(sorted(names, key=lambda name: name.partition(".")[0]), lambda name: name.partition(".")[0])
    return "; ".join(
        f"`{file}.py`: " + ", ".join(f"`{name.partition('.')[2]}`" for name in group) for file, group in by_file
    )


def mechanisms_table() -> str:
    """Make the table of mechanisms from the code that reads their switches and from what the simulator holds."""
    read = switched()
    rows = {row.switch: row for row in matrix.TABLE}
    lines = ["| switch | what it does | switched in | also in | serves | without it |", "|---|---|---|---|---|---|"]
    for switch in SWITCHES:
        what, also = ACTS[switch]
        others = places([place for place in also if place not in read[switch]])
        lines.append(
            f"| `{switch}` | {what} | {places(read[switch])} | {others} | {', '.join(SERVES[switch])} "
            f"| {without(rows[switch])} |"
        )
    return "\n".join(lines)


def without(row: matrix.Row) -> str:
    """Say what breaks without a mechanism, or what catches it."""
    where = f"(`{row.scenario}`)"
    if row.caught_by is None:
        return f"{row.breaks} breaks {where}"
    others = ", ".join(f"`{switch}`" for switch in row.breaks_with)
    caught = f"`{row.caught_by}` catches it as `{row.signal}` {where}. Cost: {row.cost}"
    return f"{caught}. With {others} off as well, {row.then} breaks"


def proof_table() -> str:
    """Make the table of proofs; events of a transport of which the same is known share a line."""
    words = {True: "yes", False: "no", None: "not measured"}
    events: dict[proof.Row, list[str]] = {}
    for row in proof.TABLE:
        events.setdefault(row._replace(event=""), []).append(row.event)
    lines = ["| transport | event | no write can land | no read can follow | evidence |", "|---|---|---|---|---|"]
    for row, names in events.items():
        event = "any" if len(names) == len(proof.EVENTS) else ", ".join(names)
        lines.append(f"| `{row.transport}` | {event} | {words[row.target]} | {words[row.source]} | {row.evidence} |")
    return "\n".join(lines)


def kinds_table() -> str:
    """Make the worked example of coverage."""
    length = 10
    layout = Layout(page_tokens=4, kinds=CACHE_KINDS, window_tokens=6)
    lines = ["| kind | units | valid tokens of each | filled after 8 tokens |", "|---|---|---|---|"]
    for kind in CACHE_KINDS:
        units = tuple(unit for unit in layout.required(length) if unit.kind == kind)
        word = {RECURRENT: "state", ROW: "row"}.get(kind, "page")
        numbers = ", ".join(f"{word} {unit.index}" for unit in units)
        valid = ", ".join(str(layout.valid(unit, length)) for unit in units)
        ready = ", ".join(f"{word} {unit.index}" for unit in layout.ready(units, 8, length)) or "none"
        lines.append(f"| `{kind}` | {numbers} | {valid} | {ready} |")
    return "\n".join(lines)


PROTOCOL: dict[str, Callable[[], str]] = {
    "messages": messages_table,
    "mechanisms": mechanisms_table,
    "proof": proof_table,
    "kinds": kinds_table,
}


def fill(page: str, text: str, parts: dict[str, Callable[[], str]]) -> str:
    """Fill the made parts of a page.

    Raises:
        ValueError: if it has no place for one, or more than one.

    """
    for name, make in parts.items():
        begin, end = f"<!-- made by docs/build.py: {name} -->", "<!-- end -->"
        if text.count(begin) != 1:
            raise ValueError(f"{page} must have one place for {name!r}")
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return text


def protocol(text: str) -> str:
    """Fill the made parts of docs/protocol.md; raises as `fill` does."""
    return fill("docs/protocol.md", text, PROTOCOL)


DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "audit": AuditDocument,
    "drill": DrillDocument,
    "serve": ServeDocument,
    "simulate": SimulateDocument,
    "gateway": Status,
}


def scenarios_table() -> str:
    """Make the table of the drill's scenarios."""
    rows = ["| scenario | mechanism | off | on | what happens | off in both runs |", "|---|---|---|---|---|---|"]
    for one in SCENARIOS.values():
        without = ", ".join(f"`{switch}`" for switch in one.without) or "nothing"
        on = f"`{one.ends}`" if one.ends else one.declared_on
        rows.append(f"| `{one.name}` | `{one.mechanism}` | {one.expected} | {on} | {one.title} | {without} |")
    return "\n".join(rows)


def made() -> dict[Path, str]:
    """Give every made file with its content."""
    return {
        DOCS / "protocol.md": protocol((DOCS / "protocol.md").read_text()),
        DOCS / "rules.md": rules_table(),
        DOCS / "facts.md": facts_table(),
        DRILL: fill("docs/commands/drill.md", DRILL.read_text(), {"scenarios": scenarios_table}),
        **{
            DOCS / "schemas" / f"{name}-1.json": json.dumps(schema(document, f"kvfence.{name}/1"), indent=2) + "\n"
            for name, document in DOCUMENTS.items()
        },
    }


if __name__ == "__main__":
    for path, content in made().items():
        path.write_text(content)
