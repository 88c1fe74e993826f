"""How KV travels: a small interface, and a file a transport. What proves that a write is over: `fence/proof.py`."""

from kvfence.engine.transport.base import Carrier, Receiver, Refused, carrier_of, receiver_of

__all__ = ["TRANSPORTS", "Carrier", "Receiver", "Refused", "carrier_of", "receiver_of"]

TRANSPORTS = ("shared-memory", "tcp-epoch")
