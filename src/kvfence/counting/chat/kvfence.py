"""A conversation as kvfence's own engine writes it: a role, a text and perhaps a name, in the model's template."""

from __future__ import annotations

from kvfence.counting.asked import Chat, UncountableError
from kvfence.counting.chat import common
from kvfence.counting.chat.common import Rendered, Turn
from kvfence.counting.model_files import ModelFiles
from kvfence.counting.template_bound import LinearBound, bound_of


class KvfenceRenderer:
    """Renders for one server.

    Args:
        model: its files.

    Raises:
        UncountableError: they have no chat template by default.

    """

    def __init__(self, model: ModelFiles) -> None:
        source = model.templates.get("default")
        if source is None:
            raise UncountableError("the model has no chat template")
        self._template = common.compile_template(source, model)
        self.bound: LinearBound | None = bound_of(self._template, model.named_tokens | model.specials.keys())

    def render(self, chat: Chat) -> Rendered:
        """Write a conversation; as `Renderer.render`."""
        turns: list[Turn] = list(map(dict, chat.plain)) if chat.plain is not None else _turns(chat)
        return Rendered(self._template.render(turns, add_generation_prompt=True), add_special_tokens=False)


def _turns(chat: Chat) -> list[Turn]:
    written = []
    for turn in common.turns_of(chat):
        role, content, name = turn.get("role"), turn.get("content"), turn.get("name")
        texts = [content] if isinstance(content, str) else common.texts_of(content if isinstance(content, list) else [])
        if not isinstance(role, str) or not isinstance(name, str | None) or not texts:
            raise UncountableError("a message is not one of a role and a text")
        message: Turn = {"role": role, "content": "\n".join(texts)}
        written.append(message if name is None else message | {"name": name})
    return written
