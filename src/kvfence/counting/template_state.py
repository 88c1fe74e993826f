"""The variables of a template while it is gone through."""

from __future__ import annotations

from kvfence.counting.template_size import MISSING, Namespace, Value, joined


class State:
    """Names in scopes, the innermost last, and what is in namespaces.

    Args:
        names: of the outermost scope.

    """

    def __init__(self, names: dict[str, Value]) -> None:
        self.scopes: list[dict[str, Value]] = [names]
        self.spaces: dict[int, dict[str, Value]] = {}

    def get(self, name: str) -> Value:
        """Give a variable; it may be missing."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), MISSING)

    def make_space(self, names: dict[str, Value]) -> Namespace:
        """Make a namespace."""
        key = len(self.spaces)
        self.spaces[key] = names
        return Namespace(key)

    def copy(self) -> State:
        """Copy all that may change."""
        made = State({})
        made.scopes = [dict(scope) for scope in self.scopes]
        made.spaces = {key: dict(names) for key, names in self.spaces.items()}
        return made

    def take(self, other: State) -> None:
        """Go back to a copy."""
        self.scopes, self.spaces = other.scopes, other.spaces

    def join(self, other: State) -> None:
        """Know only what holds both here and in another state of the same scopes."""
        for mine, others in zip(self.scopes, other.scopes, strict=True):
            _join(mine, others)
        for key in self.spaces.keys() | other.spaces.keys():
            _join(self.spaces.setdefault(key, {}), other.spaces.get(key, {}))


def _join(mine: dict[str, Value], others: dict[str, Value]) -> None:
    for name in mine.keys() | others.keys():
        mine[name] = joined(mine.get(name, MISSING), others.get(name, MISSING))
