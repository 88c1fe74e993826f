"""An operator sets what the guards do by environment variables, and a slip is an error that names its variable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.errors import InputError
from kvfence.plugin.sglang.settings import PREFIX, Settings, SilentPeer, UnknownRelease, from_environment
from kvfence.plugin.sglang.suited import UNTRIED


def test_what_is_not_set_has_its_default() -> None:
    assert from_environment({"PATH": "/bin", "SGLANG_PLUGINS": "kvfence"}) == Settings()
    assert Settings().silent_peer is SilentPeer.DENY
    assert Settings().unknown_release is UnknownRelease.STOP


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_value_is_no_value(blank: str) -> None:
    assert from_environment({PREFIX + "PREFILL_LIMIT": blank}) == Settings()


def test_every_setting_is_read() -> None:
    values = {
        "PREFILL_LIMIT": "1018",
        "SILENT_PEER": "allow",
        "BATCH_BYTES": " 4096 ",
        "UNKNOWN_RELEASE": "try",
        "ACCEPT": "speculative, backend,",
    }
    read = from_environment({PREFIX + name: value for name, value in values.items()})
    accepted = frozenset({"speculative", "backend"})
    assert read == Settings(1018, SilentPeer.ALLOW, 4096, UnknownRelease.TRY, accepted)


@pytest.mark.parametrize("name", ["PREFILL_LIMIT", "BATCH_BYTES"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1_000", "1e3", "0x10", "\u0663", "many", "9" * 5000])
def test_a_count_is_a_whole_number_above_0(name: str, value: str) -> None:
    with pytest.raises(InputError, match=PREFIX + name):
        from_environment({PREFIX + name: value})


@pytest.mark.parametrize(("name", "value"), [("SILENT_PEER", "DENY"), ("UNKNOWN_RELEASE", "1"), ("ACCEPT", "magic")])
def test_a_choice_is_one_of_those_there_are(name: str, value: str) -> None:
    with pytest.raises(InputError, match=PREFIX + name):
        from_environment({PREFIX + name: value})


@given(name=st.text(max_size=20))
def test_another_name_under_the_prefix_is_an_error(name: str) -> None:
    known = {"PREFILL_LIMIT", "SILENT_PEER", "BATCH_BYTES", "UNKNOWN_RELEASE", "ACCEPT"}
    if name not in known:
        with pytest.raises(InputError, match="no such setting"):
            from_environment({PREFIX + name: "1"})


@given(accepted=st.frozensets(st.sampled_from(sorted(UNTRIED))))
def test_any_untried_features_may_be_accepted(accepted: frozenset[str]) -> None:
    assert from_environment({PREFIX + "ACCEPT": ",".join(accepted)}).accept == accepted
