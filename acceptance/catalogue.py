"""Which releases are run, in which configurations, and with which traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Role = Literal["prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")

VERSIONS: Final = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
CONTEXT: Final = 4096
"""Tokens of prompt and answer that both roles advertise."""
SMALL_POOL: Final = 1024
LARGE_POOL: Final = 8192
HEADROOM: Final = 6
"""A scheduler refuses prompts from `min(context, pool) - 6` tokens on, in each of these releases."""
PATIENCE: Final = 10.0
"""Seconds that decode is told to wait for prefill. SGLang's default is 300."""
PLUGIN: Final = "kvfence"
"""The plugin's entry point. SGLang loads what SGLANG_PLUGINS names, so another name keeps it out."""
NO_PLUGIN: Final = "none"

SCENARIOS: Final = (
    *("unlearned", "normal", "retraction", "rebootstrap", "role-switch", "incident", "boundary", "stream"),
    *("pretence", "flood", "pin", "batches", "afterwards"),
)

_SPECIAL: Final = ("unlearned", "retraction", "rebootstrap", "role-switch", "batches")
USUAL: Final = tuple(name for name in SCENARIOS if name not in _SPECIAL)


@dataclass(frozen=True)
class Configuration:
    """How a pair is started, and what is sent to it.

    Args:
        name: as the table spells it.
        prefill_pool: tokens of prefill's KV pool.
        flags: for both roles.
        prefill_flags: for prefill alone.
        decode_flags: for decode alone.
        environ: variables of both roles.
        prefill_environ: variables of prefill alone.
        decode_environ: variables of decode alone.
        since: the first release that has it.
        scenarios: what is sent to it.

    """

    name: str
    prefill_pool: int = SMALL_POOL
    flags: tuple[str, ...] = ()
    prefill_flags: tuple[str, ...] = ()
    decode_flags: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    prefill_environ: dict[str, str] = field(default_factory=dict)
    decode_environ: dict[str, str] = field(default_factory=dict)
    since: str = VERSIONS[0]
    scenarios: tuple[str, ...] = USUAL

    @property
    def limit(self) -> int:
        """The shortest prompt that prefill's scheduler refuses, in tokens."""
        return min(CONTEXT, self.prefill_pool) - HEADROOM

    def runs_on(self, version: str) -> bool:
        """Whether a release has what this asks for."""
        return VERSIONS.index(version) >= VERSIONS.index(self.since)

    def flags_of(self, role: Role) -> tuple[str, ...]:
        """Give the flags of a role that others do not have."""
        pool = {"prefill": self.prefill_pool, "decode": LARGE_POOL}[role]
        own = {"prefill": self.prefill_flags, "decode": self.decode_flags}[role]
        return ("--max-total-tokens", str(pool), *self.flags, *own)

    def environ_of(self, role: Role) -> dict[str, str]:
        """Give the variables of a role that others do not have."""
        own = {"prefill": self.prefill_environ, "decode": self.decode_environ}[role]
        return {"SGLANG_PLUGINS": NO_PLUGIN} | self.environ | own


_LOADS: Final = ("flood", "pin")
"""Where the long prompts are admitted, these are ordinary load, and say nothing."""
_BRIEF: Final = ("normal", "incident", "boundary", "afterwards")
"""What a feature must not disturb, and what the guards must do with it on."""
_GUARDED: Final = {"SGLANG_PLUGINS": PLUGIN}
_TRUNCATE: Final = ("--allow-auto-truncate",)
_SMALL: Final = {"KVFENCE_SGLANG_BATCH_BYTES": "4096"}
"""Four tokens a transfer call: a prompt of this model is a thousand times smaller than a real one."""
_CORES: Final = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
_RETRACT: Final = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "20"}

CONFIGURATIONS: Final = (
    Configuration("equal", prefill_pool=LARGE_POOL, scenarios=tuple(one for one in USUAL if one not in _LOADS)),
    Configuration("unequal"),
    Configuration("auto-truncate", flags=_TRUNCATE),
    Configuration("plugin", environ=_GUARDED, scenarios=("unlearned", *USUAL)),
    Configuration("plugin-auto-truncate", flags=_TRUNCATE, environ=_GUARDED),
    Configuration(
        "plugin-radix", decode_flags=("--disaggregation-decode-enable-radix-cache",), environ=_GUARDED, scenarios=_BRIEF
    ),
    Configuration("plugin-retract", environ=_GUARDED, decode_environ=_RETRACT, scenarios=("retraction", *_BRIEF)),
    Configuration("plugin-rebootstrap", environ=_GUARDED, scenarios=("rebootstrap", *_BRIEF)),
    Configuration(
        "plugin-optimistic", prefill_flags=("--optimistic-prefill-attempts", "1"), environ=_GUARDED, scenarios=_BRIEF
    ),
    Configuration("plugin-small-batches", environ=_GUARDED | _SMALL, scenarios=("normal", "batches", "afterwards")),
    Configuration("plugin-tp", flags=("--tp-size", "2"), environ=_GUARDED | _CORES, scenarios=_BRIEF),
    Configuration(
        "plugin-role-switch",
        flags=("--enable-pd-role-switch",),
        environ=_GUARDED,
        since="0.5.21",
        scenarios=("role-switch", *_BRIEF),
    ),
)
"""In the order of their running: what `equal` answers is what the others must answer too."""
