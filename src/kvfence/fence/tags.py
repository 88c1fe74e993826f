"""The tag of a unit: a digest of its bytes, bound to the lease it was produced under.

A page of another request, of an earlier epoch or of another position has another binding, so its tag cannot verify,
however whole its bytes are.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from blake3 import blake3
from xxhash import xxh3_128

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

KEY_BYTES: Final = 32
LEASES_KEPT: Final = 64  # handoffs that a worker has under way at once, with room to spare

_LEAST_DISTINCT: Final = 17
_KEY_CONTEXT: Final = "kvfence 2026-09 tag key of one lease v1"
_HEAD: Final = struct.Struct("<8sQQQQQIIII")
_LENGTH: Final = struct.Struct("<I")
_MAGIC: Final = b"kvftag/1"
_LEASE: Final = struct.Struct("<QQQI")


class WeakerTag(ValueError):  # noqa: N818 (it names what was refused)
    """Peers have no algorithm in common that is as strong as policy asks."""


class Algorithm(Enum):
    """How tags are made, weakest first; the value is the name that peers exchange.

    Members do not compare with `<`, because their names would compare by spelling: use `strength`.
    """

    XXH3_128 = "xxh3-128"  # against faults: anyone can compute it
    BLAKE3_KEYED = "blake3-keyed"  # against tampering: needs the deployment's key

    @property
    def strength(self) -> int:
        """The place in the order of strength, from 0."""
        return list(Algorithm).index(self)

    @property
    def tag_bytes(self) -> int:
        """The size of a tag, in bytes."""
        return 16 if self is Algorithm.XXH3_128 else 32


class Binding(NamedTuple):
    """What a tag is bound to, beside the bytes.

    Attributes:
        ref: the handoff reference.
        request: the request.
        scope: the isolation scope.
        epoch: of the lease: worker incarnation, counter.
        kind: the cache kind: full, latent, window, recurrent or row.
        index: the page index, or the slot.
        valid: valid tokens in the unit.
        shard: the rank whose heads it holds; 0 where every rank holds the same.

    """

    ref: str
    request: str
    scope: str
    epoch: tuple[int, int]
    kind: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a binding
    valid: int
    shard: int = 0

    def pack(self) -> bytes:
        """Encode the binding: no two encode alike, and none is the beginning or the end of another.

        A head of fixed size holds the numbers and the length of each text in bytes; the texts follow as UTF-8, and
        the length of all of it in 4 bytes comes last. So the bytes of a unit may stand before it or after it, and
        it is always clear where it begins and ends.

        Raises:
            ValueError: a number is not in [0, 2**64), or a text is not Unicode.

        """
        ref, request, scope, kind = self.ref.encode(), self.request.encode(), self.scope.encode(), self.kind.encode()
        sizes = len(ref), len(request), len(scope), len(kind)
        incarnation, counter = self.epoch
        try:
            head = _HEAD.pack(_MAGIC, incarnation, counter, self.index, self.valid, self.shard, *sizes)
        except struct.error as error:
            raise ValueError(f"a number of the binding is not in [0, 2**64): {error}") from None
        return head + ref + request + scope + kind + _LENGTH.pack(len(head) + sum(sizes))


def negotiate(mine: Iterable[Algorithm], theirs: Iterable[Algorithm | str], *, at_least: Algorithm) -> Algorithm:
    """Pick the strongest algorithm that both peers have.

    Args:
        mine: what this side can do.
        theirs: what the peer says it can do; names not known here are passed over.
        at_least: the weakest that policy allows.

    Raises:
        WeakerTag: nothing in common is as strong as `at_least`.

    """
    offered = {one.value if isinstance(one, Algorithm) else one for one in theirs}
    common = [one for one in mine if one.value in offered and one.strength >= at_least.strength]
    if not common:
        raise WeakerTag(f"the peers have no tag in common that is at least {at_least.value}")
    return max(common, key=lambda one: one.strength)


class DeploymentKey:
    """The secret that keyed tags of one deployment derive from: 32 random bytes and a rotation number.

    It shows nothing: text of it holds the rotation number only, and it refuses to be pickled or copied. `reveal` is
    the one way out.
    """

    __slots__ = ("__rotation", "__secret")

    def __init__(self, secret: ReadableBuffer, rotation: int = 0) -> None:
        held = bytes(memoryview(secret))
        if len(held) != KEY_BYTES:
            raise ValueError(f"a deployment key has {KEY_BYTES} bytes, not {len(held)}")
        # Random bytes have so few distinct values, or steps all alike, less than once in 10**12 keys; constants,
        # repeated words, counters and hexadecimal text always do.
        if len(set(held)) < _LEAST_DISTINCT or len({(b - a) % 256 for a, b in pairwise(held)}) == 1:
            raise ValueError("a deployment key is 32 random bytes, not a constant, a pattern or hexadecimal text")
        if not 0 <= rotation < 1 << 64:
            raise ValueError("a rotation number is in [0, 2**64)")
        self.__secret = held
        self.__rotation = rotation

    @classmethod
    def generate(cls) -> DeploymentKey:
        """Make the first key of a deployment from the system's random source."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_bytes(cls, secret: ReadableBuffer, rotation: int = 0) -> DeploymentKey:
        """Take a key that was made elsewhere.

        Args:
            secret: 32 random bytes.
            rotation: how many keys of the deployment came before it.

        Raises:
            ValueError: the bytes are not 32, or plainly not random; or the rotation number is not in [0, 2**64).
                The message holds none of them.

        """
        return cls(secret, rotation)

    @property
    def rotation(self) -> int:
        """How many keys of the deployment came before this one; not a secret."""
        return self.__rotation

    def rotate(self) -> DeploymentKey:
        """Make the next key. It is fresh, not derived: who learnt this one does not know the next."""
        return DeploymentKey(secrets.token_bytes(KEY_BYTES), self.__rotation + 1)

    def reveal(self) -> bytes:
        """Give the 32 bytes, to hand them to the deployment's other workers; never to log them."""
        return self.__secret

    def lease_key(self, ref: str, epoch: tuple[int, int]) -> bytes:
        """Derive the 32-byte key of one lease.

        BLAKE3's `derive_key` mode (BLAKE3 paper, section 2.3) with a fixed context, over the key, the rotation
        number, the epoch and the reference, each of fixed or stated length.

        Raises:
            ValueError: a number of the epoch is not in [0, 2**64), or the reference is not Unicode.

        """
        name = ref.encode()
        try:
            lease = _LEASE.pack(self.__rotation, *epoch, len(name)) + name
        except struct.error as error:
            raise ValueError(f"a number of the epoch is not in [0, 2**64): {error}") from None
        return blake3(self.__secret, derive_key_context=_KEY_CONTEXT).update(lease).digest()

    def __repr__(self) -> str:
        return f"<DeploymentKey, rotation {self.__rotation}>"

    def __getstate__(self) -> NoReturn:
        raise TypeError("a deployment key is not pickled or copied")

    def __reduce_ex__(self, _protocol: object, /) -> NoReturn:
        raise TypeError("a deployment key is not pickled or copied")


