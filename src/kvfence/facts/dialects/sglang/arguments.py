"""SGLang's server arguments, from wherever they are written down.

The startup dump, `/server_info`, a launch command and a `--config` file all state the same fields;
this module turns fields into facts, and each of these forms into fields.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvfence.facts import keys
from kvfence.facts.dialects.sglang import ENGINE
from kvfence.facts.fact import Evidence, Fact, Key
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Sighting
from kvfence.facts.redact import REDACTED, clean, is_scrubbed
from kvfence.knowledge.tables import read_rows

Scalar = str | int | float | bool | None


def _text(value: object) -> str | None:
    return clean(value) if isinstance(value, str) and value not in ("", "None") else None


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return int(value) if isinstance(value, int | str) else None
    except ValueError:
        return None


def _fraction(value: object) -> float | None:
    try:
        return None if isinstance(value, bool) or value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _truth(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def _role(value: object) -> str | None:
    if value is None:
        return None
    return {"null": UNIFIED, "prefill": PREFILL, "decode": DECODE}.get(str(value))


FIELDS: dict[str, tuple[Key[Any], Callable[[object], Any]]] = {
    "disaggregation_mode": (keys.ROLE, _role),
    "model_path": (keys.MODEL_PATH, _text),
    "served_model_name": (keys.SERVED_NAME, _text),
    "host": (keys.HOST, _text),
    "port": (keys.PORT, _number),
    "random_seed": (keys.RANDOM_SEED, _number),
    "node_rank": (keys.NODE_RANK, _number),
    "dist_init_addr": (keys.DIST_ADDRESS, _text),
    "device": (keys.DEVICE, _text),
    "context_length": (keys.CONTEXT_LEN, _number),
    "max_total_tokens": (keys.MAX_TOTAL_TOKENS, _number),
    "page_size": (keys.PAGE_SIZE, _number),
    "kv_cache_dtype": (keys.KV_DTYPE, _text),
    "quantization": (keys.QUANTIZATION, _text),
    "mem_fraction_static": (keys.MEM_FRACTION, _fraction),
    "max_running_requests": (keys.MAX_RUNNING, _number),
    "num_reserved_decode_tokens": (keys.RESERVED_DECODE, _number),
    "tp_size": (keys.TP, _number),
    "dp_size": (keys.DP, _number),
    "pp_size": (keys.PP, _number),
    "ep_size": (keys.EP, _number),
    "dcp_size": (keys.DCP, _number),
    "attn_cp_size": (keys.CP, _number),
    "enable_dp_attention": (keys.DP_ATTENTION, _truth),
    "dllm_algorithm": (keys.DLLM, _text),
    "enable_unified_memory": (keys.UNIFIED_MEMORY, _truth),
    "enable_kv_cache_sharding": (keys.KV_SHARDING, _truth),
    "allow_auto_truncate": (keys.AUTO_TRUNCATE, _truth),
    "disaggregation_transfer_backend": (keys.BACKEND, _text),
    "disaggregation_bootstrap_port": (keys.BOOTSTRAP_PORT, _number),
    "disaggregation_enable_kv_checksum": (keys.CHECKSUM, _truth),
    "disaggregation_decode_allocation_policy": (keys.ALLOCATION_POLICY, _text),
    "disaggregation_decode_enable_radix_cache": (keys.DECODE_RADIX, _truth),
    "kv_canary": (keys.CANARY, _text),
    "kv_canary_real_data": (keys.CANARY_DATA, _text),
    "kv_canary_sweep_interval": (keys.CANARY_SWEEP, _number),
    "enable_pd_role_switch": (keys.ROLE_SWITCH, _truth),
    "enable_hierarchical_cache": (keys.HICACHE, _truth),
    "enable_hisparse": (keys.HISPARSE, _truth),
    "speculative_algorithm": (keys.SPECULATIVE, _text),
}

# What a launch command that does not name them leaves them at, in every release that has them.
DEFAULTS: dict[str, Scalar] = {
    "disaggregation_mode": "null",
    "allow_auto_truncate": False,
    "disaggregation_transfer_backend": "mooncake",
    "disaggregation_enable_kv_checksum": False,
    "kv_canary": "none",
    "enable_hierarchical_cache": False,
    "host": "127.0.0.1",
}

_SECRETS = ("api_key", "admin_api_key")


def put_fields(
    sighting: Sighting,
    fields: Mapping[str, object],
    evidence: Callable[[str, object], Evidence],
    engine: str | None = ENGINE,
) -> None:
    """Turn argument fields into facts of a sighting.

    Args:
        sighting: takes the facts.
        fields: argument values by field name, in Python's, JSON's or the shell's spelling.
        evidence: makes the evidence for a field and the value it had.
        engine: whose fields they are; `None` if that is told elsewhere.

    """
    sighting.may_show_secrets = True
    told = next((name for name in ("disaggregation_mode", "model_path", *fields) if name in fields), None)
    if told is not None and engine is not None:
        sighting.put(keys.ENGINE, Fact(engine, (evidence(told, fields[told]),)))
    for name, (key, convert) in FIELDS.items():
        if name in fields:
            value = convert(fields[name])
            if value is not None:
                sighting.put(key, Fact(value, (evidence(name, fields[name]),)))
    if fields.keys() & set(_SECRETS):
        given = [name for name in _SECRETS if fields.get(name) not in (None, "", "None")]
        stated = tuple(evidence(name, REDACTED if name in given else None) for name in _SECRETS if name in fields)
        sighting.put(keys.API_KEY_SET, Fact("api_key" in given, stated))
        sighting.secrets_shown += [
            Fact(name, (evidence(name, REDACTED),)) for name in given if not is_scrubbed(str(fields[name]))
        ]


# Every release prints more fields than this; a shorter dump is an excerpt.
WHOLE_FIELDS = 100
# What stands for an argument that is nested too deeply to be written out.
UNREADABLE = "<object>"


@dataclass(frozen=True)
class Dump:
    """A `server_args=` dump taken apart.

    Args:
        fields: the values that could be read.
        complete: whether the dump is whole, so that an absent field means a release without it.
        mapping: whether it is a dict (0.5.19 and later) and not a class repr.

    """

    fields: dict[str, object]
    complete: bool
    mapping: bool


# A top-level item of a dump that Python itself cannot read: cut off, or with the repr of some object.
_ITEM = re.compile(
    r"(?:[{(,]\s*)(?:'(\w+)':\s*|(\w+)=)"
    r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|None|True|False|-?\d{1,300}(?:\.\d{1,300})?(?:[eE][+-]?\d{1,3})?)(?=\s*[,)}])"
)


def read_dump(text: str) -> Dump | None:
    """Read what follows `server_args=` in a log line; `None` if it is no dump."""
    text = text.strip()
    mapping = text.startswith("{")
    if not mapping and not text.startswith("ServerArgs("):
        return None
    fields: dict[str, object] = {}
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        for quoted, plain, value in _ITEM.findall(text):
            fields.setdefault(quoted or plain, ast.literal_eval(value))
        return Dump(fields, complete=False, mapping=mapping)
    if isinstance(tree, ast.Dict):
        items = [(k.value, v) for k, v in zip(tree.keys, tree.values, strict=True) if isinstance(k, ast.Constant)]
    elif isinstance(tree, ast.Call):
        items = [(k.arg, k.value) for k in tree.keywords]
    else:
        return None
    for name, node in items:
        if isinstance(name, str):
            fields[name] = _argument(node)
    return Dump(fields, complete=len(fields) >= WHOLE_FIELDS, mapping=mapping)


def _argument(node: ast.expr) -> object:
    """Give the value of an argument; of one that is the repr of some object, its text."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        pass
    try:
        return ast.unparse(node)
    except RecursionError:
        return UNREADABLE


