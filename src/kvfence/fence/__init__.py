"""The handoff of one request's KV from prefill to decode, as pure machines that take events and give commands.

`Prefill` and `Decode` are one rank each. Whoever drives them (the embedded engine with processes, the simulator with a
scheduler of its own) carries the messages, keeps the timers and moves the bytes; what may happen to a page is decided
here alone.
"""

from kvfence.fence.config import Config
from kvfence.fence.decode import Decode
from kvfence.fence.mechanisms import ALL, PROPERTIES, SWITCHES, Mechanisms
from kvfence.fence.prefill import Prefill

__all__ = ["ALL", "PROPERTIES", "SWITCHES", "Config", "Decode", "Mechanisms", "Prefill"]