class Tagger:
    """Makes and verifies tags.

    Args:
        algorithm: how.
        key: the deployment's key, if and only if the algorithm is keyed.

    Raises:
        ValueError: a keyed algorithm without a key, or a key that would not be used.

    """

    def __init__(self, algorithm: Algorithm, key: DeploymentKey | None = None) -> None:
        if algorithm is Algorithm.BLAKE3_KEYED and key is None:
            raise ValueError(f"{algorithm.value} needs a deployment key")
        if algorithm is not Algorithm.BLAKE3_KEYED and key is not None:
            raise ValueError(f"{algorithm.value} takes no key: its tags would look protected and not be")
        self.algorithm: Final = algorithm

        @lru_cache(LEASES_KEPT)
        def keyed(ref: str, epoch: tuple[int, int]) -> blake3:
            assert key is not None
            return blake3(key=key.lease_key(ref, epoch))

        # Keyed hashers, not keys: they show nothing, and a copy is cheaper than the derivation and the set-up.
        self._keyed = keyed

    def tag(self, binding: Binding, data: ReadableBuffer) -> bytes:
        """Make the tag of a unit.

        Args:
            binding: what the tag is bound to.
            data: the unit's bytes: any C-contiguous buffer, of any shape and element type; not copied.

        Returns:
            16 bytes for xxh3-128, 32 for keyed BLAKE3, over the packed binding and the data: the
            binding first for xxh3-128, last for keyed BLAKE3.

        Raises:
            ValueError: the buffer is not C-contiguous, or the binding cannot be packed.

        """
        view = memoryview(data)
        if not view.c_contiguous:
            raise ValueError("the bytes of a unit are one C-contiguous buffer")
        packed = binding.pack()
        if self.algorithm is Algorithm.XXH3_128:
            faults = xxh3_128(packed)
            faults.update(view)
            return faults.digest()
        hasher = self._keyed(binding.ref, binding.epoch).copy()
        # BLAKE3 takes bytes only; a view without elements cannot be cast, and adds nothing.
        if view.nbytes:
            hasher.update(view.cast("B"))
        # The data comes first: behind anything else it would not lie on BLAKE3's chunks of 1 KiB, and a unit of
        # 16 KiB would take twice as long.
        return hasher.update(packed).digest()

    def verify(self, binding: Binding, data: ReadableBuffer, tag: ReadableBuffer) -> bool:
        """Say whether a tag is that of the unit; a tag of another size is not.

        The comparison takes the same time wherever the tags differ, so that a forger learns nothing from it.

        Raises:
            ValueError: as for `tag`.

        """
        return hmac.compare_digest(self.tag(binding, data), bytes(memoryview(tag)))
