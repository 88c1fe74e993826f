"""Every fact that kvfence knows of, by name.

Names follow SGLang's server arguments where one exists, because that is what `/server_info` and the
startup dump print.
"""

from __future__ import annotations

from typing import Any, TypeVar

from kvfence.facts.fact import Key
from kvfence.fence.mechanisms import SWITCHES
from kvfence.knowledge.releases import VersionRange

T = TypeVar("T")

KEYS: dict[str, Key[Any]] = {}

_DUMP = "a log that holds the server_args= line of the start, or GET /server_info"
_LAUNCH = "the launch command, the server_args= line of the log, or GET /server_info"
_OWN = "GET /server_info of the kvfence engine, or the start line of its log"
_SUMMARY = "a log from the start on (its max_total_num_tokens= line), or GET /server_info"


def _key(name: str, kind: type[T], meaning: str, shown_by: str = _LAUNCH) -> Key[T]:
    key = Key(name, kind, meaning, shown_by)
    KEYS[name] = key
    return key


# What it is.
ROLE = _key("role", str, "prefill, decode, unified or router", f"{_LAUNCH}; or --prefill/--decode INPUT")
ENGINE = _key("engine", str, "the serving engine", "its log or its endpoints")
VERSION = _key(
    "version",
    VersionRange,
    "the release, or the range of releases it may be",
    "GET /server_info, or --assume version=X (pip show sglang)",
)
MODEL_PATH = _key("model_path", str, "the model it serves")
SERVED_NAME = _key("served_model_name", str, "the name clients ask for")
ARCHITECTURE = _key(
    "architecture",
    str,
    "the model class, which decides the kind of KV pool",
    "the 'Load weight end' line of the log, or GET /model_info",
)
TAKES_IMAGES = _key("takes_images", bool, "whether the model takes images", "GET /model_info")
HOST = _key("host", str, "the address it listens on")
PORT = _key("port", int, "the TCP port it listens on")
RANDOM_SEED = _key("random_seed", int, "the seed of the process, which tells two starts apart")
NODE_RANK = _key("node_rank", int, "which of several hosts of one worker it is", _DUMP)
DIST_ADDRESS = _key("dist_init_addr", str, "the address at which the hosts of one worker meet", _DUMP)
DEVICE = _key("device", str, "cuda, cpu, npu, …")

# What it can hold.
CONTEXT_LEN = _key("context_len", int, "the context window, in tokens", f"{_SUMMARY}, or GET /v1/models")
ADVERTISED_LEN = _key("advertised_len", int, "the length told to clients, in tokens", "GET /v1/models")
POOL_TOKENS = _key("pool_tokens", int, "KV tokens of the smallest data-parallel rank", _SUMMARY)
LARGEST_POOL_TOKENS = _key(
    "largest_pool_tokens", int, "KV tokens of the largest data-parallel rank, where they differ", _SUMMARY
)
FULL_POOL_TOKENS = _key("full_pool_tokens", int, "KV tokens of the full-attention pool", _SUMMARY)
SWA_POOL_TOKENS = _key("swa_pool_tokens", int, "KV tokens of the sliding-window pool", _SUMMARY)
MAX_INPUT_LEN = _key(
    "max_input_len", int, "the shortest prompt it refuses, in tokens", "GET /server_info (max_req_input_len)"
)
RANK_POOL_BYTES = _key(
    "rank_pool_bytes",
    int,
    "bytes of KV one rank allocated",
    "a log from the start on (its 'KV Cache is allocated' lines)",
)
RANK_POOL_TOKENS = _key(
    "rank_pool_tokens",
    int,
    "KV tokens one rank allocated",
    "a log from the start on (its 'KV Cache is allocated' lines)",
)
POOL_DTYPE = _key(
    "pool_dtype", str, "the number type of the allocated pool", "a log from the start on (0.5.13 or later)"
)
POST_CAPTURE = _key("post_capture_sizing", bool, "whether the pool was sized after graph capture", "a log")
MAX_TOTAL_TOKENS = _key("max_total_tokens", int, "the pool size asked for, in tokens")
PAGE_SIZE = _key("page_size", int, "tokens a page", _DUMP)
KV_DTYPE = _key("kv_cache_dtype", str, "the number type asked for the KV cache", _DUMP)
QUANTIZATION = _key("quantization", str, "the quantisation of the weights", _DUMP)
MEM_FRACTION = _key("mem_fraction_static", float, "the share of device memory for weights and KV", _DUMP)
MAX_RUNNING = _key("max_running_requests", int, "requests that run at once", _DUMP)
RESERVED_DECODE = _key("num_reserved_decode_tokens", int, "tokens decode reserves per request", _DUMP)
TP = _key("tp_size", int, "tensor-parallel width", _DUMP)
DP = _key("dp_size", int, "data-parallel width", _DUMP)
PP = _key("pp_size", int, "pipeline stages", _DUMP)
EP = _key("ep_size", int, "expert-parallel width", _DUMP)
DCP = _key("dcp_size", int, "decode-context-parallel width", _DUMP)
CP = _key("attn_cp_size", int, "attention-context-parallel width", _DUMP)
DP_ATTENTION = _key("enable_dp_attention", bool, "whether attention is data-parallel", _DUMP)
DLLM = _key("dllm_algorithm", str, "the diffusion algorithm, if the model is a diffusion one", _DUMP)
DLLM_BLOCK = _key("dllm_block_size", int, "the block of a diffusion model, in tokens", "--assume")
UNIFIED_MEMORY = _key("enable_unified_memory", bool, "whether KV and states share one pool", _DUMP)
KV_SHARDING = _key("enable_kv_cache_sharding", bool, "whether pages are interleaved over ranks", _DUMP)

