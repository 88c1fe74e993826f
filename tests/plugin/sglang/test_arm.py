"""A server starts with every guard in place, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvfence.plugin.sglang import register
from kvfence.plugin.sglang.arm import TARGETS
from kvfence.plugin.sglang.engine import NAMES
from tests.plugin.sglang.conftest import Install
from tests.plugin.sglang.parts import FAILED, give
from tests.plugin.sglang.standin import NEWEST, RECORDED, RELEASES, Build, Sglang

PREFILL, DECODE = "disaggregation.prefill.PrefillBootstrapQueue", "disaggregation.decode.DecodePreallocQueue"


def words(form: str) -> list[str]:
    return [word.strip() for word in form.strip("()").split(",")]


def added(form: str) -> str:
    return f"({', '.join([*words(form), 'more='])})"


def removed(form: str) -> str:
    return f"({', '.join(words(form)[:-1])})"


def renamed(form: str) -> str:
    *rest, last = words(form)
    return f"({', '.join([*rest, 'other' + '=' * last.endswith('=')])})"


def demanded(form: str) -> str:
    return form.replace("=", "")


CHANGES: dict[str, Callable[[str], str]] = {
    "added": added,
    "removed": removed,
    "renamed": renamed,
    "demanded": demanded,
}
CHANGED = [
    pytest.param(target, change, id=f"{target.rpartition('disaggregation.')[2]}-{name}")
    for target in TARGETS
    for name, change in CHANGES.items()
    if change(RECORDED[target][NEWEST]) != RECORDED[target][NEWEST]
]


def stands(sglang: Sglang, target: str) -> bool:
    owner, _, name = target.rpartition(".")
    module, _, kind = owner.rpartition(".")
    found = getattr(getattr(sglang.module(module), kind), name) if kind[0].isupper() else None
    return hasattr(found or getattr(sglang.module(owner), name), "__wrapped__")


@pytest.mark.parametrize("sglang", RELEASES, indirect=True)
def test_all_guards_stand_in_every_recorded_release(sglang: Sglang) -> None:
    sglang.load(register)
    assert [target for target in TARGETS if not stands(sglang, target)] == []
    assert len(TARGETS) == 14


@pytest.mark.parametrize("called", ["0.5.19+g12", "0.5.19+cu128.local"])
def test_a_build_of_a_recorded_release_is_that_release(install: Install, called: str) -> None:
    sglang = install(Build("0.5.19", called=called))
    sglang.load(register)
    assert all(stands(sglang, target) for target in TARGETS)


def missed(target: str) -> str:
    """Give what is said of a function that is not there."""
    if target.endswith(".prepare_abort"):
        return "prefill.PrefillBootstrapQueue.__init__ is absent"
    return f"{target} is {'[(]self, ' if target.endswith('.__init__') else 'absent'}"


@pytest.mark.parametrize("target", TARGETS)
def test_an_absent_function_stops_the_server(install: Install, target: str) -> None:
    with pytest.raises(SystemExit, match=missed(target)):
        install(Build(absent=(target,))).load(register)


@pytest.mark.parametrize("target", TARGETS)
def test_a_renamed_function_stops_the_server(install: Install, target: str) -> None:
    with pytest.raises(SystemExit, match=missed(target)):
        install(Build(renamed={target: "another_name"})).load(register)


@pytest.mark.parametrize(("target", "change"), CHANGED)
def test_a_changed_signature_stops_the_server(install: Install, target: str, change: Callable[[str], str]) -> None:
    sglang = install(Build(forms={target: change(RECORDED[target][NEWEST])}))
    with pytest.raises(SystemExit, match=target):
        sglang.load(register)
    assert not any(stands(sglang, one) for one in TARGETS)


@pytest.mark.parametrize("name", set(NAMES) - set(TARGETS))
def test_an_absent_name_stops_the_server(install: Install, name: str) -> None:
    with pytest.raises(SystemExit):
        install(Build(absent=(name,))).load(register)


@pytest.mark.parametrize(
    "called", ["0.5.24", "0.5.10", "0.5.19.post9", "0.5.19rc1", "0.5.19.dev3+g12", "0.0.0", "nightly"]
)
def test_an_unknown_release_stops_the_server(install: Install, called: str) -> None:
    with pytest.raises(SystemExit, match="KVFENCE_SGLANG_UNKNOWN_RELEASE=try"):
        install(Build(called=called)).load(register)


def test_an_unknown_release_is_held_to_the_newest_signatures(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFENCE_SGLANG_UNKNOWN_RELEASE", "try")
    sglang = install(Build(called="0.6.0"))
    sglang.load(register)
    assert all(stands(sglang, target) for target in TARGETS)
    with pytest.raises(SystemExit, match="the guards know it as"):
        install(Build("0.5.11", called="0.6.0")).load(register)


@pytest.mark.parametrize("target", TARGETS)
def test_a_guard_that_the_registry_passes_over_stops_the_server(sglang: Sglang, target: str) -> None:
    sglang.module("plugins.hook_registry").HookRegistry.deaf.add(f"sglang.srt.{target}")
    with pytest.raises(SystemExit, match=f"{target}: SGLang's hook registry did not apply"):
        sglang.load(register)


def test_guards_that_stand_already_are_not_taken_for_ones_that_were_applied(sglang: Sglang) -> None:
    sglang.load(register)
    with pytest.raises(SystemExit, match="did not apply"):
        register()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BATCH_BYTES", "0"),
        ("BATCH_BYTES", "64M"),
        ("PREFILL_LIMIT", "-1"),
        ("PREFILL_LIMIT", "\u0661"),
        ("SILENT_PEER", "maybe"),
        ("UNKNOWN_RELEASE", "yes"),
        ("ACCEPT", "speculative, warp-drive"),
        ("BATCH_BYTE", "1"),
    ],
)
def test_a_wrong_setting_stops_the_server(
    sglang: Sglang, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"KVFENCE_SGLANG_{variable}", value)
    with pytest.raises(SystemExit, match=f"KVFENCE_SGLANG_{variable}"):
        sglang.load(register)


@pytest.mark.parametrize("name", ["kvfence.plugin.sglang.arm", "kvfence.plugin.sglang.coverage"])
def test_a_plugin_that_cannot_be_imported_stops_the_server(
    sglang: Sglang, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delitem(sys.modules, "kvfence.plugin.sglang.arm", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match="does not start without its guards"):
        sglang.load(register)


def test_an_engine_that_cannot_be_imported_stops_the_server(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    sglang = install(Build())
    monkeypatch.setitem(sys.modules, "sglang.srt.disaggregation.mooncake.conn", None)
    with pytest.raises(SystemExit, match=r"TransferInfo\.from_zmq is absent"):
        sglang.load(register)


def test_without_sglang_there_is_nothing_to_guard() -> None:
    with pytest.raises(SystemExit, match="sglang"):
        register()


@pytest.mark.parametrize("sglang", RELEASES, indirect=True)
@pytest.mark.parametrize("path", [PREFILL, DECODE])
def test_a_server_of_either_role_starts_and_says_so(
    sglang: Sglang, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    sglang.load(register)
    caplog.set_level("INFO")
    assert begin(sglang, path).kv_manager is not None
    role = "prefill" if path is PREFILL else "decode"
    assert f"guards {role} of sglang {sglang.release}: door, coverage, notices, batches" in caplog.text


@pytest.mark.parametrize("path", [PREFILL, DECODE])
def test_a_server_with_an_untried_feature_does_not_start(sglang: Sglang, path: str) -> None:
    sglang.load(register)
    with pytest.raises(Exception, match="KVFENCE_SGLANG_ACCEPT=speculative"):
        begin(sglang, path, speculative_algorithm="EAGLE")


def begin(sglang: Sglang, path: str, **arguments: Any) -> Any:
    module, _, kind = path.rpartition(".")
    scheduler = sglang.module("managers.scheduler").Scheduler(SimpleNamespace(**arguments), SimpleNamespace())
    given = give(RECORDED[f"{path}.__init__"][sglang.release], scheduler=scheduler, max_total_num_tokens=1024)
    return getattr(sglang.module(module), kind)(**given)


@pytest.mark.parametrize("sglang", ["0.5.12", NEWEST], indirect=True)
def test_what_imported_a_guarded_function_by_name_has_the_guard_too(sglang: Sglang) -> None:
    sglang.load(register)
    req = SimpleNamespace()
    sglang.module("disaggregation.decode").prepare_abort(req, FAILED + "kvfence-refused:400:Too long.")
    assert (req.finished_reason.message, req.finished_reason.status_code) == ("Too long.", 400)


def test_state_shows_the_guards(sglang: Sglang) -> None:
    sglang.load(register)
    scheduler = sglang.module("managers.scheduler").Scheduler()
    shown = scheduler.get_internal_state(None).internal_state
    assert shown["kvfence"]["release"] == NEWEST
    assert shown["last_gen_throughput"] == 0.0
