"""How fast KV moves from prefill to decode, as a ratio to a plain copy of the same bytes in the same run.

Each page goes the whole way: an order to the mover, which is a process of its own; its write into a landing slot
through a transport; its report; the copy from the slot into the page. As many orders are open as one transfer call may
have. The plain copy is of one process, from page to page, pages as cold as those of the handoff. TCP is set against a
plain blocking socket too: another process sends the same pages over loopback, and they are received into the pages.
Passes take turns; figures are medians over the passes, of ratios within a pass.

    make bench
    python benchmarks/handoff.py --mib 64 --passes 9
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import numpy as np

from kvfence.engine.memory import Geometry, Memory
from kvfence.engine.mover import Mover
from kvfence.engine.transport import TRANSPORTS, receiver_of, tcp
from kvfence.fence.canary import RECORD_BYTES
from kvfence.fence.transfer import Operation
from kvfence.fence.units import FULL, Unit

KIB, MIB = 1 << 10, 1 << 20
SIZES = (32 * KIB, 256 * KIB, 2 * MIB)
PAGE_TOKENS, LANES, SLOTS = 16, 16, 64
COPY, SOCKET = "memcpy", "socket"


def geometry(size: int, pages: int, slots: int) -> Geometry:
    """Give the geometry of pages of `size` bytes, canary records included."""
    return Geometry(FULL, pages, PAGE_TOKENS, (size // PAGE_TOKENS - RECORD_BYTES) // 4, 1, slots)


def handoff(mover: Mover, target: Memory, where: str) -> None:
    """Move every page, and copy it out of its landing slot."""
    form = target.geometry
    free, pages = deque(range(form.pages + 1, form.pages + 1 + form.slots)), iter(range(form.pages))
    moving = copied = 0
    while copied < form.pages:
        while moving < LANES and (page := next(pages, None)) is not None:
            mover.begin(Operation("r", (1, 1), Unit(FULL, page), page, free.popleft(), 1, 1), "decode-0.0", where)
            moving += 1
        select.select([mover.channel], [], [])
        for report, _ in mover.reports():
            assert report.verdict == "completed"
            operation = report.operation
            target.unit(operation.page, FULL)[:] = target.unit(operation.target, FULL)
            free.append(operation.target)
            moving, copied = moving - 1, copied + 1


def copy(source: Memory, target: Memory) -> None:
    """Copy every page."""
    for page in range(source.geometry.pages):
        target.unit(page, FULL)[:] = source.unit(page, FULL)


def serve(source: Memory, connection: socket.socket) -> None:
    """Send every page for each byte that comes."""
    while connection.recv(1):
        for page in range(source.geometry.pages):
            connection.sendall(source.unit(page, FULL))


def receive(target: Memory, connection: socket.socket) -> None:
    """Have every page sent, and receive it in place."""
    connection.sendall(b"g")
    for page in range(target.geometry.pages):
        left = target.unit(page, FULL)
        while left:
            left = left[connection.recv_into(left) :]


def loopback() -> tuple[socket.socket, socket.socket]:
    """Connect two sockets over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


@contextmanager
def methods(size: int, pages: int) -> Iterator[dict[str, Callable[[], None]]]:
    """Give what is timed, each over all pages. Processes are forked before there are threads."""
    source, target = Memory(geometry(size, pages, 0)), Memory(geometry(size, pages, SLOTS))
    filled = np.frombuffer(source.pool.bytes, np.uint8)
    filled[:] = np.random.default_rng(20260901).integers(0, 256, len(filled), np.uint8)
    near, far = loopback()
    peer = multiprocessing.get_context("fork").Process(target=serve, args=(source, far), daemon=True)
    peer.start()
    movers = {transport: Mover(source, transport, 60.0, (near.fileno(),)) for transport in TRANSPORTS}
    with ExitStack() as stack:
        stack.callback(peer.join)
        stack.callback(peer.terminate)
        stack.enter_context(near)
        stack.enter_context(far)
        timed: dict[str, Callable[[], None]] = {COPY: lambda: copy(source, target)}
        for transport, mover in movers.items():
            receiver = receiver_of(transport, target, 1, exposes_pool=False, door=True)
            if isinstance(receiver, tcp.Receiver):
                stack.callback(receiver.close)
            stack.callback(mover.stop)
            timed[transport] = lambda mover=mover, where=receiver.where: handoff(mover, target, where)  # type: ignore[misc]
        timed[SOCKET] = lambda: receive(target, near)
        for name, method in timed.items():
            target.pool.bytes[: size * pages] = bytes(size * pages)
            method()  # maps the memory, and connects
            assert target.pool.bytes[: size * pages] == source.pool.bytes[: size * pages], name
        yield timed


def measure(size: int, mib: int, passes: int) -> dict[str, float]:
    """Give the speed of each method in GB/s, and ratios."""
    pages = mib * MIB // size
    with methods(size, pages) as timed:
        speeds: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(passes):
            for name, method in timed.items():
                began = time.perf_counter()
                method()
                speeds[name].append(size * pages / (time.perf_counter() - began) / 1e9)
    row = {name: median(found) for name, found in speeds.items()}
    for name, peer in [*((name, COPY) for name in (*TRANSPORTS, SOCKET)), ("tcp-epoch", SOCKET)]:
        row[f"{name}/{peer}"] = median(one / other for one, other in zip(speeds[name], speeds[peer], strict=True))
    return row


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="MiB of KV in one pass, an even number")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    table = {size: measure(size, given.mib, given.passes) for size in SIZES}
    if given.json:
        print(json.dumps({size: {name: round(value, 3) for name, value in row.items()} for size, row in table.items()}))
        return
    names = list(table[SIZES[0]])
    widths = [max(10, len(name) + 2) for name in names]
    print(f"{'GB/s':>8}" + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True)))
    for size, row in table.items():
        cells = (f"{row[name]:>{width}.2f}" for name, width in zip(names, widths, strict=True))
        print(f"{size // KIB:>4} KiB" + "".join(cells))
    print(f"KV moved into its page, {LANES} operations open, {given.mib} MiB a pass, median of {given.passes} passes")


if __name__ == "__main__":
    main()
