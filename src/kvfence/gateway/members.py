r"""Members deep inside a JSON value: whether there may be any, and the value without them, the rest undecoded.

A search for a member's name in the undecoded bytes tells that it is not there. JSON can spell a name with escapes
(`"\u0075uid"` is `"uuid"`), so an escape of a letter that a name may have counts as one found. No encoder writes such
escapes on its own: they are for characters that JSON or HTML cannot hold as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import ahocorasick_rs
import msgspec

Path = tuple[str, ...]
Judge = Callable[[msgspec.Raw], None]

# Escapes of a to o, p to z (and a few characters more), and the underscore: what names are made of.
_ESCAPES: Final = (b"\\u006", b"\\u007", b"\\u005f", b"\\u005F")

# An engine reads lists of objects, or of lists of them (a batch); a tower of lists is built to cost time.
_LISTS: Final = 3

# Taking a value to that many parts takes some tens of milliseconds, and so does looking at that many of them. No
# conversation has so many, and a name to look for too. Commas part what is in lists and objects.
_COMMAS: Final = 100_000
_PARTS: Final = 10_000

# The search lists all that it finds: of a body full of names, the first piece is enough.
_PIECE: Final = 64 << 10

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])


class ExcessError(ValueError):
    """A value has more lists in lists, or more parts, than are looked through."""


class Search:
    """Look for names of members in undecoded JSON.

    Args:
        names: made of a to z and the underscore.

    """

    __slots__ = ("_needles", "_step")

    def __init__(self, names: Iterable[str]) -> None:
        needles = [*(b'"%b"' % name.encode() for name in names), *_ESCAPES]
        self._needles = ahocorasick_rs.BytesAhoCorasick(needles)
        self._step = _PIECE - max(map(len, needles)) + 1  # so that a needle on a border is whole in one piece

    def may_find(self, value: msgspec.Raw) -> bool:
        """Tell whether one of the names may be in a value; if not, none is."""
        find = self._needles.find_matches_as_indexes
        view = memoryview(value)
        if len(view) <= _PIECE:
            return bool(find(view))
        return any(find(view[start : start + _PIECE]) for start in range(0, len(view), self._step))


class Cut:
    """Take the members at one path out of a value.

    What holds one of the names, or an escape, is written anew on the way to them, so that of a name that comes twice
    only the member is left that was judged (the last, as Python's json reads it). All other bytes stay as they are.

    Args:
        path: the keys that lead to the members, at least one; lists on the way are looked through.
        search: for the last key of the path at least.
        judge: is given the value of each member that is left out; it may raise.

    """

    __slots__ = ("_judge", "_looked", "_path", "_search")

    def __init__(self, path: Path, search: Search, judge: Judge) -> None:
        self._path = path
        self._search = search
        self._judge = judge
        self._looked = 0

    def without(self, value: msgspec.Raw) -> msgspec.Raw:
        """Give the value without them.

        Args:
            value: valid JSON, as a decoder of msgspec gave it.

        Raises:
            ExcessError: it is built to cost time.
            msgspec.DecodeError: it is no valid JSON after all.

        """
        if self._search.may_find(value) and bytes(value).count(b",") > _COMMAS:
            raise ExcessError
        return self._cut(value, 0, _LISTS)

    def _cut(self, value: msgspec.Raw, depth: int, lists: int) -> msgspec.Raw:
        self._looked += 1
        if self._looked > _PARTS:
            raise ExcessError
        if not self._search.may_find(value):
            return value
        first = bytes(memoryview(value)[:1])
        if first == b"[":
            if not lists:
                raise ExcessError
            return _written([self._cut(part, depth, lists - 1) for part in _LIST.decode(value)])
        return self._from_object(_OBJECT.decode(value), depth) if first == b"{" else value

    def _from_object(self, members: dict[str, msgspec.Raw], depth: int) -> msgspec.Raw:
        key = self._path[depth]
        found = members.get(key)
        if found is not None and depth + 1 < len(self._path):
            members[key] = self._cut(found, depth + 1, _LISTS)
        elif found is not None:
            self._judge(found)
            del members[key]
        return _written(members)


def _written(value: list[msgspec.Raw] | dict[str, msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
