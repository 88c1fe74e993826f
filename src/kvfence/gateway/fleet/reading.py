"""Read a worker: ask it, and take from its answers what the gateway needs, by the rules of `kvfence limits`.

A reading is that of one process if the sentinel it began under still holds when it is over; `follow` sees to that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from kvfence.facts import keys
from kvfence.facts.dialects import metrics
from kvfence.facts.dialects.documents import Document, is_size, new_sighting
from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.recognise import recognise
from kvfence.facts.dialects.vllm import ENGINE as VLLM
from kvfence.facts.fact import Standing
from kvfence.facts.keys import KEYS
from kvfence.facts.merge import merge
from kvfence.facts.model import DECODE, PREFILL, ROUTER, UNIFIED, Sighting
from kvfence.facts.model import Worker as Facts
from kvfence.facts.redact import clean_id
from kvfence.gateway.fleet.ask import Place, Refusal, UnreadableError, ask
from kvfence.gateway.fleet.seen import Seen
from kvfence.gateway.fleet.spec import WorkerSpec
from kvfence.limits.worker import Lacking, limit_of

_FIRST: Final = ("/server_info", "/v1/models", "/model_info")
# Of a front only: the list of a router (sglang-router, smg, vllm-router), and the coordinator of `kvfence serve`.
_OF_FRONTS: Final = ("/workers", "/status")
# For an engine that does not tell enough by the first: vLLM, and releases of SGLang before 0.4.6.
_FURTHER: Final = ("/version", "/metrics", "/v1/loads")
_ROLES: Final = {"prefill": PREFILL, "decode": DECODE, "null": UNIFIED}
_MODELS: Final = 256
_HIGHEST_PORT: Final = 65535

Answers = Mapping[str, bytes]


async def read_worker(spec: WorkerSpec, place: Place) -> Seen:
    """Read a worker, in at most four times the place's timeout.

    Raises:
        UnreadableError: it cannot be reached, or nothing it said can be read.

    """
    front = spec.role in ("unified", "router")
    asked = await ask(place, (*_FIRST, *_OF_FRONTS) if front else _FIRST)
    router = spec.role == "router" or _is_router(asked.get("/workers"))
    answers = {path: body for path, body in asked.items() if isinstance(body, bytes)}
    for path, answer in asked.items():
        if isinstance(answer, Refusal) and not _may_lack(path, answer, router=router):
            raise UnreadableError(_told(answer, place), reached=answer.reached)
    seen = await asyncio.to_thread(_read_safely, place.url, answers, router=router)
    if seen.limit is None or seen.engine == VLLM:
        further = await ask(place, _FURTHER)
        answers |= {path: body for path, body in further.items() if isinstance(body, bytes)}
        seen = await asyncio.to_thread(_read_safely, place.url, answers, router=router)
    if seen.engine is None and not seen.models and seen.limit is None and not router:
        raise UnreadableError("it answered nothing that could be read", reached=True)
    return seen


def _is_router(answer: bytes | Refusal | None) -> bool:
    """Whether `/workers` was answered as routers do: by a list, or to holders of their own key only."""
    if isinstance(answer, Refusal):
        return answer.wants_key
    return answer is not None and isinstance(_member(_decoded(answer), "workers"), list)


def _may_lack(path: str, answer: Refusal, *, router: bool) -> bool:
    """Whether a reading is whole without this answer.

    One that did not come in time, or failed, may have said something: without it a reading would be of another worker.
    """
    if answer.not_spoken or (router and answer.status is not None):
        return True
    return path in _OF_FRONTS and answer.wants_key


def _told(answer: Refusal, place: Place) -> str:
    if not answer.wants_key:
        return answer.problem
    return f"{'it refuses the given key' if place.key else 'it asks for a key'} ({answer.problem})"


def _read_safely(url: str, answers: Answers, *, router: bool) -> Seen:
    try:
        return read_answers(url, answers, router=router)
    except Exception as error:
        problem = f"its answers cannot be read ({type(error).__name__})"
        raise UnreadableError(problem, reached=True) from error


def read_answers(url: str, answers: Answers, *, router: bool = False) -> Seen:
    """Take what answers say, by path: bodies of any content at all.

    Args:
        url: of the worker, for the evidence.
        answers: the bodies.
        router: whether it stands for several workers, and passes on what one of them says.

    """
    documents = {path: _decoded(body) for path, body in answers.items() if path != "/metrics"}
    facts = _facts(url, documents, answers.get("/metrics"))
    models = list(_models(documents.get("/v1/models")))
    coordinator = _coordinator(documents.get("/status"))
    limit, lacks = _limit(facts, documents)
    role = _role(facts, documents)
    at_most = None
    if coordinator is not None:
        role, lacks = ROUTER, None
        limit = coordinator["limit"]
    elif router:
        role, at_most, limit = ROUTER, limit, None
        lacks = "a router passes on what one worker says: its limit must be stated"
    version = facts.value(keys.VERSION)
    return Seen(
        engine=facts.value(keys.ENGINE) if coordinator is None else KVFENCE,
        version=str(version) if version is not None else None,
        role=role,
        limit=limit,
        at_most=at_most,
        lacks=lacks,
        context_len=facts.value(keys.CONTEXT_LEN) if coordinator is None else coordinator["context_length"],
        pool_tokens=facts.pool_tokens,
        page_tokens=facts.value(keys.PAGE_SIZE),
        models=tuple(dict.fromkeys(models)),
        served_name=facts.value(keys.SERVED_NAME),
        model_path=facts.value(keys.MODEL_PATH),
        architecture=facts.value(keys.ARCHITECTURE),
        truncates=facts.value(keys.AUTO_TRUNCATE),
        takes_images=facts.value(keys.TAKES_IMAGES),
        bootstrap_port=_port(facts.value(keys.BOOTSTRAP_PORT)),
        switches=facts.value(keys.ROLE_SWITCH),
        seed=facts.value(keys.RANDOM_SEED),
        facts=facts,
        read_at=time.time(),
    )


def _decoded(body: bytes) -> Any:
    """Decode JSON; what is none, or holds what JSON cannot (NaN), is as if not answered."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _facts(url: str, documents: Mapping[str, object], exposition: bytes | None) -> Facts:
    """Merge what the documents say, without numbers that none of their kind can be."""
    # A name of no meaning: what a host is called says nothing of its role.
    name = "worker"
    sightings = []
    for path, document in documents.items():
        reader = recognise(document)
        if reader is not None and isinstance(document, dict) and path not in _OF_FRONTS:
            sighting = new_sighting(url + path, name, url)
            reader(document, sighting)
            sightings.append(sighting)
    if exposition is not None:
        text = exposition.decode("utf-8", "replace")
        sightings.append(metrics.read_metrics(text, f"{url}/metrics", name, url))
    for sighting in sightings:
        _drop_unbelievable(sighting)
    if not sightings:
        sightings.append(new_sighting(url, name, url))
    return merge(sightings, (), ()).workers[0]


