"""A tag speaks for one unit of one lease, peers never fall below what policy asks, and the key shows nowhere."""

from __future__ import annotations

import copy
import hmac
import logging
import pickle
import struct
import traceback
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from kvfence.fence.tags import LEASES_KEPT, Algorithm, Binding, DeploymentKey, Tagger, WeakerTag, negotiate

XXH3, BLAKE3 = Algorithm.XXH3_128, Algorithm.BLAKE3_KEYED
SECRET = blake3(b"a key of the tests").digest()
BINDING = Binding("ref", "request", "scope", (7, 3), "full", 5, 64)
OTHERS = [
    BINDING._replace(ref="reg"),
    BINDING._replace(request=""),
    BINDING._replace(scope="scope2"),
    BINDING._replace(epoch=(7, 4)),
    BINDING._replace(epoch=(8, 3)),
    BINDING._replace(epoch=(3, 7)),
    BINDING._replace(kind="latent"),
    BINDING._replace(index=6),
    BINDING._replace(valid=63),
    BINDING._replace(shard=1),
]

words = st.integers(0, 2**64 - 1)
bindings = st.builds(
    Binding, st.text(), st.text(), st.text(), st.tuples(words, words), st.text(max_size=9), words, words, words
)


def key(rotation: int = 0) -> DeploymentKey:
    return DeploymentKey.from_bytes(SECRET, rotation)


def tagger(algorithm: Algorithm) -> Tagger:
    return Tagger(algorithm, key() if algorithm is BLAKE3 else None)


both = pytest.mark.parametrize("algorithm", list(Algorithm))


# Bindings


@given(one=bindings, other=bindings)
def test_two_bindings_never_encode_alike(one: Binding, other: Binding) -> None:
    assert (one == other) == (one.pack() == other.pack())
    assert one == other or not one.pack().startswith(other.pack())
    assert one == other or not one.pack().endswith(other.pack())


@given(text=st.text(), cut=st.integers(0, 20), more=st.integers(0, 20))
def test_text_cannot_move_from_one_field_to_the_next(text: str, cut: int, more: int) -> None:
    one = BINDING._replace(ref=text[:cut], request=text[cut:])
    other = BINDING._replace(ref=text[:more], request=text[more:])
    assert (one == other) == (one.pack() == other.pack())


@pytest.mark.parametrize("number", [-1, 2**64])
@pytest.mark.parametrize("field", ["index", "valid", "shard", "epoch"])
def test_numbers_of_a_binding_have_64_bits(field: str, number: int) -> None:
    wrong = BINDING._replace(**{field: (0, number) if field == "epoch" else number})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"in \[0, 2\*\*64\)"):
        wrong.pack()


def test_texts_of_a_binding_are_unicode() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        BINDING._replace(ref="\ud800").pack()


def test_known_binding() -> None:
    """Magic, epoch, index, valid tokens, shard, the sizes of four texts, the texts, and the size of it all."""
    head = struct.pack("<8sQQQQQIIII", b"kvftag/1", 7, 3, 5, 64, 2, 3, 7, 5, 4)
    assert BINDING._replace(shard=2).pack() == head + b"refrequestscopefull" + struct.pack("<I", 64 + 19)


def test_shard_is_0_unless_given() -> None:
    assert Binding(*BINDING[:7]).pack() == BINDING._replace(shard=0).pack()


# Algorithms


def test_order_of_strength() -> None:
    assert [one.value for one in sorted(Algorithm, key=lambda one: one.strength)] == ["xxh3-128", "blake3-keyed"]
    with pytest.raises(TypeError):
        max(XXH3, BLAKE3)  # type: ignore[call-overload]


