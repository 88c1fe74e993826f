"""Keep one request's KV cache out of another request's answer."""

from importlib.metadata import version

__version__ = version("kvfence")
