"""What shipped: releases as the mechanisms they lack, and the exposures that are known of them.

A preset switches off what was seen to be missing with the release's defaults. What was not looked at stays on, so
that a breach that is found is one of the release, and a breach that is not found says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvfence.fence.mechanisms import ALL, Mechanisms
from kvfence.simulate.look import Look, look
from kvfence.simulate.scenarios import SCENARIOS


@dataclass(frozen=True)
class Exposure:
    """A way in which a release is known to expose, or to hold.

    Attributes:
        scenario: that shows it.
        property: that breaks; None if the release is known to hold there.
        via: how it comes about; for None, what must not be found.
        says: what it is.
        source: where it is known from.

    """

    scenario: str
    property: str | None
    via: str
    says: str
    source: str


@dataclass(frozen=True)
class Preset:
    """A release."""

    name: str
    off: tuple[str, ...]
    exposures: tuple[Exposure, ...]
    release_after: float = 0.0

    @property
    def mechanisms(self) -> Mechanisms:
        """The mechanisms with the release's defaults."""
        return ALL.without(*self.off, release_after=self.release_after)


_RUN = "run: prefill and decode of the release on CPUs (docs/evidence.md)"
_READ = "read: the release's source"
_TRANSPORT = "run: Mooncake 0.3.13.post1 over TCP, late and reused-source writes"

_NEVER_IN_SGLANG = (
    "cancel-both",
    "binding",
    "coverage",
    "source-hold",
    "release-on-proof",
    "bounded-batches",
    "landing-arena",
    "tags",
    "canary",
    "scope-salt",
    "scrub",
    "skew-refusal",
)

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "sglang-0.5.19",
            ("admission", *_NEVER_IN_SGLANG),
            (
                Exposure(
                    "over-length",
                    "P1",
                    "own",
                    "a refused prompt becomes a one-token stub; decode reads old pages",
                    _RUN,
                ),
                Exposure(
                    "truncated", "P1", "own", "auto-truncate cuts on prefill alone; decode reads old pages", _READ
                ),
                Exposure(
                    "reuse",
                    "P1",
                    "own",
                    "pages return at once, and the failed write lands in the next request",
                    _TRANSPORT,
                ),
                Exposure("reuse", "P1", "wire", "source pages are freed while they are still read", _TRANSPORT),
                Exposure("refused", "P1", "own", "a refusal of any other cause on prefill does the same", _READ),
            ),
        ),
        Preset(
            "sglang-0.5.23",
            _NEVER_IN_SGLANG,
            (
                Exposure("truncated", "P1", "own", "auto-truncate cuts on prefill alone; decode reads old pages", _RUN),
                Exposure(
                    "reuse",
                    "P1",
                    "own",
                    "pages return after 30 s without proof, and the write lands after that",
                    _TRANSPORT,
                ),
                Exposure("reuse", "P1", "wire", "source pages are freed while they are still read", _TRANSPORT),
                Exposure("refused", "P3", "end", "decode is not told, and waits for its time-out", _RUN),
                Exposure("over-length", None, "own", "a refused prompt is refused at the door", _RUN),
            ),
            release_after=30.0,
        ),
        Preset(
            "vllm-0.32",
            ("binding", "tags", "canary", "clean-cache"),
            (
                Exposure("stolen", "P1", "own", "decode answers a prompt from the KV that a reference names", _RUN),
                Exposure("dirty-prefix", "P1", "prefix", "a later request without a reference hits that KV", _RUN),
            ),
        ),
    )
}


@dataclass
class Outcome:
    """An exposure as it came out."""

    exposure: Exposure
    look: Look

    @property
    def as_declared(self) -> bool:
        """Whether it was found, or not found, as it is known."""
        return self.look.sound and self.look.broken == self.exposure.property


def run(preset: Preset, seconds: float) -> Iterator[Outcome]:
    """Look for each known exposure of a release."""
    for exposure in preset.exposures:
        scenario = SCENARIOS[exposure.scenario](preset.mechanisms)
        yield Outcome(exposure, look(replace(scenario, via=(exposure.via,)), seconds))
