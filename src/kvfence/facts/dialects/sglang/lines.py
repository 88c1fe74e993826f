"""The lines of SGLang's logs that say something, by what makes each unmistakable.

Formats were read in every release from 0.4.6 to 0.5.23 and differ in punctuation and in fields added
over time; each expression takes all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from kvfence.facts.dialects.sglang import guards


class Says(Enum):
    """What a line is about."""

    DUMP = auto()
    COMMAND = auto()
    SUMMARY = auto()
    POOL = auto()
    POOL_HOLDS = auto()
    SLIDING = auto()
    WEIGHTS = auto()
    POST_CAPTURE = auto()
    DECODE_ROLE = auto()
    BOOTSTRAP = auto()
    LISTENING = auto()
    READY = auto()
    STOPPED = auto()
    REFUSED_START = auto()
    WORDING = auto()
    DTYPE = auto()
    REFUSAL = auto()
    TRUNCATED = auto()
    WAIT = auto()
    FINISH = auto()
    FULL = auto()
    RETRACTED = auto()
    CANARY = auto()
    GUARDS = auto()


@dataclass(frozen=True)
class Form:
    """A kind of line.

    Args:
        says: what it is about.
        needle: bytes that every such line holds, and few others do.
        shape: what is taken out of it.
        wording: the row of `log_wording.tsv` it proves, if it proves one by itself.

    """

    says: Says
    needle: str
    shape: re.Pattern[str]
    wording: str | None = None


_GB = r"(\d{1,12}(?:\.\d{1,9})?) ?GB"

FORMS: tuple[Form, ...] = (
    Form(Says.DUMP, "server_args=", re.compile(r"server_args=(?P<dump>(?:ServerArgs\(|\{).*)", re.DOTALL)),
    Form(
        Says.COMMAND,
        "sglang.launch_server",
        re.compile(r"-m\s+sglang\.launch_server\s+(?P<flags>-[^<]*)$"),
    ),
    Form(Says.COMMAND, "sglang serve ", re.compile(r"sglang serve\s+(?P<flags>-[^<]*)$")),
    Form(
        Says.SUMMARY,
        "max_total_num_tokens=",
        re.compile(
            r"max_total_num_tokens=(?P<pool>\d{1,15}),(?: chunked_prefill_size=(?:-?\d{1,15}|None), "
            r"max_prefill_tokens=\d{1,15}, max_running_requests=(?P<running>\d{1,15}),)?"
            r" context_len=(?P<context>\d{1,15})(?P<memory>, available_[cg]pu_mem=)?"
        ),
    ),
    Form(
        Says.POOL,
        "KV Cache ",
        re.compile(
            r"KV Cache (?P<kind>is allocated|VA upper bound)\.(?: dtype: (?P<dtype>\S+),)?"
            rf" #tokens: (?P<tokens>\d{{1,15}}),? (?:K(?: size)?:? {_GB}, V(?: size)?:? {_GB}|KV(?: size)?:? {_GB})"
        ),
    ),
    Form(
        Says.POOL_HOLDS,
        "KV pool holds ",
        re.compile(r"KV pool holds (?P<pool>\d{1,15}) tokens, fewer than --context-length (?P<context>\d{1,15})"),
        wording="pool-below-context",
    ),
    Form(
        Says.SLIDING,
        "liding window memory pool",
        re.compile(
            r"Use (?P<capital>S|s)liding window memory pool(?: \(all SWA\))?\."
            r"(?: full_layer_tokens=(?P<full>\d{1,15}),)? swa_layer_tokens=(?P<swa>\d{1,15})"
        ),
    ),
    Form(
        Says.WEIGHTS,
        "Load weight end.",
        re.compile(
            r"Load weight end\. (?P<elapsed>elapsed=\d{1,12}(?:\.\d{1,9})? s, )?type=(?P<type>\w+)(?P<dtype>, dtype=)?"
        ),
    ),
    Form(
        Says.POST_CAPTURE,
        "Post-capture KV sizing: ",
        re.compile(
            r"Post-capture KV sizing: (?:full_layer_tokens=(?P<full>\d{1,15}), swa_layer_tokens=(?P<swa>\d{1,15}))?"
        ),
        wording="post-capture",
    ),
    Form(
        Says.DECODE_ROLE,
        "chunk cache for decode server",
        re.compile(r"KV cache is forced as chunk cache for decode server"),
        wording="decode-chunk-cache",
    ),
    Form(
        Says.DECODE_ROLE,
        "disabled for decode server",
        re.compile(r"Radix cache is disabled for decode server"),
        wording="decode-no-radix",
    ),
    Form(
        Says.BOOTSTRAP,
        "BootstrapServer started",
        re.compile(r"BootstrapServer started successfully on (?P<host>\[[^\]]+\]|[^\s:]+):(?P<port>\d{1,15})"),
    ),
    Form(
        Says.LISTENING,
        "Uvicorn running on ",
        re.compile(r"Uvicorn running on \w+://(?P<host>.+?):(?P<port>\d{1,15})\b"),
    ),
    Form(Says.READY, "server is fired up", re.compile(r"The server is fired up and ready to roll")),
    Form(Says.STOPPED, "SIGTERM received. ", re.compile(r"SIGTERM received\. ")),
    Form(Says.STOPPED, "Finished server process", re.compile(r"Finished server process \[\d{1,10}\]")),
    Form(
        Says.REFUSED_START,
        "Not enough memory. Please try",
        re.compile(r"(?P<why>Not enough memory\. Please try to increase --mem-fraction-static)"),
    ),
    Form(
        Says.REFUSED_START,
        "leave no GPU memory for the KV cache",
        re.compile(r"(?P<why>Loaded weights leave no GPU memory for the KV cache)"),
    ),
    Form(
        Says.REFUSED_START,
        "state cache is too small",
        re.compile(r"(?P<why>Hybrid \(mamba/linear-attention\) state cache is too small to serve any requests)"),
    ),
    Form(
        Says.REFUSED_START,
        "no attacher registered",
        re.compile(r"(?P<why>kv-canary: no attacher registered for pool class (?P<pool>\w+))"),
    ),
    Form(
        Says.WORDING,
        "Init torch distributed begin",
        re.compile("Init torch distributed begin"),
        "init-distributed",
    ),
    Form(Says.WORDING, "Init parallel begin", re.compile("Init parallel begin"), "init-parallel"),
    Form(Says.WORDING, "Memory baseline taken", re.compile("Memory baseline taken"), "memory-baseline"),
    Form(Says.WORDING, "Engine startup timings", re.compile(r"Engine startup timings \(s\)"), "startup-timings"),
    Form(Says.DTYPE, "Using KV cache dtype", re.compile(r"Using KV cache dtype: (?P<dtype>\S+)"), "kv-dtype-line"),
    Form(
        Says.REFUSAL,
        "exceeds the maximum allowed length (",
        re.compile(
            r"(?P<told>Error: )?(?<!\")Input length \((?P<tokens>\d{1,15}) tokens\) exceeds the maximum allowed length"
            r" \((?P<limit>\d{1,15}) tokens\)\.[^'\"]{0,400}?(?:, self\.rid='(?P<rid>[^']{0,400})'|$)"
        ),
    ),
    Form(
        Says.TRUNCATED,
        "KV cache pool size or the max context length. Truncated",
        re.compile(
            r"Truncated\. len\(req\.origin_input_ids\)=(?P<tokens>\d{1,15}), max_req_input_len=(?P<limit>\d{1,15})"
        ),
    ),
    Form(
        Says.WAIT,
        "Decode transfer failed for request",
        re.compile(
            r"Decode transfer failed for request (?:rank=\d{1,15} )?decode_req\.req\.rid='(?P<rid>[^']{0,400})'"
            r" decode_req\.req\.bootstrap_room=(?P<room>\w{1,40}).{0,400}?"
            r"(?:timed out after (?P<seconds>\d{1,12}(?:\.\d{1,9})?)s in KVPoll\.WaitingForInput"
            r"|(?P<aborted>Aborted by AbortReq))"
        ),
    ),
    Form(Says.FINISH, "Finish: obj=", re.compile(r"Finish: obj=(?P<rest>.*)", re.DOTALL)),
    Form(Says.FINISH, '"request.finished"', re.compile(r'(?P<rest>.*"request\.finished".*)', re.DOTALL)),
    Form(Says.FULL, "token usage: 1.00", re.compile(r"token usage: (?P<usage>1\.00)")),
    Form(Says.FULL, "token usage: 0.99", re.compile(r"token usage: (?P<usage>0\.99)")),
    Form(
        Says.RETRACTED,
        "#retracted_reqs: ",
        re.compile(r"#retracted_reqs: (?P<count>\d{1,15})"),
    ),
    Form(
        Says.CANARY,
        "install_canary: ",
        re.compile(r"install_canary: disaggregation_mode=(?P<role>\w+)"),
    ),
    Form(Says.GUARDS, guards.NEEDLE, guards.SHAPE),
)

# Lines that are looked at only after a refusal or a start, when the lines that follow are asked for.
BATCH = re.compile(
    r"(?P<kind>Prefill|Decode) batch\b[^#\"']{0,200}?"
    r"(?:#new-seq: (?P<seqs>\d{1,15}), #new-token: (?P<tokens>\d{1,15})(?:, #cached-token: (?P<cached>\d{1,15}))?"
    r"|#running-req)"
)
BATCH_SIZES = re.compile(rb"#new-seq: (\d{1,15}), #new-token: (\d{1,15})")
USAGE = re.compile(r"token usage: (?P<usage>\d\.\d\d)")
RETRACTED_NOW = re.compile(r"#retracted-req: (?P<count>\d{1,15})")
ACCESS = re.compile(r"\"POST (?P<path>\S+) HTTP/\d{1,12}(?:\.\d{1,9})?\" (?P<status>\d{3})")

NEEDLES: tuple[bytes, ...] = tuple(form.needle.encode() for form in FORMS)
