"""Whether a chat template takes a message's content as one string, or as a list of parts; told from its syntax.

Each engine guesses in its own way, and what a message with parts becomes depends on it:
SGLang 0.5.18 to 0.5.23 in `parser/jinja_template_utils.py`, vLLM 0.32.0 in `renderers/hf.py`.
"""

from __future__ import annotations

from typing import Final, Literal

from jinja2 import nodes

from kvfence.counting.template import ChatTemplate

Format = Literal["string", "openai"]

_MEDIA_WORDS: Final = ("image", "audio", "video", "vision")
_SGLANG_NAMES: Final = ("message", "msg", "m")


def of_sglang(template: ChatTemplate) -> Format:
    """Give what SGLang takes the template for: "openai" if it speaks of media, or loops over a message's content."""
    if any(word in template.source for word in _MEDIA_WORDS):
        return "openai"
    loops = template.syntax().find_all(nodes.For)
    if any(_is_content_of(loop.iter, name) for loop in loops for name in _SGLANG_NAMES):
        return "openai"
    return "string"


def of_vllm(template: ChatTemplate) -> Format | None:
    """Give what vLLM takes the template for, or None where its guess is not followed here.

    It follows `messages` through assignments to loops, and from there to loops over the content. It follows a content
    through the parameters of macros too, and kvfence does not.
    """
    syntax = template.syntax()
    lists = _names_of(syntax, "messages")
    each = {
        loop.target.name
        for loop in syntax.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_is_of(loop.iter, name) for name in lists)
    }
    loops = list(syntax.find_all(nodes.For))
    if any(_is_content_of(loop.iter, name) for loop in loops for name in each):
        return "openai"
    within = {id(loop) for macro in syntax.find_all(nodes.Macro) for loop in macro.find_all(nodes.For)}
    over_names = [(id(loop) in within, loop.iter.name) for loop in loops if isinstance(loop.iter, nodes.Name)]
    if any(in_a_macro for in_a_macro, _ in over_names):
        return None
    return "openai" if (False, "content") in over_names else "string"


def _names_of(syntax: nodes.Template, name: str) -> set[str]:
    """Give all names that a variable is assigned to, directly or in turn."""
    names = {name}
    while True:
        more = {
            assignment.target.name
            for assignment in syntax.find_all(nodes.Assign)
            if isinstance(assignment.target, nodes.Name) and any(_is_of(assignment.node, known) for known in names)
        }
        if more <= names:
            return names
        names |= more


def _is_of(node: nodes.Node | None, name: str) -> bool:
    """Whether it is a variable, or some of its elements: filtered, tested or sliced."""
    inner = _within(node)
    return isinstance(inner, nodes.Name) and inner.ctx == "load" and inner.name == name


def _is_content_of(node: nodes.Node | None, name: str) -> bool:
    inner = _within(node)
    if isinstance(inner, nodes.Getattr):
        return inner.attr == "content" and _is_name(inner.node, name)
    return (
        isinstance(inner, nodes.Getitem)
        and isinstance(inner.arg, nodes.Const)
        and inner.arg.value == "content"
        and _is_name(inner.node, name)
    )


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _within(node: nodes.Node | None) -> nodes.Node | None:
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node