@dataclass(frozen=True)
class _Flag:
    field: str
    arity: str


@cache
def _flags() -> dict[str, _Flag]:
    return {row["flag"]: _Flag(row["field"], row["arity"]) for row in read_rows("sglang/flags.tsv")}


def _flag(name: str) -> _Flag | None:
    """Look a flag up as argparse does: whole, or as a prefix that can mean one field only."""
    flags = _flags()
    if name in flags:
        return flags[name]
    if f"{name}-size" in flags:  # --tp, --dp, --pp: prefixes that argparse took in most releases
        return flags[f"{name}-size"]
    found = {flag.field: flag for text, flag in flags.items() if text.startswith(name)} if len(name) > 4 else {}
    return next(iter(found.values())) if len(found) == 1 else None


@dataclass(frozen=True)
class CommandLine:
    """A server's command line taken apart.

    Args:
        fields: values as strings; `True` for a flag without one.
        config: the file named by `--config`, which may set more.
        unknown: flags that no known release has.

    """

    fields: dict[str, object]
    config: str | None
    unknown: tuple[str, ...]


def read_flags(words: list[str]) -> CommandLine:
    """Read the arguments of `sglang.launch_server` or `sglang serve`, split into words."""
    fields: dict[str, object] = {}
    unknown: list[str] = []
    config = None
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("--"):
            continue
        name, has_value, value = word.partition("=")
        if name == "--config" and not has_value:  # SGLang reads the file only in this spelling
            config = words[position] if position < len(words) else None
            position += 1
            continue
        flag = _flag(name.replace("_", "-"))
        values = []
        while position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
            if flag is not None and flag.arity in ("0", "1", "?"):
                break
        if flag is None:
            unknown.append(name)
        elif flag.arity == "0":
            position -= len(values)
            fields[flag.field] = not name.startswith("--no-")
        elif has_value or values:
            fields[flag.field] = value if has_value else " ".join(values)
        else:
            unknown.append(name)
    return CommandLine(fields, config, tuple(unknown))


def flag_of(field: str) -> str:
    """Spell a field as the flag that sets it."""
    return f"--{field.replace('_', '-')}"


def with_defaults(fields: Mapping[str, object]) -> dict[str, Scalar]:
    """List the defaults of the fields that a whole command line leaves out."""
    return {name: value for name, value in DEFAULTS.items() if name not in fields}
