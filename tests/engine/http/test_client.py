"""The server as OpenAI's own client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from kvfence.engine.http.text import Text
from kvfence.fence import outcome as outcomes
from tests.engine.http.models import Script, refusal, serve, until

ASKED: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]


def with_client(backend: Script, text: Text, use: Callable[[openai.OpenAI], None]) -> None:
    """Let a synchronous client work in a thread beside the server."""

    def work(base: str) -> None:
        with openai.OpenAI(base_url=f"{base}/v1", api_key="key", max_retries=0, timeout=20) as client:
            use(client)

    async def run(base: str) -> None:
        await asyncio.to_thread(work, base)

    serve(backend, text, run)


def test_whole_answers(text: Text) -> None:
    def use(client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == ["tiny"]
        chat = client.chat.completions.create(model="tiny", messages=ASKED, logprobs=True, top_logprobs=2)
        assert chat.choices[0].message.content == "Hé!"
        assert chat.choices[0].finish_reason == "stop"
        assert chat.usage is not None
        assert chat.usage.total_tokens == 5 + 4
        assert chat.choices[0].logprobs is not None
        listed = chat.choices[0].logprobs.content
        assert listed is not None
        assert b"".join(bytes(entry.bytes or ()) for entry in listed).decode() == "Hé!"
        assert [len(entry.top_logprobs) for entry in listed] == [2] * 4
        completion = client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=1, logprobs=3)
        assert completion.choices[0].text == "H"
        assert completion.choices[0].finish_reason == "length"
        assert completion.choices[0].logprobs is not None
        assert completion.choices[0].logprobs.tokens == ["H"]

    with_client(Script("Hé!".encode()), text, use)


def test_streams(text: Text) -> None:
    def use(client: openai.OpenAI) -> None:
        chat = client.chat.completions.create(
            model="tiny", messages=ASKED, stream=True, stop=["STOP"], stream_options={"include_usage": True}
        )
        chunks = list(chat)
        assert chunks[0].choices[0].delta.role == "assistant"
        said = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        assert "".join(said) == "a STO"
        assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 9
        parts = list(client.completions.create(model="tiny", prompt="x", stream=True))
        assert "".join(part.choices[0].text for part in parts) == "a STOSTOP"

    with_client(Script(b"a STOSTOP"), text, use)


def test_an_asynchronous_client(text: Text) -> None:
    backend = Script(b"abc", hang=True)

    async def use(base: str) -> None:
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="key", max_retries=0) as client:
            stream = await client.chat.completions.create(model="tiny", messages=ASKED, stream=True)
            async with stream:
                async for chunk in stream:
                    if chunk.choices[0].delta.content == "c":
                        break
            await until(lambda: backend.closed == 1)
            with pytest.raises(openai.APITimeoutError):
                await client.chat.completions.create(model="tiny", messages=ASKED, timeout=0.2)
            await until(lambda: backend.closed == 2)

    serve(backend, text, use)


def test_errors(text: Text) -> None:
    def use(client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as long:
            client.completions.create(model="tiny", prompt="x" * 150)
        assert long.value.code == "context_length_exceeded"
        assert long.value.param == "prompt"
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="other", messages=ASKED)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(model="tiny", messages=ASKED, stream=True)
        assert failed.value.status_code == 503
        assert failed.value.code == "timed-out"

    with_client(Script(error=refusal(outcomes.TIMED_OUT)), text, use)


def test_an_error_during_a_stream(text: Text) -> None:
    def use(client: openai.OpenAI) -> None:
        seen = []
        with pytest.raises(openai.APIError, match="because") as failed:
            for chunk in client.chat.completions.create(model="tiny", messages=ASKED, stream=True):
                seen.append(chunk.choices[0].delta.content)  # noqa: PERF401 (the loop ends with an error)
        assert seen == ["", "a", "b"]
        assert failed.value.code == "canary-violation"

    with_client(Script(b"ab", error=refusal(outcomes.CANARY)), text, use)
