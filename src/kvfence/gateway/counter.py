"""Counts prompts by what the gateway has: bounds, the model's tokenizer and template, the engine's own endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from kvfence.counting.asked import Asked, BadRequestError, Ids, Prompt, Text, UncountableError
from kvfence.counting.chat import Renderer, Settings, open_renderer, render
from kvfence.counting.endpoint import Question, UnreadableAnswerError, ask
from kvfence.counting.endpoint import read as read_count
from kvfence.counting.errors import CountingError
from kvfence.counting.model_files import ModelFiles
from kvfence.counting.template import UnwritableError
from kvfence.counting.tokenizer import TextCounter
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.gateway.backends import Backends
from kvfence.gateway.fleet.worker import Worker
from kvfence.gateway.judgement import Counter, How, Length
from kvfence.gateway.settings import Settings as GatewaySettings

_ENDPOINT_SECONDS: Final = 10.0

Range = tuple[int, int | None]


class PromptCounter:
    """Counts prompts.

    Args:
        backends: the workers, which can be asked.
        text: counts texts; nothing if the gateway has no tokenizer.
        model: the files beside the tokenizer; nothing if there are none.
        template: the text of the chat template that the engine was given at its start, if it was.

    """

    def __init__(
        self, backends: Backends, text: TextCounter | None, model: ModelFiles | None, template: str | None
    ) -> None:
        self._backends = backends
        self._text = text
        self._model = model
        self._template = template
        self._started: Settings | UncountableError = UncountableError("the engine has not said yet how it was started")
        self._renderer: Renderer | UncountableError = self._started
        self._seen = -1  # the generation of the workers that this was learnt of
        self._looking: asyncio.Task[None] | None = None

    # As a Counter

    def bound(self, asked: Asked) -> Length:
        """Give what is known without counting."""
        if asked.uncountable is not None or asked.multimodal or not asked.prompts:
            return Length(0, None, "none", why=_why(asked))
        how: How = "given" if all(isinstance(prompt, Ids) for prompt in asked.prompts) else "bound"
        return _length([self._range(prompt) for prompt in asked.prompts], how)

    async def exact(self, asked: Asked, limit: int) -> Length:
        """Count, here or by the engine."""
        why = _why(asked)
        if not why and asked.prompts:
            try:
                counts = [await self._count(prompt, limit) for prompt in asked.prompts]
                return _length([(count, count) for count in counts], "exact")
            except (UncountableError, BadRequestError, UnwritableError, CountingError) as error:
                why = str(error)
        try:
            counts = await self._by_the_engine(asked)
        except UncountableError as error:
            return Length(0, None, "none", why="; ".join(filter(None, (why, error.reason))))
        return _length([(count, count) for count in counts], "engine")

    def refresh(self) -> None:
        """Learn how the engine was started, if a worker has changed since that was learnt."""
        if self._text is not None and self._backends.some() is not None:
            self._look()

    @property
    def means(self) -> str:
        """Say by what prompts are counted."""
        if self._text is None:
            return "the engine's own endpoint"
        means = self._text.means
        by = "fastokens, near the limit confirmed by tokenizers" if means.fast else f"tokenizers ({means.why})"
        chat = (
            f"; conversations by the engine ({self._renderer.reason})"
            if isinstance(self._renderer, UncountableError)
            else ""
        )
        return f"{by}{chat}"

    async def close(self) -> None:
        """End what counts."""
        if self._looking is not None:
            self._looking.cancel()
        if self._text is not None:
            await self._text.close()

    # Here

    def _range(self, prompt: Prompt) -> Range:
        if isinstance(prompt, Ids):
            return prompt.tokens, prompt.tokens
        if self._text is None:
            return 0, None
        if isinstance(prompt, Text):
            return self._range_of_text(prompt)
        self._look()
        renderer = self._renderer
        if prompt.plain is None or isinstance(renderer, UncountableError) or renderer.bound is None:
            return 0, None
        most = renderer.bound.most(prompt.turns, prompt.most_bytes)
        return 0, self._text.bounds.high(most, add_special_tokens=True)

    def _range_of_text(self, prompt: Text) -> Range:
        assert self._text is not None
        text = prompt.text
        plain = text.isascii()
        bounds = self._text.ascii_bounds if plain else self._text.bounds
        size = len(text) if plain else len(text.encode())
        special = prompt.add_special_tokens
        return bounds.low(size, add_special_tokens=special), bounds.high(size, add_special_tokens=special)

    async def _count(self, prompt: Prompt, limit: int) -> int:
        if isinstance(prompt, Ids):
            return prompt.tokens
        if self._text is None:
            raise UncountableError("the gateway has no tokenizer")
        if isinstance(prompt, Text):
            return await self._text.count(prompt.text, add_special_tokens=prompt.add_special_tokens, limit=limit)
        await self._looked()
        if isinstance(self._renderer, UncountableError):
            raise self._renderer
        written = await render(self._renderer, prompt)
        return await self._text.count(written.text, add_special_tokens=written.add_special_tokens, limit=limit)

    # How the engine was started, which decides how it writes conversations

    def _look(self) -> None:
        """Ask again how the engine was started, if a worker has changed since."""
        if self._seen != self._backends.generation and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._learn())

    async def _looked(self) -> None:
        self._look()
        if self._looking is not None:
            await asyncio.shield(self._looking)

    async def _learn(self) -> None:
        """Learn it, and open the renderer that goes with it."""
        generation = self._backends.generation
        self._started = await self._ask_settings()
        if isinstance(self._started, UncountableError):
            self._renderer = self._started
        elif self._model is None:
            self._renderer = UncountableError("the gateway has the tokenizer's file alone, not the model's directory")
        else:
            try:
                self._renderer = await asyncio.to_thread(open_renderer, self._started, self._model)
            except UncountableError as error:
                self._renderer = error
        if not isinstance(self._started, UncountableError):
            self._seen = generation  # else it is asked again

    async def _ask_settings(self) -> Settings | UncountableError:
        engine, version, worker = self._backends.engine, self._backends.version, self._backends.some()
        if engine is None:
            return UncountableError("the engine is not known")
        if engine != SGLANG:
            named = None if self._template is None else "given"
            return Settings(engine=engine, version=version, template=self._template, named_template=named)
        if worker is None:
            return UncountableError("no worker can be asked how it was started")
        status, body = await self._backends.get(worker, "/server_info", _ENDPOINT_SECONDS)
        try:
            info = msgspec.json.decode(body) if status == 200 else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            info = None
        if not isinstance(info, dict):
            return UncountableError("the engine did not say how it was started")
        return Settings.of_sglang(info, self._template)

    # By the engine

    async def _by_the_engine(self, asked: Asked) -> list[int]:
        """Have the engine count.

        Raises:
            UncountableError: it cannot, or what it would count is not what its generation does.

        """
        await self._looked()
        worker, settings = self._backends.some(), self._started
        if isinstance(settings, UncountableError):
            raise settings
        questions = ask(settings, asked, self._model.model_type if self._model is not None else None)
        if questions is None or worker is None:
            raise UncountableError("the engine's own endpoint does not count this as generation does")
        return [await self._answer_of(worker, question) for question in questions]

    async def _answer_of(self, worker: Worker, question: Question) -> int:
        status, body = await self._backends.post(worker, question.path, question.body, _ENDPOINT_SECONDS)
        if status != 200:
            raise UncountableError(f"the engine's own endpoint answered {status or 'nothing'}")
        try:
            return read_count(body)
        except UnreadableAnswerError as error:
            raise UncountableError(str(error)) from None


def _why(asked: Asked) -> str:
    if asked.uncountable is not None:
        return asked.uncountable
    return "it holds images, sound or video" if asked.multimodal else ""


def _length(ranges: Iterable[Range], how: How) -> Length:
    """Put the lengths of all prompts together."""
    found = list(ranges)
    lows, highs = [low for low, _ in found], [high for _, high in found]
    known = [high for high in highs if high is not None]
    whole = len(known) == len(found)
    return Length(
        max(lows, default=0),
        max(known, default=0) if whole else None,
        how,
        total_low=sum(lows),
        total_high=sum(known) if whole else None,
    )


class NoCounter:
    """Counts nothing: the operator switched counting off."""

    means = "nothing: counting is off"

    def bound(self, asked: Asked) -> Length:
        """Give that nothing is known."""
        del asked
        return Length(0, None, "none", why=self.means)

    async def exact(self, asked: Asked, limit: int) -> Length:
        """Give that nothing is known."""
        del limit
        return self.bound(asked)

    def refresh(self) -> None:
        """Nothing is to be learnt."""

    async def close(self) -> None:
        """Nothing is held."""


def open_counter(settings: GatewaySettings) -> Callable[[Backends], Counter]:
    """Read the tokenizer; gives what makes a counter of it once there are workers.

    Raises:
        InputError: it cannot be used.

    """
    if settings.counting == "off":
        return lambda _: NoCounter()
    tokenizer, template = settings.tokenizer, settings.chat_template
    text = TextCounter.open(tokenizer) if tokenizer is not None else None
    model = ModelFiles.open(tokenizer) if tokenizer is not None and _is_model(tokenizer) else None
    return lambda backends: PromptCounter(backends, text, model, template)


def _is_model(path: Path) -> bool:
    return (path / "tokenizer_config.json").exists()
