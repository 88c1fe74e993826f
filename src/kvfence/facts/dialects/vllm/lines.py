"""The lines of vLLM's log that say something, by what makes each unmistakable.

Seen in logs of 0.32.0. A line of its own begins with a process, a level, a time without a year and a place in the
source: what is looked for is looked for right behind that, since a request log quotes prompts. The lines of uvicorn
have none of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

HEAD = re.compile(
    r"(?:\((?P<process>[\w-]{1,60}) pid=\d{1,10}\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r" \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? \[[^\]\s]{1,200}:\d{1,6}\] "
)
UVICORN = re.compile(r"(?:\([\w-]{1,60} pid=\d{1,10}\) )?INFO: {1,8}")
STAMPED = re.compile(rb"(?m)^.{0,120}(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]\s]+:\d+\] ")

# What processes of one server call themselves; they are one worker.
PROCESSES = re.compile(r"(?:^| )(?:APIServer|ApiServer|EngineCore|Worker|VllmWorker|DPCoordinator)(?:_\w+)?$")


class Says(Enum):
    """What a line is about."""

    ARGUMENTS = auto()
    VERSION = auto()
    ENGINE = auto()
    ARCHITECTURE = auto()
    CONTEXT = auto()
    FITTED = auto()
    POOL = auto()
    LISTENING = auto()
    READY = auto()
    REFUSED_START = auto()
    USAGE = auto()


@dataclass(frozen=True)
class Form:
    """A kind of line.

    Args:
        says: what it is about.
        needle: text that every such line holds, and few others do.
        shape: what is taken out of it, from the end of the line's head on.
        head: what stands before it.

    """

    says: Says
    needle: str
    shape: re.Pattern[str]
    head: re.Pattern[str] = HEAD


_TOKENS = r"\d{1,3}(?:,\d{3}){0,4}|\d{1,15}"

FORMS: tuple[Form, ...] = (
    Form(Says.ARGUMENTS, "non-default args: ", re.compile(r"non-default args: (?P<given>\{.*)", re.DOTALL)),
    Form(Says.VERSION, "  version ", re.compile(r"[\s█▄▀]{8,60}  version (?P<version>\S{1,40})\s*$")),
    Form(Says.VERSION, "server version ", re.compile(r"vLLM (?:API )?server version (?P<version>[^\s,]{1,40})")),
    Form(
        Says.ENGINE,
        " LLM engine (v",
        re.compile(r"Initializing a V\d LLM engine \(v(?P<version>[^)\s]{1,40})\) with config: (?P<config>.*)"),
    ),
    Form(Says.ARCHITECTURE, "Resolved architecture: ", re.compile(r"Resolved architecture: (?P<type>\w{1,100})\s*$")),
    Form(Says.CONTEXT, "Using max model len ", re.compile(r"Using max model len (?P<context>\d{1,15})\s*$")),
    Form(
        Says.FITTED,
        "Auto-fit max_model_len: ",
        re.compile(r"Auto-fit max_model_len: reduced from \d{1,15} to (?P<context>\d{1,15}) to fit"),
    ),
    Form(
        Says.POOL,
        "KV cache size: ",
        re.compile(rf"[\w +]{{2,20}} KV cache size: (?P<pool>{_TOKENS}) tokens\b"),
    ),
    Form(
        Says.LISTENING,
        "Starting vLLM ",
        re.compile(
            r"Starting vLLM (?:API )?server(?: \d{1,4})? on \w+://(?P<host>\[[^\]]+\]|[^\s:]+):(?P<port>\d{1,5})"
        ),
    ),
    Form(Says.READY, "Application startup complete.", re.compile(r"Application startup complete\."), UVICORN),
    Form(
        Says.REFUSED_START,
        "To serve at least one request with the model's max seq len",
        re.compile(
            r"ValueError: (?P<why>To serve at least one request with the model's max seq len \((?P<context>\d{1,15})\)"
            r"[^\"']{0,200}?estimated maximum model length is (?P<fits>\d{1,15}))"
        ),
    ),
    Form(
        Says.USAGE,
        " KV cache usage: ",
        re.compile(r"Engine \d{1,4}: .{0,300}? KV cache usage: (?P<usage>\d{1,3}\.\d)%"),
    ),
)

# Of the configuration that an engine prints, what `arguments.FIELDS` has.
CONFIG = re.compile(
    r"(?:^|, )(?P<name>tensor_parallel_size|pipeline_parallel_size|data_parallel_size|decode_context_parallel_size"
    r"|quantization|kv_cache_dtype|enable_prefix_caching|dtype|device_config)=(?P<value>[\w.]{1,40})(?=, |$)"
)

NEEDLES: tuple[bytes, ...] = tuple(form.needle.encode() for form in FORMS)
