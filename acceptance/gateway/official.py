"""OpenAI's own client for Python against the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from acceptance.gateway.catalogue import MODEL_NAME
from acceptance.gateway.stage import Stage
from acceptance.scenarios.stage import Seen
from acceptance.texts import NOTED, normal, question
from kvfence.gateway.problem import CONTEXT_LENGTH

if TYPE_CHECKING:
    from openai import OpenAI

SETTLED: Final = 5.0


def is_installed() -> bool:
    """Tell whether there is such a client; it is no dependency of kvfence."""
    return find_spec("openai") is not None


async def openai(stage: Stage) -> Seen:
    """Use it in the ways that programs do. The word is `works`."""
    wrong = await asyncio.to_thread(_in_turn, stage.gateway.url)
    wrong += await _leaves(stage)
    return Seen("works" if not wrong else f"{len(wrong)} amiss", tuple(wrong))


def _in_turn(url: str) -> list[str]:
    from openai import OpenAI  # noqa: PLC0415 (it may be missing)

    wrong = []
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        for check in _CHECKS:
            try:
                found = check(client)
            except Exception as error:  # noqa: BLE001 (whatever the client makes of it is told)
                found = f"{type(error).__name__}: {error}"
            wrong += [f"{check.__name__}: {found}"] if found else []
    return wrong


def _asked(text: str) -> dict[str, Any]:
    return {"model": MODEL_NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0}


def _chat(client: OpenAI) -> str:
    answer = client.chat.completions.create(**_asked(normal(600)))
    usage = answer.usage
    return "" if usage and usage.completion_tokens == 8 and answer.choices[0].message.content else repr(answer)


def _stream(client: OpenAI) -> str:
    whole = client.chat.completions.create(**_asked(normal(600))).choices[0].message.content
    parts = list(client.chat.completions.create(**_asked(normal(600)), stream=True))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    told = [part.usage for part in parts if part.usage]
    return "" if text == whole and not told else f"{text!r}, not {whole!r}; usage {told}"


def _stream_with_usage(client: OpenAI) -> str:
    asked = client.chat.completions.create(**_asked("hi"), stream=True, stream_options={"include_usage": True})
    parts = list(asked)
    told = [part.usage for part in parts if part.usage]
    return "" if len(told) == 1 and parts[-1].usage and not parts[-1].choices else f"usage {told}"


def _completion(client: OpenAI) -> str:
    answer = client.completions.create(model=MODEL_NAME, prompt=normal(600), max_tokens=8, temperature=0)
    return "" if NOTED.startswith(answer.choices[0].text[:4]) else repr(answer)


def _too_long(client: OpenAI) -> str:
    from openai import BadRequestError  # noqa: PLC0415

    for stream in (False, True):
        try:
            client.chat.completions.create(**_asked(question(2000)), stream=stream)
        except BadRequestError as error:
            if (error.code, error.param) != (CONTEXT_LENGTH, "messages"):
                return f"{error.code} {error.param}"
        else:
            return "it was answered"
    return ""


def _models(client: OpenAI) -> str:
    names = [model.id for model in client.models.list()]
    return "" if names == [MODEL_NAME] else str(names)


_CHECKS: Final[tuple[Callable[[OpenAI], str], ...]] = (
    *(_chat, _stream, _stream_with_usage, _completion, _too_long, _models),
)


async def _leaves(stage: Stage) -> list[str]:
    """Leave in the middle of a long stream: nothing of it may be left soon."""
    from openai import AsyncOpenAI  # noqa: PLC0415

    async with AsyncOpenAI(base_url=f"{stage.gateway.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        asked = _asked(normal(600)) | {"max_tokens": 3000}
        stream = await client.chat.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 5:
                break
        await stream.close()
    took = await stage.emptied(SETTLED)
    return [] if took is not None else [f"decode works on {SETTLED} s after the client has left"]
