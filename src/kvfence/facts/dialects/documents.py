"""Read what HTTP endpoints answer in SGLang's shapes and names, as several engines do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from kvfence.facts import keys
from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.facts.dialects.vllm import ENGINE as VLLM
from kvfence.facts.fact import Evidence, Fact, Key
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Kind, Sighting
from kvfence.facts.redact import clean
from kvfence.knowledge.releases import Version, VersionRange

# What to ask a worker for: the path, and an older one where the first is not known.
ENDPOINTS: tuple[tuple[str, str | None], ...] = (
    ("/server_info", "/get_server_info"),
    ("/v1/models", None),
    ("/model_info", "/get_model_info"),
    ("/v1/loads", None),
    ("/metrics", None),
    ("/version", None),
)
# What an engine does not answer, so that its absence says nothing.
UNANSWERED = {VLLM: frozenset({"/server_info", "/model_info", "/v1/loads"})}
ONLY_OF = {"/version": VLLM}

Document = dict[str, Any]
Cite = Callable[[str, object], Evidence]

# As many digits as a log line may have.
MOST = 10**15


def read_resolved(document: Document, sighting: Sighting) -> None:
    """Read of `/server_info` what was worked out at the start: the pool, the limit and the release."""
    cite = citer(sighting.source)
    put_number(sighting, keys.POOL_TOKENS, cite, "/max_total_num_tokens", document.get("max_total_num_tokens"))
    put_number(sighting, keys.MAX_INPUT_LEN, cite, "/max_req_input_len", document.get("max_req_input_len"))
    put_version(sighting, cite, "/version", document.get("version"))
    # The top level speaks for one data-parallel rank.
    states = document.get("internal_states")
    capacities = []
    for rank, state in enumerate(states if isinstance(states, list) else []):
        memory = state.get("memory_usage") if isinstance(state, dict) else None
        capacity = memory.get("token_capacity") if isinstance(memory, dict) else None
        if is_size(capacity):
            pointer = f"/internal_states/{rank}/memory_usage/token_capacity"
            capacities.append((capacity, cite(pointer, capacity)))
    pool = sighting.get(keys.POOL_TOKENS)
    if capacities and pool is not None:
        sighting.put_pools([(pool.value, pool.evidence[0]), *capacities])
        if sighting.get(keys.LARGEST_POOL_TOKENS) is not None:
            sighting.facts.pop(keys.MAX_INPUT_LEN.name, None)  # it is that of one rank
    if document.get("status") == "ready":
        sighting.put(keys.STARTED, Fact(True, (cite("/status", "ready"),)))


def read_models(document: Document, sighting: Sighting) -> None:
    """Read `/v1/models`: the context, which is also the length told to clients."""
    cite = citer(sighting.source)
    for index, model in enumerate(document["data"]):
        if not isinstance(model, dict):
            continue
        owner = next((engine for engine in (SGLANG, KVFENCE, VLLM) if model.get("owned_by") == engine), None)
        if owner is not None:
            sighting.put(keys.ENGINE, Fact(owner, (cite(f"/data/{index}/owned_by", owner),)))
        if model.get("parent") is None:
            length = model.get("max_model_len")
            for key in (keys.ADVERTISED_LEN, keys.CONTEXT_LEN):
                put_number(sighting, key, cite, f"/data/{index}/max_model_len", length)
            name = model.get("id")
            if isinstance(name, str):
                sighting.put(keys.SERVED_NAME, Fact(clean(name), (cite(f"/data/{index}/id", name),)))


def read_model_info(document: Document, sighting: Sighting) -> None:
    """Read `/model_info`: the model class, and the role."""
    cite = citer(sighting.source)
    path = document.get("model_path")
    if isinstance(path, str):
        sighting.put(keys.MODEL_PATH, Fact(clean(path), (cite("/model_path", path),)))
    classes = document.get("architectures")
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        sighting.put(keys.ARCHITECTURE, Fact(clean(classes[0]), (cite("/architectures/0", classes[0]),)))
    images = document.get("has_image_understanding")
    if isinstance(images, bool):
        sighting.put(keys.TAKES_IMAGES, Fact(images, (cite("/has_image_understanding", images),)))
    role = {"prefill": PREFILL, "decode": DECODE, "null": UNIFIED}.get(str(document.get("disaggregation_mode")))
    if role is not None:
        sighting.put(keys.ROLE, Fact(role, (cite("/disaggregation_mode", document["disaggregation_mode"]),)))


def read_loads(document: Document, sighting: Sighting) -> None:
    """Read `/v1/loads`: the pool of each data-parallel rank, and the release."""
    cite = citer(sighting.source)
    put_version(sighting, cite, "/version", document.get("version"))
    pools: list[tuple[int, Evidence]] = []
    for index, load in enumerate(document["loads"]):
        if not isinstance(load, dict):
            continue
        pool = load.get("max_total_num_tokens")
        if is_size(pool):
            pools.append((pool, cite(f"/loads/{index}/max_total_num_tokens", pool)))
        usage = load.get("token_usage")
        known = sighting.get(keys.PEAK_USAGE)
        if isinstance(usage, float) and (known is None or usage > known.value):
            sighting.put(keys.PEAK_USAGE, Fact(usage, (cite(f"/loads/{index}/token_usage", usage),)))
        part = load.get("disaggregation")
        role = part.get("mode") if isinstance(part, dict) else None
        if role in (PREFILL, DECODE):
            sighting.put(keys.ROLE, Fact(role, (cite(f"/loads/{index}/disaggregation/mode", role),)))
    if pools:
        sighting.put_pools(pools)


def new_sighting(source: str, name: str, group: str) -> Sighting:
    """Make the sighting that a document's reader fills."""
    return Sighting(source, Kind.SERVER_INFO, name, group)


def citer(source: str) -> Cite:
    """Make evidence of a document: by the JSON pointer and the value that stands there."""

    def cite(pointer: str, value: object) -> Evidence:
        return Evidence(source, clean(f"{pointer.rpartition('/')[2]}: {value}"), pointer=pointer)

    return cite


def is_size(value: object) -> TypeGuard[int]:
    """Whether a value can be a number of tokens, ranks or the like: whole, above 0 and not beyond all bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < MOST


def put_number(sighting: Sighting, key: Key[int], cite: Cite, pointer: str, value: object) -> None:
    """Take a number, if it is one that can be."""
    if is_size(value):
        sighting.put(key, Fact(value, (cite(pointer, value),)))


def put_version(sighting: Sighting, cite: Cite, pointer: str, value: object) -> None:
    """Take a release number."""
    if isinstance(value, str):
        try:
            version = Version.parse(value)
        except ValueError:
            sighting.notes.append(f"{sighting.source}: its version is no release number")
            return
        sighting.put(keys.VERSION, Fact(VersionRange.exactly(version), (cite(pointer, value),)))
