"""Write a conversation as the prompt that a model was trained on, with the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, object]

# What a template's own operations raise when a conversation does not suit it.
_FAILURES = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)


class UnwritableError(Exception):
    """A prompt or a conversation cannot be written as tokens of the model; says why, for the client."""


class _SaidError(jinja2.TemplateError):
    """A template called raise_exception."""


class _Generation(Extension):
    """{% generation %}: marks what the model answers, for those who train; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template: run in a sandbox, with what Hugging Face gives a template and nothing more.

    Args:
        source: in the Jinja language.
        specials: the texts of the special tokens by name (`bos_token`), which templates may use.

    Raises:
        ValueError: it is no template; says where.

    """

    def __init__(self, source: str, specials: Mapping[str, str]) -> None:
        environment = _environment()
        self.source = source
        self.specials = dict(specials)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"is no Jinja template: line {error.lineno}: {error.message}") from None
        except (jinja2.TemplateError, RecursionError, SyntaxError):
            raise ValueError("is no Jinja template") from None

    def syntax(self) -> nodes.Template:
        """Give the template's syntax tree, as it is compiled."""
        return _environment().parse(self.source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Write the messages, and with `add_generation_prompt` the beginning of the answer.

        Args:
            messages: the conversation.
            add_generation_prompt: whether the template is asked for the beginning of the answer.
            tools: JSON schemas of the functions that the model may call.
            documents: what a template for retrieval writes before the conversation.
            variables: whatever else the template may read; one named as a special token counts before it.

        Raises:
            UnwritableError: the template cannot write them.

        """
        try:
            return self._template.render(
                self.specials | dict(variables or {}),
                messages=[dict(message) for message in messages],
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
            )
        except _SaidError as error:
            raise UnwritableError(f"the model's chat template refuses the messages: {error}") from None
        except _FAILURES as error:
            problem = f"the model's chat template cannot write the messages ({type(error).__name__})"
            raise UnwritableError(problem) from None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _now
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise _SaidError(str(message))


def _now(form: str) -> str:
    """Write the time as Hugging Face does, that is without a zone."""
    return datetime.now().strftime(form)  # noqa: DTZ005 (with a zone %Z would be written differently)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 (templates call it so)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 (templates call it so)
) -> str:
    """Write JSON as Hugging Face does: jinja2's own filter escapes what HTML could misread."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
