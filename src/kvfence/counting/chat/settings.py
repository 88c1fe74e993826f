"""What of an engine's start-up decides how it turns a conversation into a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from kvfence.facts.dialects.sglang import ENGINE as SGLANG


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """An engine as it was started.

    Attributes:
        engine: "sglang", "vllm" or "kvfence".
        version: of the engine, or None if it is not known.
        model: the path or name that it loaded the model by; SGLang picks built-in templates by it.
        defaults: values for the template that count where a body says nothing (`--default-chat-template-kwargs`).
        template: the text of a template given at start-up (`--chat-template`) if the operator hands it on.
        named_template: what was given there; None for the model's own template.
        template_of_several: the name of the one to take, of several in the model's files (SGLang).
        completion_template: what SGLang wraps the prompts of /v1/completions in, or None.
        tool_parser: of tool calls; SGLang picks its encoders in Python by it.
        reasoning_parser: of what a model thinks; one of SGLang's has variables of its own for the template.
        content_format: "auto", or "string" or "openai" if vLLM was told.
        hides_unused_tools: whether vLLM leaves tools out where `tool_choice` is none.
        takes_embeddings: whether vLLM takes `prompt_embeds`, which makes a special token more.
        tokenizer_mode: "auto" for what the model's files say.

    """

    engine: str
    version: str | None
    model: str | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    template: str | None = None
    named_template: str | None = None
    template_of_several: str | None = None
    completion_template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    content_format: str = "auto"
    hides_unused_tools: bool = False
    takes_embeddings: bool = False
    tokenizer_mode: str = "auto"

    @classmethod
    def of_sglang(cls, info: Mapping[str, object], template: str | None = None) -> Self:
        """Take an SGLang server's settings from its /server_info, where all start-up arguments stand.

        Args:
            info: the decoded document.
            template: the text of the file that `--chat-template` names, if the operator hands it on.

        """
        defaults = info.get("default_chat_template_kwargs")
        return cls(
            engine=SGLANG,
            version=_text(info, "version"),
            model=_text(info, "model_path"),
            defaults=defaults if isinstance(defaults, dict) else {},
            template=template,
            named_template=_text(info, "chat_template"),
            template_of_several=_text(info, "hf_chat_template_name"),
            completion_template=_text(info, "completion_template"),
            tool_parser=_text(info, "tool_call_parser"),
            reasoning_parser=_text(info, "reasoning_parser"),
            tokenizer_mode=_text(info, "tokenizer_mode") or "auto",
        )


def _text(info: Mapping[str, object], name: str) -> str | None:
    value = info.get(name)
    return value if isinstance(value, str) else None
