"""What is said between a rank and its coordinator, and the fence's envelopes: the same on the other side."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.engine import wire
from kvfence.engine.request import Piece, Sampling
from kvfence.fence import messages
from kvfence.fence.capabilities import Capabilities
from kvfence.fence.messages import Address, Envelope, Epoch
from kvfence.fence.outcome import COMMITTED, TAG
from kvfence.fence.statement import Request, statement
from kvfence.fence.units import FULL, ROW, Layout, Unit

LAYOUT = Layout(4, (FULL, ROW), head_shards=2, dtype="float32")
REQUEST = Request("r", "tenant", (1, 2, 3), "m", steps=7)

TO_RANK = [
    wire.Deliver(b"\0\xff"),
    wire.Peer("decode-0", 1, 1 << 20, "127.0.0.1:1"),
    wire.Greet(["prefill-0", "prefill-1"]),
    wire.Take("h", REQUEST, "decode-0", Sampling(3, 0.5, 0.9, 4, 5, (10, 2), 6)),
    wire.Take("h", REQUEST, "decode-0", Sampling(), "grammar"),
    wire.LetGo("h"),
    wire.AskStatus(),
    wire.Fault("flip", "h", -2, 3),
]
FROM_RANK = [
    wire.Ready(1 << 40, '{"arena": 1}', [1, 2]),
    wire.Met("decode-0", 3),
    wire.Carry("decode-0", 1, b"envelope"),
    wire.Token("h", Piece(258, -0.25, ((1, -0.25), (2, -3.5)))),
    wire.EndedHere("h", COMMITTED),
    wire.Answered("h", "r", TAG),
    wire.Status({"free": 3}, {}, {"sending": 1}, {"seconds:step": 0.5, "engine": 7.0}),
    wire.Trace([("state", 3, "free"), ("landed", -1, "h")]),
    wire.Complaint("error", "it broke"),
]
MESSAGES = [
    messages.Hello(Capabilities((1, 0), 100, LAYOUT, 2, "m", ("blake3-keyed",), True, "tcp-epoch"), True),
    messages.Offer("h", statement(REQUEST, LAYOUT), Epoch(1, 2)),
    messages.Grant("h", Epoch(3, 4), 9, ((Unit(FULL, 0), 17), (Unit(ROW, 0), 18)), False),
    messages.Landed("h", Epoch(3, 4), ((Unit(FULL, 0), 17, b"\0" * 32), (Unit(ROW, 0), 18, None)), True),
    messages.Landed("h", Epoch(3, 4), (), True),
    messages.Cancel("h", TAG),
    messages.Heard("h"),
    messages.Ended("h", COMMITTED, Epoch(3, 4)),
    messages.Ended("h", TAG, None),
    messages.Noted("h", None, "drained"),
    messages.Vote("h", COMMITTED, "prefill-0"),
    messages.Verdict("h", COMMITTED, TAG, None),
]


def test_there_is_an_example_of_everything() -> None:
    assert {type(said) for said in TO_RANK} == set(get_args(wire.ToRank))
    assert {type(said) for said in FROM_RANK} == set(get_args(wire.FromRank))
    assert {type(message) for message in MESSAGES} == set(get_args(messages.Message))


@pytest.mark.parametrize("said", TO_RANK, ids=lambda said: type(said).__name__)
def test_what_is_said_to_a_rank_arrives_as_it_was(said: wire.ToRank) -> None:
    assert wire.decode_to_rank(wire.encode(said)) == said


@pytest.mark.parametrize("said", FROM_RANK, ids=lambda said: type(said).__name__)
def test_what_a_rank_says_arrives_as_it_was(said: wire.FromRank) -> None:
    assert wire.decode_from_rank(wire.encode(said)) == said


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_an_envelope_arrives_with_every_type_as_it_was(message: messages.Message) -> None:
    envelope = Envelope(Address("decode-1", 3), 5, -1, message)
    came = wire.decode_envelope(wire.encode_envelope(envelope))
    assert came == envelope
    assert type(came.message) is type(message)
    assert repr(came) == repr(envelope)  # a tuple equals a tuple of another name


@pytest.mark.parametrize("said", TO_RANK, ids=lambda said: type(said).__name__)
def test_the_two_directions_are_not_mistaken_for_each_other(said: wire.ToRank) -> None:
    with pytest.raises(msgspec.ValidationError):
        wire.decode_from_rank(wire.encode(said))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_an_envelope_cut_short_is_none(message: messages.Message) -> None:
    data = wire.encode_envelope(Envelope(Address("decode-1"), 5, 6, message))
    for end in range(len(data)):
        with pytest.raises(msgspec.DecodeError):
            wire.decode_envelope(data[:end])


@pytest.mark.parametrize("name", ["Fence", "landed", "", "__class__"])
def test_a_message_of_no_known_name_is_refused(name: str) -> None:
    with pytest.raises(KeyError):
        wire.decode_envelope(wire.encode((name, Address("d"), 1, 1, ())))


def test_a_tag_that_is_no_bytes_is_refused() -> None:
    units = (((FULL, 0), 17, ["tag"]),)
    head = ("Landed", Address("d"), 1, 1)
    with pytest.raises(msgspec.ValidationError):
        wire.decode_envelope(wire.encode((*head, ("h", (1, 1), units, True))))


@given(st.binary(max_size=120))
@settings(max_examples=200)
def test_hostile_bytes_are_no_envelope(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, KeyError)):
        wire.decode_envelope(data)


@given(st.sampled_from(MESSAGES), st.data())
@settings(max_examples=200)
def test_one_changed_byte_gives_an_envelope_of_the_declared_types_or_an_error(
    message: messages.Message, data: st.DataObject
) -> None:
    good = bytearray(wire.encode_envelope(Envelope(Address("decode-1"), 5, 6, message)))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        came = wire.decode_envelope(bytes(good))
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError):
        return
    assert isinstance(came.source, Address)
    assert isinstance(came.incarnation, int)
    assert isinstance(came.message, get_args(messages.Message))