# How it hands off.
AUTO_TRUNCATE = _key("allow_auto_truncate", bool, "whether it cuts what is too long", _LAUNCH)
BACKEND = _key("disaggregation_transfer_backend", str, "the transfer backend", _LAUNCH)
CHECKSUM = _key("disaggregation_enable_kv_checksum", bool, "whether it sends and checks a KV checksum")
CANARY = _key("kv_canary", str, "the KV canary's mode: none, log or raise")
CANARY_DATA = _key("kv_canary_real_data", str, "how much KV the canary hashes: none, partial or all")
CANARY_SWEEP = _key("kv_canary_sweep_interval", int, "steps between the canary's sweeps")
ALLOCATION_POLICY = _key("disaggregation_decode_allocation_policy", str, "when decode reserves its pages")
PREFIX_CACHING = _key(
    "enable_prefix_caching",
    bool,
    "whether vLLM keeps a prefix cache",
    "the 'LLM engine' line of vLLM's log, or its GET /metrics",
)
DECODE_RADIX = _key("disaggregation_decode_enable_radix_cache", bool, "whether decode keeps a prefix cache")
ROLE_SWITCH = _key("enable_pd_role_switch", bool, "whether the role can change while serving")
HICACHE = _key("enable_hierarchical_cache", bool, "whether a host tier lies below the pool")
HISPARSE = _key("enable_hisparse", bool, "whether HiSparse is on")
SPECULATIVE = _key("speculative_algorithm", str, "the speculative decoding algorithm")
KV_ROLE = _key(
    "kv_role",
    str,
    "what vLLM may do in a handoff: kv_producer, kv_consumer or kv_both",
    "vLLM's --kv-transfer-config: its launch command, or the 'non-default args' line of its log",
)
BOOTSTRAP_PORT = _key("disaggregation_bootstrap_port", int, "the port of the bootstrap server")
BOOTSTRAP_HOST = _key(
    "bootstrap_host", str, "the address the bootstrap server listens on", "the log of the prefill role"
)

# What kvfence's SGLang plugin states of itself.
_PLUGIN = "GET /server_info (internal_states[].kvfence), or a log from the start on (its 'kvfence … guards' line)"
GUARDS = _key("guards", str, "the active guards of kvfence's SGLang plugin; empty if there are none", _PLUGIN)
GUARDS_SILENT_PEER = _key(
    "guards_silent_peer",
    str,
    "deny or allow: what the guards do with a handoff of which prefill states nothing",
    _PLUGIN,
)
GUARDS_BATCH_BYTES = _key("guards_batch_bytes", int, "bytes that the guards let one transfer call cover", _PLUGIN)
GUARDS_UNTRIED = _key(
    "guards_untried", str, "features it was started with that the guards were never run with", _PLUGIN
)

# What kvfence's own engine states of itself.
MECHANISMS: dict[str, Key[bool]] = {
    switch: _key(
        f"mechanism_{switch.replace('-', '_')}", bool, f"whether the kvfence engine's mechanism {switch} is on", _OWN
    )
    for switch in SWITCHES
}
STRANGE_MECHANISMS = _key(
    "strange_mechanisms", str, "mechanisms the kvfence engine states that kvfence does not know", _OWN
)
TAGS = _key("kv_tags", str, "the tags the kvfence engine can make", "GET /server_info of the kvfence engine")
LAB = _key(
    "lab",
    bool,
    "whether the kvfence engine runs as a lab, to be broken on purpose",
    "GET /server_info of the kvfence engine",
)

# Whom it lets in.
API_KEY_SET = _key("api_key_set", bool, "whether a key is asked of clients")
RETRIES = _key("router_retries", bool, "whether the router sends a failed request again", "its command line")

# What happened.
STARTED = _key("started", bool, "whether it came up ready", "a log from the start on")
START_REFUSED = _key("start_refused", str, "why it refused to start", "a log from the start on")
PEAK_USAGE = _key("peak_token_usage", float, "the highest share of the pool in use", "a log, or GET /metrics")
RETRACTIONS = _key("retractions", int, "requests thrown out of a full pool", "a log, or GET /metrics")

# Facts that say which process or server a source speaks of, not how it is set up.
IDENTITY = frozenset(
    key.name for key in (HOST, PORT, RANDOM_SEED, BOOTSTRAP_HOST, BOOTSTRAP_PORT, NODE_RANK, DIST_ADDRESS)
)
# Facts of the moment, which two looks at one worker may well differ in.
MOMENT = frozenset({PEAK_USAGE.name, RETRACTIONS.name, STARTED.name, START_REFUSED.name})
