"""Watch the workers: what is known of each is sure, or it is not usable.

Three things make a worker be read again: its sentinel ends (see `sentinel`), some seconds have passed, or the gateway
suspects it. A reading counts if the sentinel it began under still holds when it is over, so that what was read is of
the process that requests reach.

What is guaranteed: a request that was admitted by a limit, and for which `Worker.still` was asked after connecting,
reaches the process that told that limit. Not if a load balancer, a shared listening socket or a name with several
addresses stands between (a URL must name one process); not for a role or limit that changes while the process goes on,
which is noticed at the next reading; and not on a server that closes silent connections (nginx, some routers). Of such
a server, after a few tries, no sentinel is held: a restart is then noticed at the next reading, within `interval`
seconds, or when a connection to it is lost, and requests in between are judged by what it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kvfence.errors import InputError
from kvfence.gateway.fleet.follow import Follower, Log, Pace
from kvfence.gateway.fleet.worker import Worker


class Watcher:
    """Keeps workers true, from `start` to `close`."""

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        interval: float = 10.0,
        timeout: float = 5.0,
        grace: float = 30.0,
        key: str | None = None,
        log: Log,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Prepare it.

        Args:
            workers: of one `make_workers`.
            interval: seconds between two readings of a worker.
            timeout: seconds for connecting to one, and for each of its answers.
            grace: seconds that facts last whose re-reading fails while the sentinel holds, and after which a worker
                that cannot be read counts as gone.
            key: the workers' API key, if they ask for one.
            log: takes a level and a text, which holds no address.
            on_change: called after any change of any worker.

        Raises:
            InputError: the key has characters that no header can carry.

        """
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InputError("the workers' API key", "has characters that no header can carry")
        self._workers = tuple(workers)
        self._pace = Pace(interval, timeout, grace)
        self._key = key or None
        self._log = log
        self._on_change = on_change
        self._followers: dict[Worker, Follower] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Begin; nothing is known yet when it returns."""
        for changes in {worker.changes for worker in self._workers}:
            changes.listeners.append(self._take_change)
        for worker in self._workers:
            follower = self._followers[worker] = Follower(worker, self._pace, self._key, self._log)
            self._tasks.append(asyncio.create_task(follower.run(), name=f"follow {worker.name}"))

    async def close(self) -> None:
        """End; nothing is sure any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for worker in self._workers:
            if worker.sure:
                worker.doubt("it is not watched any more")
        for changes in {worker.changes for worker in self._workers}:
            changes.listeners.remove(self._take_change)
        self._followers.clear()

    def suspect(self, worker: Worker) -> None:
        """Read a worker again now: it answered as if it were another (404, another role). It stays usable until then.

        A client may be to blame for such an answer, and must not be able to take a worker out.
        """
        if (follower := self._followers.get(worker)) is not None:
            follower.suspect()

    def lost(self, worker: Worker) -> None:
        """Take that a connection was refused or reset: the worker is not usable until it has been read again."""
        if (follower := self._followers.get(worker)) is not None:
            follower.lose()

    async def confirmed(self, worker: Worker, within: float) -> bool:
        """Wait until a worker is usable, for some seconds at most; say whether it is."""
        try:
            async with asyncio.timeout(within):
                while not worker.usable:
                    await self._next_change()
        except TimeoutError:
            return False
        return True

    async def changed(self, within: float) -> bool:
        """Wait until anything changes of any worker, for some seconds at most; say whether it did."""
        try:
            async with asyncio.timeout(within):
                await self._next_change()
        except TimeoutError:
            return False
        return True

    async def _next_change(self) -> None:
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _take_change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        if self._on_change is not None:
            self._on_change()
