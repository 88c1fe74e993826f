"""Open the renderer of an engine, and run one without holding others up."""

from __future__ import annotations

import asyncio
from typing import Final

from kvfence.counting.asked import Chat, UncountableError
from kvfence.counting.chat.common import Rendered, Renderer
from kvfence.counting.chat.kvfence import KvfenceRenderer
from kvfence.counting.chat.settings import Settings
from kvfence.counting.chat.sglang import SglangRenderer
from kvfence.counting.chat.vllm import VllmRenderer
from kvfence.counting.model_files import ModelFiles
from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.facts.dialects.vllm import ENGINE as VLLM

LARGE: Final = 128 << 10
"""Bytes of JSON above which a conversation is written in a thread; a template takes about 5 ns a byte and turn."""


def open_renderer(settings: Settings, model: ModelFiles) -> Renderer:
    """Give the renderer of an engine.

    Raises:
        UncountableError: how this engine writes this model's conversations is not known here.

    """
    if settings.engine == SGLANG:
        return SglangRenderer(settings, model)
    if settings.engine == VLLM:
        return VllmRenderer(settings, model)
    if settings.engine == KVFENCE:
        return KvfenceRenderer(model)
    raise UncountableError(f"how {settings.engine} writes conversations is not known here")


async def render(renderer: Renderer, chat: Chat) -> Rendered:
    """Write a conversation; a large one, or one with variables of the client's own, in a thread.

    Raises:
        UncountableError: as `Renderer.render`.
        BadRequestError: as `Renderer.render`.
        UnwritableError: as `Renderer.render`.

    """
    if chat.most_bytes <= LARGE and "chat_template_kwargs" not in chat.fields:
        return renderer.render(chat)
    return await asyncio.to_thread(renderer.render, chat)