@given(mine=st.sets(st.sampled_from(Algorithm)), theirs=st.sets(st.sampled_from(Algorithm)))
@pytest.mark.parametrize("at_least", list(Algorithm))
def test_strongest_in_common_and_never_below_policy(
    mine: set[Algorithm], theirs: set[Algorithm], at_least: Algorithm
) -> None:
    common = [one for one in mine & theirs if one.strength >= at_least.strength]
    names = {one.value for one in theirs}
    if common:
        picked = negotiate(mine, theirs, at_least=at_least)
        assert picked in common
        assert picked.strength == max(one.strength for one in common)
        assert negotiate(theirs, mine, at_least=at_least) is negotiate(mine, names, at_least=at_least) is picked
    else:
        with pytest.raises(WeakerTag):
            negotiate(mine, theirs, at_least=at_least)


def test_stronger_peer_of_a_later_release_is_understood() -> None:
    assert negotiate(Algorithm, ["later-1", "xxh3-128"], at_least=XXH3) is XXH3
    with pytest.raises(WeakerTag, match="at least blake3-keyed"):
        negotiate(Algorithm, ["later-1", "xxh3-128"], at_least=BLAKE3)


def test_weaker_tag_is_a_value_error() -> None:
    assert issubclass(WeakerTag, ValueError)


# The key


def test_generated_keys_differ_and_start_at_rotation_0() -> None:
    one, other = DeploymentKey.generate(), DeploymentKey.generate()
    assert one.reveal() != other.reveal()
    assert len(one.reveal()) == 32
    assert one.rotation == 0
    assert DeploymentKey.from_bytes(one.reveal()).reveal() == one.reveal()


def test_rotation_makes_a_fresh_key() -> None:
    first = key(4)
    second = first.rotate()
    assert (first.rotation, second.rotation) == (4, 5)
    assert first.reveal() == SECRET
    assert second.reveal() not in (SECRET, first.rotate().reveal())


@pytest.mark.parametrize(
    "secret",
    [
        b"",
        bytes(32),
        b"\xa5" * 32,
        SECRET[:31],
        SECRET + b"x",
        SECRET[:16] * 2,
        bytes(range(32)),
        bytes(range(250, 218, -1)),
        SECRET.hex()[:32].encode(),
    ],
)
def test_what_is_no_key_is_refused_without_showing_it(secret: bytes) -> None:
    with pytest.raises(ValueError, match="a deployment key") as caught:
        DeploymentKey.from_bytes(secret)
    if secret:
        assert_hidden(str(caught.value), secret)


@pytest.mark.parametrize("rotation", [-1, 2**64])
def test_rotation_numbers_have_64_bits(rotation: int) -> None:
    with pytest.raises(ValueError, match="rotation number"):
        key(rotation)


def assert_hidden(text: str, secret: bytes = SECRET) -> None:
    for shown in (repr(secret)[2:-1], secret.hex(), str(list(secret))[1:-1], str(int.from_bytes(secret))):
        assert shown not in text


def test_key_shows_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    secret, keyed = key(), tagger(BLAKE3)
    keyed.tag(BINDING, b"data")
    logging.getLogger("t").warning("%s %r", secret, keyed)
    derived = secret.lease_key(BINDING.ref, BINDING.epoch)
    for text in (repr(secret), str(secret), f"{secret} {secret!r} {[secret]}", f"{vars(keyed)} {keyed}", caplog.text):
        assert_hidden(text)
        assert_hidden(text, derived)
    assert str(secret) == "<DeploymentKey, rotation 0>"
    assert not hasattr(secret, "__dict__")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_key_is_not_pickled(protocol: int) -> None:
    for held in (key(), [key()]):
        with pytest.raises(TypeError, match="not pickled or copied"):
            pickle.dumps(held, protocol)
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(tagger(BLAKE3), protocol)


def test_key_is_not_copied() -> None:
    attempts: list[Callable[[Any], object]] = [copy.copy, copy.deepcopy, lambda held: held.__getstate__()]
    for attempt in attempts:
        with pytest.raises(TypeError, match="not pickled or copied"):
            attempt(key())


