"""How fast `kvfence audit` reads a large log, as a ratio to ripgrep in the same run.

A log of 1 GiB as a busy prefill role writes it (batch and access lines), with startup lines at its
head and refusals, full pools and retractions scattered in it. Both commands look for the same fixed
strings; ripgrep only counts lines, kvfence reads, judges and reports. Whole processes are timed, in
turn, several times; the medians and their ratio are printed, and the ratio without the start of the
process, which the audit of a log of three lines shows.

    make bench
    python benchmarks/audit_log.py --mib 256 --runs 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvfence.facts.dialects.sglang.lines import NEEDLES

MIB = 1 << 20
AIM_RATIO, AIM_PEAK_MIB = 3.0, 200

START = """\
[2026-09-01 08:00:00] server_args={'model_path': '/models/m', 'context_length': 131072, 'page_size': 64, 'tp_size': 8, \
'disaggregation_mode': 'prefill', 'disaggregation_transfer_backend': 'mooncake', 'allow_auto_truncate': False}
[2026-09-01 08:02:40 TP0] max_total_num_tokens=98304, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=256, context_len=131072, available_gpu_mem=9.12 GB
[2026-09-01 08:02:41] The server is fired up and ready to roll!
"""


@dataclass
class Run:
    """One process: how long it took and how much memory it held at its peak."""

    seconds: float
    peak_mib: float


def busy_lines(rng: random.Random) -> Iterator[str]:
    """Give blocks of ordinary lines with an interesting one now and then."""
    while True:
        block = []
        for _ in range(2000):
            second = f"[2026-09-01 {rng.randrange(9, 23):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
            if rng.random() < 0.5:
                block.append(
                    f"{second} TP0] Prefill batch, #new-seq: {rng.randrange(1, 9)}, "
                    f"#new-token: {rng.randrange(16, 8192)}, #cached-token: {rng.randrange(4096)}, "
                    f"token usage: 0.{rng.randrange(10, 98)}, #running-req: 0, "
                    f"#queue-req: {rng.randrange(40)}, #pending-token: 0, #bootstrap-req: 0, #inflight-req: 1, "
                    f"#optimistic-req: 0, cuda graph: False, input throughput (token/s): {rng.random() * 9e4:.2f}"
                )
            else:
                port = rng.randrange(30000, 60000)
                block.append(f'{second}] INFO:     10.0.0.9:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK')
        what = rng.random()
        if what < 0.2:
            length = rng.randrange(98298, 131066)
            block.append(
                f"[2026-09-01 12:00:00 TP0] Input length ({length} tokens) exceeds the maximum allowed length "
                "(98298 tokens). Use a shorter input or enable --allow-auto-truncate., "
                f"self.rid='{rng.getrandbits(128):032x}'"
            )
        elif what < 0.5:
            block.append(
                "[2026-09-01 12:00:01 TP0] Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, "
                "token usage: 1.00, #running-req: 0, #queue-req: 12, #inflight-req: 1, input throughput (token/s): 9.10"
            )
        yield "\n".join(block) + "\n"


def write_log(path: Path, size: int) -> None:
    """Write a log of about `size` bytes."""
    blocks = busy_lines(random.Random(20260901))
    cached = [next(blocks) for _ in range(200)]
    rng = random.Random(1)
    with path.open("w") as log:
        written = log.write(START)
        while written < size:
            written += log.write(rng.choice(cached))


def timed(command: list[str]) -> Run:
    """Run a command to its end, output thrown away."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 3):
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return Run(time.perf_counter() - began, usage.ru_maxrss / 1024)


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of the log in MiB")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each command")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, needles = Path(folder) / "prefill.log", Path(folder) / "needles"
        write_log(log, given.mib * MIB)
        needles.write_bytes(b"\n".join(NEEDLES) + b"\n")
        audit = [sys.executable, "-m", "kvfence", "audit", str(log), "--format", "json"]
        peer = ["rg", "--count", "-F", "-f", str(needles), str(log)] if shutil.which("rg") else None
        small = Path(folder) / "start.log"
        small.write_text(START)
        alone = [*audit[:4], str(small), *audit[5:]]
        runs: dict[str, list[Run]] = {"kvfence": [], "ripgrep": [], "start": []}
        for number in range(given.runs + 1):  # the first of each is not counted
            pair = {"kvfence": timed(audit), "start": timed(alone), **({"ripgrep": timed(peer)} if peer else {})}
            for name, run in pair.items():
                runs[name] += [run] if number else []
        report(runs, log.stat().st_size / MIB, as_json=given.json)


def report(runs: dict[str, list[Run]], size: float, *, as_json: bool) -> None:
    """Print medians and ratios."""
    own = statistics.median(run.seconds for run in runs["kvfence"])
    peak = max(run.peak_mib for run in runs["kvfence"])
    start = statistics.median(run.seconds for run in runs["start"])
    ratios = [a.seconds / b.seconds for a, b in zip(runs["kvfence"], runs["ripgrep"], strict=False)]
    figures = {
        "log_mib": round(size),
        "kvfence_seconds": round(own, 2),
        "kvfence_mib_per_second": round(size / own),
        "kvfence_peak_mib": round(peak),
        "kvfence_start_seconds": round(start, 2),
        "ripgrep_seconds": round(statistics.median(run.seconds for run in runs["ripgrep"]), 2) if ratios else None,
        "ratio_to_ripgrep": round(statistics.median(ratios), 2) if ratios else None,
        "ratio_after_start": round(statistics.median(ratios) * (own - start) / own, 2) if ratios else None,
    }
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<24} {'ripgrep is not installed' if value is None else value}")
    print(f"aims: a ratio of at most {AIM_RATIO:g}, a peak of at most {AIM_PEAK_MIB} MiB")


if __name__ == "__main__":
    main()
