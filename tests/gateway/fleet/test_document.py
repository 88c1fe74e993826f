"""The workers and pairs in `/status`."""

from __future__ import annotations

import time

import msgspec

from kvfence.gateway.fleet.choose import Front, Pairs
from kvfence.gateway.fleet.document import MOST_PAIRS, FleetDocument, fleet_document
from tests.gateway.fleet.fleets import fleet_of, seen_with


def test_workers_and_pairs_are_described() -> None:
    prefill, decode = fleet_of([100], [200, None])
    pairs = Pairs(prefill, decode)
    prefill[0].in_flight = 3
    decode[1].doubt("it may have restarted")
    document = fleet_document([*prefill, *decode], pairs, time.time() + 2)
    first, second, third = document.workers
    assert (first.name, first.url, first.role, first.limit, first.in_flight) == (
        "prefill-0",
        "http://h:1",
        "prefill",
        100,
        3,
    )
    assert (first.usable, first.problem, first.bootstrap_port) == (True, None, 8998)
    assert first.read_seconds_ago is not None
    assert 1.5 < first.read_seconds_ago < 10
    assert second.bootstrap_port is None
    assert (third.usable, third.problem, third.limit) == (False, "it may have restarted", None)
    assert [(pair.name, pair.limit, pair.usable) for pair in document.pairs] == [
        ("prefill-0+decode-0", 100, True),
        ("prefill-0+decode-1", None, False),
    ]
    assert msgspec.json.decode(msgspec.json.encode(document), type=FleetDocument) == document


def test_quarantine_is_shown_and_whether_a_worker_restarted_since() -> None:
    prefill, decode = fleet_of([100], [200])
    pairs = Pairs(prefill, decode)
    (pair,) = pairs
    pairs.quarantine(pair, "counts differ")
    Front(decode).quarantine(decode[0], "answered too much")
    document = fleet_document([*prefill, *decode], pairs, time.time() + 5)
    (part,) = document.pairs
    assert part.quarantine is not None
    assert (part.quarantine.reason, part.quarantine.restarted_since, part.usable) == ("counts differ", False, False)
    assert 4 < part.quarantine.seconds < 20
    assert document.workers[0].quarantine is None
    decode[0].lives += 1
    decode[0].doubt("the connection to it ended")
    decode[0].learn(seen_with(200))
    document = fleet_document([*prefill, *decode], pairs)
    told = [document.pairs[0].quarantine, document.workers[1].quarantine]
    assert [one.restarted_since for one in told if one is not None] == [True, True]
    pairs.release(pair)
    assert fleet_document([], pairs).pairs[0].quarantine is None


def test_of_many_pairs_the_quarantined_ones_are_listed() -> None:
    pairs = Pairs(*fleet_of([10] * 17, [10] * 17))
    pair = pairs.pair("prefill-3+decode-4")
    assert pair is not None
    pairs.quarantine(pair, "why")
    document = fleet_document([], pairs)
    assert MOST_PAIRS < 17 * 17
    assert [part.name for part in document.pairs] == ["prefill-3+decode-4"]
    assert document.pairs_left_out == 17 * 17 - 1


def test_without_pairs_there_are_only_workers() -> None:
    document = fleet_document(fleet_of([1], [])[0], None)
    assert (len(document.workers), document.pairs, document.pairs_left_out) == (1, [], 0)
