"""A server says which guards are active, wherever one may ask."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from kvfence import __version__
from kvfence.plugin.sglang import presence as module
from kvfence.plugin.sglang.limits import Limits
from kvfence.plugin.sglang.presence import GUARDS, SCHEMA, Presence
from kvfence.plugin.sglang.settings import Settings, SilentPeer
from kvfence.plugin.sglang.tally import EVENTS, Tally

CHOSEN = Settings(900, SilentPeer.ALLOW, 1 << 20, accept=frozenset({"speculative", "backend"}))


def presence(settings: Settings = CHOSEN) -> Presence:
    return Presence("0.5.19", settings, Limits(settings.prefill_limit), Tally())


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """Give metrics a registry of their own."""
    made = CollectorRegistry()
    for kind in ("Counter", "Gauge"):
        original = getattr(prometheus_client, kind)
        monkeypatch.setattr(prometheus_client, kind, lambda *a, _o=original, **k: _o(*a, registry=made, **k))
    monkeypatch.setattr(module, "_made", {})
    return made


def test_the_log_says_what_is_armed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    presence().announce("decode", metrics=False)
    (record,) = caplog.records
    assert record.message == (
        f"kvfence {__version__} guards decode of sglang 0.5.19: door, coverage, notices, batches; "
        "batch 1048576 bytes, silent peer allow, prefill limit 900 tokens, accepted untried: backend, speculative"
    )


def test_the_log_says_what_is_left_to_the_defaults(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    presence(Settings()).announce("prefill", metrics=False)
    assert "silent peer deny, prefill limit learned, accepted untried: none" in caplog.text


def test_the_document_says_what_is_set_and_what_has_happened() -> None:
    shown = presence()
    shown.announce("decode", metrics=False)
    shown.tally.count("door_refused")
    shown.limits.learn(SimpleNamespace(bootstrap_host="h", bootstrap_port=1), 800)
    assert json.loads(json.dumps(shown.document())) == {
        "schema": SCHEMA,
        "version": __version__,
        "release": "0.5.19",
        "role": "decode",
        "guards": list(GUARDS),
        "batch_bytes": 1 << 20,
        "silent_peer": "allow",
        "prefill_limit": 900,
        "learned_limits": {"h:1": 800},
        "accepted_untried": ["backend", "speculative"],
        "counts": dict.fromkeys(EVENTS, 0) | {"door_refused": 1},
    }


def test_every_value_of_the_document_is_of_a_plain_type() -> None:
    """The engine packs it for another process."""

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(type(key) is str and plain(inner) for key, inner in value.items())
        return all(plain(inner) for inner in value) if type(value) is list else type(value) in {str, int, type(None)}

    assert plain(presence().document())


def test_a_process_of_no_role_has_no_active_guards() -> None:
    assert presence().document()["guards"] == []
    assert presence().document()["role"] is None


def test_the_state_of_a_scheduler_shows_the_document() -> None:
    shown, seen = presence(), []

    def get_internal_state(*given: Any) -> Any:
        seen.append(given)
        return SimpleNamespace(internal_state={"mine": 1})

    answer = shown.add_to_state(get_internal_state, "scheduler", "request")
    assert answer.internal_state == {"mine": 1, "kvfence": shown.document()}
    assert seen == [("scheduler", "request")]


@pytest.mark.parametrize("state", [None, "text", [1]])
def test_a_state_of_another_kind_is_left_alone(state: Any) -> None:
    answer = presence().add_to_state(lambda *_: SimpleNamespace(internal_state=state), None, None)
    assert answer.internal_state == state


def test_metrics_count_what_happens(registry: CollectorRegistry) -> None:
    shown = presence()
    shown.announce("decode", metrics=True)
    shown.tally.count("disagreed")
    shown.tally.count("disagreed")
    value = registry.get_sample_value
    assert value("kvfence_guard_events_total", {"role": "decode", "event": "disagreed"}) == 2
    assert value("kvfence_guard_events_total", {"role": "decode", "event": "door_refused"}) == 0
    assert {value("kvfence_guard_active", {"role": "decode", "guard": guard}) for guard in GUARDS} == {1}


def test_a_process_that_changes_its_role_keeps_its_metrics(registry: CollectorRegistry) -> None:
    shown = presence()
    for role in ("prefill", "decode"):
        shown.announce(role, metrics=True)
        shown.tally.count("notices")
    for role in ("prefill", "decode"):
        assert registry.get_sample_value("kvfence_guard_events_total", {"role": role, "event": "notices"}) == 1


def test_a_server_without_metrics_makes_none(registry: CollectorRegistry) -> None:
    shown = presence()
    shown.announce("decode", metrics=False)
    shown.tally.count("disagreed")
    assert list(registry.collect()) == []