def _drop_unbelievable(sighting: Sighting) -> None:
    for name, fact in list(sighting.facts.items()):
        if KEYS[name].kind is int and name not in _MAY_BE_ZERO and not is_size(fact.value):
            del sighting.facts[name]


_MAY_BE_ZERO: Final = frozenset(key.name for key in (keys.NODE_RANK, keys.RANDOM_SEED, keys.RETRACTIONS))


def _limit(facts: Facts, documents: Mapping[str, object]) -> tuple[int | None, str | None]:
    """Give the limit in tokens, or what is missing to know it."""
    told = _member(documents.get("/server_info"), "max_req_input_len")
    if told is not None and not is_size(told):
        return None, "its max_req_input_len is no number of tokens"
    if facts.value(keys.ENGINE) == VLLM and len(set(_lengths(documents.get("/v1/models")))) > 1:
        return None, "its models differ in length"
    found = limit_of(facts)
    if isinstance(found, Lacking):
        missing = ", ".join(key.name for key in found.keys)
        return None, f"it does not tell its {missing}{f' ({found.why})' if found.why else ''}"
    return found.tokens, None


def _role(facts: Facts, documents: Mapping[str, object]) -> str | None:
    """Give the role that the scheduler has now.

    SGLang's `/server_info` goes on telling the role of the start after a switch; its internal states (from 0.5.23 on)
    and `/model_info` tell the new one (`http_server.py` and `tokenizer_control_mixin.py` of 0.5.23).
    """
    states = _member(documents.get("/server_info"), "internal_states")
    ranks = {_ROLES.get(str(_member(state, "disaggregation_mode"))) for state in _items(states)} - {None}
    if len(ranks) > 1:
        return "mixed"
    if ranks:
        return ranks.pop()
    now = _ROLES.get(str(_member(documents.get("/model_info"), "disaggregation_mode")))
    if now is not None:
        return now
    told = facts.get(keys.ROLE)
    return told.value if told is not None and told.standing is Standing.OBSERVED else None


def _models(document: object) -> Iterator[str]:
    """Go through the names that clients may ask for."""
    for model in _items(_member(document, "data"))[:_MODELS]:
        name = _member(model, "id")
        if isinstance(name, str) and (shown := clean_id(name)):
            yield shown


def _lengths(document: object) -> Iterator[int]:
    """Go through the lengths of the models that are no adapters."""
    for model in _items(_member(document, "data")):
        length = _member(model, "max_model_len")
        if _member(model, "parent") is None and is_size(length):
            yield length


def _coordinator(document: object) -> Document | None:
    """Give the status of a `kvfence serve` coordinator, if it is one and tells a limit."""
    if isinstance(document, dict) and document.get("schema") == "kvfence.serve/1":
        limit, context = document.get("limit"), document.get("context_length")
        if is_size(limit):
            return {"limit": limit, "context_length": context if is_size(context) else None}
    return None


def _port(told: int | None) -> int | None:
    return told if told is not None and 0 < told <= _HIGHEST_PORT else None


def _member(document: object, name: str) -> Any:
    return document.get(name) if isinstance(document, dict) else None


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
