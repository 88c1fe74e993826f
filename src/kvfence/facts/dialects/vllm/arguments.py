"""vLLM's server arguments: of a command, of a `--config` file, or of the `non-default args:` line of a log.

They are named alike in all three. What no source gives is at its default, and the log line does not print that.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvfence.facts import keys
from kvfence.facts.dialects.vllm import ENGINE
from kvfence.facts.fact import Evidence, Fact, Key
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Sighting
from kvfence.facts.redact import REDACTED, clean, is_scrubbed

TRANSFER = "kv_transfer_config"
API_KEY = "api_key"
MOST = 10**15

# A server that may be both is neither: which it is, only who starts it can say.
ROLES = {"kv_producer": PREFILL, "kv_consumer": DECODE}
KV_ROLES = (*ROLES, "kv_both")

# `--max-model-len 1k` is 1,000, and `1K` is 1,024 (human_readable_int in 0.32.0's engine/arg_utils.py).
_SCALE = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_HUMAN = re.compile(r"(\d{1,15})([kKmMgG])?")
_SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-q": "quantization",
}


def _text(value: object) -> str | None:
    value = value[0] if isinstance(value, list) and value else value
    return clean(value) if isinstance(value, str) and value not in ("", "None") else None


def _number(value: object) -> int | None:
    """Read a whole number above 0; -1 and `auto` leave it to the server."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if 0 < value < MOST and value == int(value) else None
    human = _HUMAN.fullmatch(value) if isinstance(value, str) else None
    found = int(human[1]) * _SCALE.get(human[2] or "", 1) if human is not None else 0
    return found if 0 < found < MOST else None


def _fraction(value: object) -> float | None:
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except ValueError:
        return None
    return found if 0 < found <= 1 else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


FIELDS: dict[str, tuple[Key[Any], Callable[[object], Any]]] = {
    "model": (keys.MODEL_PATH, _text),
    "served_model_name": (keys.SERVED_NAME, _text),
    "host": (keys.HOST, _text),
    "port": (keys.PORT, _number),
    "max_model_len": (keys.CONTEXT_LEN, _number),
    "block_size": (keys.PAGE_SIZE, _number),
    "kv_cache_dtype": (keys.KV_DTYPE, _text),
    "quantization": (keys.QUANTIZATION, _text),
    "gpu_memory_utilization": (keys.MEM_FRACTION, _fraction),
    "max_num_seqs": (keys.MAX_RUNNING, _number),
    "tensor_parallel_size": (keys.TP, _number),
    "pipeline_parallel_size": (keys.PP, _number),
    "data_parallel_size": (keys.DP, _number),
    "decode_context_parallel_size": (keys.DCP, _number),
    "enable_prefix_caching": (keys.PREFIX_CACHING, _truth),
}
# By these a `--config` file is told from SGLang's, which has none of them.
OWN = frozenset({"max_model_len", "gpu_memory_utilization", "tensor_parallel_size", "max_num_seqs", TRANSFER})


def put_fields(
    sighting: Sighting, fields: Mapping[str, object], cite: Callable[[str, object], Evidence], *, whole: bool
) -> None:
    """Turn arguments into facts.

    Args:
        sighting: takes the facts.
        fields: argument values by name.
        cite: makes the evidence of an argument and its value.
        whole: whether these are all that were given, so that what hands nothing off is told by what is absent.

    """
    sighting.may_show_secrets = True
    for name, (key, convert) in FIELDS.items():
        value = convert(fields[name]) if name in fields else None
        if value is not None:
            sighting.put(key, Fact(value, (cite(name, fields[name]),)))
    _put_transfer(sighting, fields.get(TRANSFER), cite, whole=whole and TRANSFER not in fields)
    if fields.get(API_KEY) not in (None, "", "None", []):
        shown = cite(API_KEY, REDACTED)
        sighting.put(keys.API_KEY_SET, Fact(True, (shown,)))
        given = fields[API_KEY]
        if any(not is_scrubbed(str(one)) for one in (given if isinstance(given, list) else [given])):
            sighting.secrets_shown.append(Fact(API_KEY, (shown,)))