def test_key_shows_in_no_error() -> None:
    for wrong in (("\ud800", (0, 0)), ("ref", (0, -1)), ("ref", (0, 2**64))):
        with pytest.raises(ValueError, match=r"surrogates|in \[0, 2\*\*64\)") as caught:
            key().lease_key(*wrong)
        assert_hidden("".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()))


# Keys of leases


def test_lease_key_is_blake3_derive_key() -> None:
    material = SECRET + struct.pack("<QQQI", 2, 7, 3, 3) + b"ref"
    expected = blake3(material, derive_key_context="kvfence 2026-09 tag key of one lease v1").digest()
    assert key(2).lease_key("ref", (7, 3)) == expected
    assert expected.hex() == "b38b943996dd517cd3588f5c68528aec980c622e91a367134329d0c06a70120b"


def test_lease_keys_differ_by_key_rotation_reference_and_epoch() -> None:
    keys = {
        key().lease_key("ref", (7, 3)),
        key().lease_key("ref2", (7, 3)),
        key().lease_key("ref", (7, 4)),
        key().lease_key("ref", (8, 3)),
        key(1).lease_key("ref", (7, 3)),
        key().rotate().lease_key("ref", (7, 3)),
        SECRET,
    }
    assert len(keys) == 7


# Tags


@given(binding=bindings, data=st.binary(max_size=300))
def test_tags_are_the_published_functions_over_binding_and_data(binding: Binding, data: bytes) -> None:
    lease = key().lease_key(binding.ref, binding.epoch)
    assert tagger(XXH3).tag(binding, data) == xxh3_128_digest(binding.pack() + data)
    assert tagger(BLAKE3).tag(binding, data) == blake3(data + binding.pack(), key=lease).digest()


def test_known_tags() -> None:
    """What was released verifies for ever: peers of two releases must agree."""
    assert tagger(XXH3).tag(BINDING, b"data").hex() == "de5f8cdc28ea5f80430958b03ff3b4f4"
    assert (
        tagger(BLAKE3).tag(BINDING, b"data").hex() == "ad4901827652b294d7027bcac1d380fded8caad97664291ce1e2fe491915b0d7"
    )


@both
def test_size_of_a_tag(algorithm: Algorithm) -> None:
    assert algorithm.tag_bytes == len(tagger(algorithm).tag(BINDING, b"data")) == {XXH3: 16, BLAKE3: 32}[algorithm]


@both
@given(data=st.binary(min_size=1, max_size=2000), at=st.integers(0), flip=st.integers(1, 255))
def test_any_change_of_a_byte_changes_the_tag(algorithm: Algorithm, data: bytes, at: int, flip: int) -> None:
    changed = bytearray(data)
    changed[at % len(data)] ^= flip
    made = tagger(algorithm)
    assert made.verify(BINDING, data, made.tag(BINDING, data))
    assert not made.verify(BINDING, changed, made.tag(BINDING, data))


@both
@given(data=st.binary(max_size=100), more=st.binary(min_size=1, max_size=9))
def test_bytes_lost_or_added_change_the_tag(algorithm: Algorithm, data: bytes, more: bytes) -> None:
    made = tagger(algorithm)
    assert made.tag(BINDING, data) != made.tag(BINDING, data + more)


@both
@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_any_other_binding_does_not_verify(algorithm: Algorithm, other: Binding) -> None:
    made = tagger(algorithm)
    assert not made.verify(other, b"data", made.tag(BINDING, b"data"))


@both
def test_ranks_that_hold_other_heads_make_other_tags(algorithm: Algorithm) -> None:
    made = tagger(algorithm)
    tags = {made.tag(BINDING._replace(shard=shard), b"data") for shard in (0, 1, 2, 2**64 - 1)}
    assert len(tags) == 4
    assert made.tag(BINDING, b"data") in tags


