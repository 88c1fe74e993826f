"""State that can be copied and compared: what lets one machine be driven by an engine and searched by an explorer."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, Self


class State:
    """A holder of mutable state whose fields are its `__slots__`.

    A field is a scalar, a tuple, another `State`, or a dict or list of these. Fields named in `SHARED` never change
    after construction: copies share them and keys leave them out. Of the dicts named in `ORDERED` the order counts.
    """

    __slots__ = ()
    SHARED: ClassVar[frozenset[str]] = frozenset()
    ORDERED: ClassVar[frozenset[str]] = frozenset()
    _FIELDS: ClassVar[tuple[str, ...]] = ()
    _MUTABLE: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Collect the fields of the class once, with those of its parents."""
        super().__init_subclass__()
        fields = [name for parent in reversed(cls.__mro__) for name in parent.__dict__.get("__slots__", ())]
        cls._FIELDS = tuple(fields)
        cls._MUTABLE = tuple(name for name in fields if name not in cls.SHARED)

    def copy(self) -> Self:
        """Give a copy that shares nothing that can change."""
        new = object.__new__(type(self))
        shared = self.SHARED
        for name in self._FIELDS:
            value = getattr(self, name)
            if type(value) not in _SCALARS and name not in shared:
                value = _copied(value)
            setattr(new, name, value)
        return new

    def key(self) -> Hashable:
        """Give a value that is equal for two states only if they behave alike."""
        ordered = self.ORDERED
        return tuple([_keyed(getattr(self, name), ordered=name in ordered) for name in self._MUTABLE])


_SCALARS = frozenset({int, str, bool, float, tuple, type(None)})


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        new = value.copy()
        for name, item in value.items():
            if type(item) not in _SCALARS and not isinstance(item, tuple):
                new[name] = _copied(item)
        return new
    if kind is list:
        return [item if type(item) in _SCALARS else _copied(item) for item in value]
    return value.copy() if isinstance(value, State) else value


def _keyed(value: Any, *, ordered: bool = False) -> Hashable:
    kind = type(value)
    if kind in _SCALARS:
        key: Hashable = value
    elif kind is dict:
        items = [(name, _keyed(item)) for name, item in value.items()]
        key = tuple(items) if ordered else frozenset(items)
    elif kind is list:
        key = tuple([_keyed(item) for item in value])
    else:
        key = value.key() if isinstance(value, State) else value
    return key