def _put_transfer(sighting: Sighting, given: object, cite: Callable[[str, object], Evidence], *, whole: bool) -> None:
    config = _transfer(given)
    connector, role = config.get("kv_connector"), config.get("kv_role")
    if isinstance(connector, str) and connector:
        sighting.put(keys.BACKEND, Fact(clean(connector), (cite(TRANSFER, f"kv_connector {connector}"),)))
    if role in KV_ROLES:
        evidence = cite(TRANSFER, f"kv_role {role}")
        sighting.put(keys.KV_ROLE, Fact(str(role), (evidence,)))
        if role in ROLES:
            sighting.put(keys.ROLE, Fact(ROLES[str(role)], (evidence,)))
    if whole:
        sighting.put(keys.ROLE, Fact(UNIFIED, (cite(TRANSFER, "is not given"),)))


def _transfer(given: object) -> Mapping[str, object]:
    """Read the configuration of the handoff: JSON text, or values."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {}
    return given if isinstance(given, dict) else {}


@dataclass(frozen=True)
class Arguments:
    """Arguments taken apart.

    Args:
        fields: values by name.
        whole: whether all were read.
        strays: words that belong to no argument.

    """

    fields: dict[str, object]
    whole: bool
    strays: tuple[str, ...] = ()


_PLAIN = re.compile(
    r"(?:[{(,]\s*)(?:'(\w+)':\s*|(kv_connector|kv_role)=)('(?:[^'\\]|\\.)*'|None|True|False|-?\d{1,15}(?:\.\d{1,9})?)(?=\s*[,)}])"
)


def read_line(text: str) -> Arguments:
    """Read what follows `non-default args: `: a Python dictionary, some of whose values are reprs of objects."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash that stands for nothing
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _read_pieces(text)
    if not isinstance(tree, ast.Dict):
        return Arguments({}, whole=False)
    fields = {}
    for name, node in zip(tree.keys, tree.values, strict=True):
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            fields[name.value] = _value(node)
    return Arguments(fields, whole=True)


def _value(node: ast.expr) -> object:
    """Give a value; of the repr of an object, what it was made of."""
    if isinstance(node, ast.Call):
        return {keyword.arg: _value(keyword.value) for keyword in node.keywords}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _read_pieces(text: str) -> Arguments:
    """Read a line that is cut off, or holds what is no Python."""
    fields: dict[str, object] = {}
    transfer: dict[str, object] = {}
    for name, part, value in _PLAIN.findall(text):
        (transfer if part else fields).setdefault(part or name, _piece(value))
    return Arguments(fields | ({TRANSFER: transfer} if transfer else {}), whole=False)


def _piece(text: str) -> object:
    if text.startswith("'"):
        return text[1:-1]
    return {"None": None, "True": True, "False": False}[text] if text[0] in "NTF" else float(text)


def read_flags(words: list[str]) -> Arguments:
    """Read the arguments of a command, split into words."""
    fields: dict[str, object] = {}
    transfer: dict[str, object] = {}
    strays: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, has_value, value = word.partition("=")
        field = _SHORT.get(name) or (name[2:].replace("-", "_") if name.startswith("--") else "")
        if not field:
            strays.append(word)
            continue
        values = [value] if has_value else []
        while not has_value and position < len(words) and not re.match(r"-\D", words[position]):
            values.append(words[position])
            position += 1
        if field.startswith(f"{TRANSFER}."):
            transfer[field.partition(".")[2]] = values[0] if values else None
        elif not values:
            fields[field.removeprefix("no_")] = not field.startswith("no_")
        else:
            fields[field] = values if field == API_KEY else values[0]
    if transfer:
        fields[TRANSFER] = {**_transfer(fields.get(TRANSFER)), **transfer}
    return Arguments(fields, whole="config" not in fields, strays=tuple(strays))


def mark_engine(sighting: Sighting, evidence: Evidence) -> None:
    """Note that a source is vLLM's."""
    if sighting.get(keys.ENGINE) is None:
        sighting.put(keys.ENGINE, Fact(ENGINE, (evidence,)))