def test_other_bindings_differ_in_every_field() -> None:
    differ = {
        field for other in OTHERS for field in Binding._fields if getattr(other, field) != getattr(BINDING, field)
    }
    assert differ == set(Binding._fields)


@both
@given(one=bindings, other=bindings)
def test_two_bindings_have_two_tags(algorithm: Algorithm, one: Binding, other: Binding) -> None:
    made = tagger(algorithm)
    assert (made.tag(one, b"data") == made.tag(other, b"data")) == (one == other)


@both
@given(tag=st.binary(max_size=40))
def test_forged_and_cut_tags_do_not_verify(algorithm: Algorithm, tag: bytes) -> None:
    made = tagger(algorithm)
    right = made.tag(BINDING, b"data")
    for wrong in (tag, right[:-1], right + b"\0", b""):
        assert not made.verify(BINDING, b"data", wrong)
    assert made.verify(BINDING, b"data", memoryview(bytearray(right)))


def test_tag_of_another_key_does_not_verify() -> None:
    made = tagger(BLAKE3)
    for other in (key(1), key().rotate(), DeploymentKey.generate()):
        assert not made.verify(BINDING, b"data", Tagger(BLAKE3, other).tag(BINDING, b"data"))


@both
def test_tags_are_compared_in_constant_time(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def compared(one: bytes, other: bytes) -> bool:
        seen.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compared)
    made = tagger(algorithm)
    tag = made.tag(BINDING, b"data")
    assert made.verify(BINDING, b"data", tag)
    assert seen == [(tag, tag)]


def test_key_is_given_if_and_only_if_it_is_used() -> None:
    with pytest.raises(ValueError, match="needs a deployment key"):
        Tagger(BLAKE3)
    with pytest.raises(ValueError, match="takes no key"):
        Tagger(XXH3, key())


@both
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.int64])
@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (0, 4)])
def test_any_buffer_is_its_bytes(algorithm: Algorithm, dtype: type, shape: tuple[int, ...]) -> None:
    unit: np.ndarray[Any, Any] = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    unit.flags.writeable = False
    expected = tagger(algorithm).tag(BINDING, unit.tobytes())
    for buffer in (unit.data, bytearray(unit.tobytes()), memoryview(unit.tobytes())):
        assert tagger(algorithm).tag(BINDING, buffer) == expected
        assert tagger(algorithm).verify(BINDING, buffer, expected)


@both
def test_buffers_with_holes_are_refused(algorithm: Algorithm) -> None:
    unit = np.arange(64, dtype=np.uint8).reshape(8, 8)
    for view in (unit[:, ::2].data, unit.T.data, memoryview(unit.tobytes())[::2]):
        with pytest.raises(ValueError, match="C-contiguous"):
            tagger(algorithm).tag(BINDING, view)


@both
def test_unit_is_not_copied(algorithm: Algorithm) -> None:
    import tracemalloc

    unit = np.zeros(8 << 20, np.uint8)
    made = tagger(algorithm)
    tracemalloc.start()
    made.tag(BINDING, unit.data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 10


def test_lease_key_is_derived_once_a_lease_and_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[str] = []
    real = DeploymentKey.lease_key

    def counted(self: DeploymentKey, ref: str, epoch: tuple[int, int]) -> bytes:
        derived.append(ref)
        return real(self, ref, epoch)

    monkeypatch.setattr(DeploymentKey, "lease_key", counted)
    made = tagger(BLAKE3)
    tags = [made.tag(BINDING._replace(index=index), b"data") for index in range(9)]
    assert derived == ["ref"]
    assert all(one != other for one, other in pairwise(tags))
    for number in range(LEASES_KEPT):
        made.tag(BINDING._replace(ref=str(number)), b"data")
    assert len(derived) == 1 + LEASES_KEPT
    assert made.tag(BINDING._replace(index=0), b"data") == tags[0]
    assert len(derived) == 2 + LEASES_KEPT
