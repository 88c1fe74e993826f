"""How long a prompt may be, in bytes, before a chat template has written it.

To write a conversation takes some ten times as long as to read it. Where the limit is far away that need not be: the
template's syntax tree is gone through once, when it is opened, with lengths in place of texts (an abstract
interpretation: both branches of an `if` that cannot be decided, the body of a loop once for all messages). What comes
out is a linear form that no plain conversation's prompt exceeds, or nothing, for a template that has anything not
understood here.

A conversation is plain if each message is just a role, of at most ROLE_BYTES, and a text; and if the template has no
variables but messages, add_generation_prompt and the special tokens. In JSON a text has never fewer bytes than in
UTF-8, so that the bytes of the body stand for those of the texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvfence.counting.template import ChatTemplate
from kvfence.counting.template_reading import Reading
from kvfence.counting.template_size import MISSING, Known, NotLinearError, Value


@dataclass(frozen=True, slots=True)
class LinearBound:
    """At most `base + per_message * messages + per_body_byte * bytes` bytes of UTF-8 are written.

    Attributes:
        base: bytes of every prompt.
        per_message: bytes for each message.
        per_body_byte: bytes for each byte of the JSON of all messages.

    """

    base: int
    per_message: int
    per_body_byte: int

    def most(self, messages: int, body_bytes: int) -> int:
        """Give the most bytes of a prompt.

        Args:
            messages: how many.
            body_bytes: of the JSON of all messages.

        """
        return self.base + self.per_message * messages + self.per_body_byte * body_bytes


ROLE_BYTES: Final = 16


def bound_of(template: ChatTemplate, named_tokens: frozenset[str]) -> LinearBound | None:
    """Bound the prompts of plain conversations; None if the template cannot be shown to be linear.

    Args:
        template: any.
        named_tokens: the special tokens that are known to be set or not to be set.

    """
    variables: dict[str, Value] = dict.fromkeys(named_tokens, MISSING)
    variables |= {name: Known(text) for name, text in template.specials.items()}
    variables |= {"tools": Known(None), "documents": Known(None), "add_generation_prompt": Known(True)}
    try:
        size = Reading(variables, ROLE_BYTES).size_of(template.syntax())
    except (NotLinearError, RecursionError):
        return None
    loose = size.turn or size.once_each or size.once_total or any(size.kept.values())
    return None if loose else LinearBound(size.const, size.each, size.total)
