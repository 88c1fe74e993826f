"""Arm: check the engine, apply the guards through its hook registry, and see that each one stands."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from kvfence.errors import InputError
from kvfence.plugin.sglang.batches import Batches
from kvfence.plugin.sglang.coverage import Coverage, note_prefix
from kvfence.plugin.sglang.door import Door
from kvfence.plugin.sglang.engine import SRT, Engine, resolve
from kvfence.plugin.sglang.limits import Limits
from kvfence.plugin.sglang.notices import Notices, told_reason
from kvfence.plugin.sglang.presence import Presence
from kvfence.plugin.sglang.settings import Settings, from_environment
from kvfence.plugin.sglang.signatures import demand_known
from kvfence.plugin.sglang.suited import demand_suited
from kvfence.plugin.sglang.tally import Tally

Guard = Callable[..., Any]

TARGETS = (
    "disaggregation.prefill.PrefillBootstrapQueue.__init__",
    "disaggregation.prefill.PrefillBootstrapQueue.add",
    "disaggregation.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk",
    "disaggregation.decode.DecodePreallocQueue.__init__",
    "disaggregation.decode.DecodePreallocQueue.add",
    "disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req",
    "disaggregation.utils.MetadataBuffers.set_buf",
    "disaggregation.utils.prepare_abort",
    "disaggregation.common.utils.FastQueue.get",
    "disaggregation.mooncake.conn.TransferInfo.from_zmq",
    "disaggregation.mooncake.conn.MooncakeKVReceiver.send_metadata",
    "disaggregation.mooncake.conn.MooncakeKVManager.send_aux",
    "distributed.device_communicators.mooncake_transfer_engine.MooncakeTransferEngine.batch_transfer_sync",
    "managers.scheduler.Scheduler.get_internal_state",
)
"""The functions that guards stand before, below `sglang.srt`."""


def arm() -> None:
    """Arm this process.

    Raises:
        InputError: a setting is wrong, the release is unknown, or a guard does not stand.

    """
    settings = from_environment(os.environ)
    release = version("sglang")
    demand_known(release, TARGETS, settings.unknown_release)
    apply(dict(zip(TARGETS, _guards(release, settings), strict=True)))


def _guards(release: str, settings: Settings) -> list[Guard]:
    """Make the guards, in the order of `TARGETS`."""
    engine, tally, limits = Engine(), Tally(), Limits(settings.prefill_limit)
    notices = Notices(engine, tally)
    door = Door(engine, limits, notices, tally)
    coverage = Coverage(engine, limits, notices, tally, settings.silent_peer)
    batches = Batches(engine, tally, settings.batch_bytes)
    presence = Presence(release, settings, limits, tally)

    def begin(role: str, init: Guard, queue: Any, *given: Any, **named: Any) -> None:
        init(queue, *given, **named)
        arguments = queue.scheduler.server_args
        demand_suited(arguments, settings.accept)
        if role == "prefill":
            batches.manager = queue.kv_manager
        presence.announce(role, metrics=bool(getattr(arguments, "enable_metrics", False)))

    return [
        partial(begin, "prefill"),
        door.prefill,
        coverage.send_chunk,
        partial(begin, "decode"),
        door.decode,
        coverage.commit,
        coverage.set_row,
        told_reason,
        batches.next_chunk,
        notices.announcement,
        partial(note_prefix, engine),
        batches.send_row,
        batches.transfer,
        presence.add_to_state,
    ]


def apply(guards: dict[str, Guard]) -> None:
    """Put guards before their targets, and see that each one stands.

    The registry logs a hook that it cannot apply and goes on, so what stands is looked at afterwards.

    Raises:
        InputError: a guard does not stand.

    """
    hooks = importlib.import_module(SRT + "plugins.hook_registry")
    before = {target: resolve(target) for target in guards}
    for target, guard in guards.items():
        hooks.HookRegistry.register(SRT + target, guard, hooks.HookType.AROUND)
    hooks.HookRegistry.apply_hooks()
    for target, original in before.items():
        if resolve(target) in (original, None):
            raise InputError(target, "SGLang's hook registry did not apply the guard; see its log above")
