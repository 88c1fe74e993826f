"""Around the limit, with real tokenizers: refused exactly where the reference count says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from tokenizers import Tokenizer

from kvfence.counting.template import ChatTemplate
from kvfence.gateway.settings import Settings
from tests.counting import real
from tests.gateway import fakes
from tests.gateway.fakes import Body, error_of

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
HUMAN = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '\n\nHuman: ' + message['content'] }}"
    "{% else %}{{ '\n\nAssistant: ' + message['content'] }}{% endif %}{% endfor %}{{ '\n\nAssistant:' }}"
)
LIMIT = 400
WORDS = ("Der", "Wächter", "прошёл", "東京", "🏰🔑", "def f(x):", "x**2\t\n", "naïve", "ﷺ", "e\u0301", "1234567", "")


class Told(fakes.Worker):
    """Says what it counts, by the reference."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        super().__init__("unified", LIMIT)
        self.tokenizer = tokenizer
        self.template = template

    def count(self, body: Body) -> int:
        if "messages" in body:
            text = self.template.render(body["messages"], add_generation_prompt=True)
            return len(self.tokenizer.encode(text, add_special_tokens=False).ids)
        return len(self.tokenizer.encode(body["prompt"]).ids)


def of_length(count: Callable[[str], int], wanted: int) -> str:
    """Make a text of so many tokens, by the reference: words, then single letters."""
    text = ""
    for number in range(10 * wanted):
        longer = f"{text} {WORDS[number % len(WORDS)]}"
        if count(longer) > wanted - 3:
            break
        text = longer
    while count(text) < wanted:
        text += " a" if count(text + " a") <= wanted else "b"
    return text


@pytest.mark.parametrize(
    ("raw", "template"),
    [(real.deepseek, CHATML), (real.qwen, LLAMA_3), (real.anthropic, HUMAN), (real.sentence_piece, CHATML)],
    ids=["deepseek", "qwen", "anthropic", "sentence-piece"],
)
def test_refused_exactly_where_the_engine_refuses(raw: Callable[[], bytes], template: str, tmp_path: Path) -> None:
    content = raw()
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    reference = Tokenizer.from_str(content.decode())
    reference.no_truncation()
    worker = Told(reference, ChatTemplate(template, {}))

    async def main() -> None:
        await worker.start()
        try:
            async with fakes.gateway(Settings(upstreams=(fakes.spec(worker),), tokenizer=tmp_path)) as up:
                for make in (_completion, _chat):
                    for wanted in range(LIMIT - 2, LIMIT + 3):
                        text = of_length(lambda text, make=make: worker.count(make(text)), wanted)  # type: ignore[misc]
                        body = make(text)
                        tokens = worker.count(body)
                        before = len(worker.asked)
                        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
                        status, told = await up.post(body, path)
                        assert status == (400 if tokens >= LIMIT else 200), (tokens, told)
                        assert len(worker.asked) == before + (status == 200)
                        if status == 400:
                            assert error_of(told)["code"] == "context_length_exceeded"
                            assert f"{tokens:,} tokens" in error_of(told)["message"]
        finally:
            await worker.stop()

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    uvloop.run(bounded())


def _completion(text: str) -> Body:
    return {"model": "m", "prompt": text, "max_tokens": 2}


def _chat(text: str) -> Body:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "max_tokens": 2}


def test_how_the_engine_writes_conversations_is_learnt_before_the_first_comes(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(real.sentence_piece())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')

    async def main() -> None:
        worker = await fakes.Worker("unified", LIMIT).start()
        try:
            async with fakes.gateway(Settings(upstreams=(fakes.spec(worker),), tokenizer=tmp_path)) as up:
                await fakes.settled(lambda: "conversations by the engine" not in up.door.counter.means)
                assert worker.asked == []
        finally:
            await worker.stop()

    uvloop.run(main())
