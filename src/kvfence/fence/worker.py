"""What both roles have in common: peers and their lives, timers, letting go of pages, and fencing the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from kvfence.fence.capabilities import Capabilities, mismatch
from kvfence.fence.commands import Command, Fence, Scrub, Send, Timer
from kvfence.fence.config import Config
from kvfence.fence.events import Expired, Fenced
from kvfence.fence.mechanisms import Mechanisms
from kvfence.fence.messages import Address, Envelope, Epoch, Hello, Message
from kvfence.fence.outcome import COMMITTED, LENGTH, SKEW, UNREACHABLE, Outcome
from kvfence.fence.pool import LEASED, Pool
from kvfence.fence.prefix import PrefixIndex
from kvfence.fence.state import State
from kvfence.fence.statement import Request
from kvfence.fence.tags import Binding
from kvfence.fence.tombstones import Tombstones
from kvfence.fence.transfer import DOUBTFUL, Ledger
from kvfence.fence.units import FULL, LATENT, PAGED, Unit

ENGINE: Final = None
"""Whose timer it is while a worker waits to fence its transfer engine."""


QUEUED: Final = "queued"
"""The state of a leg that is to be served and waits for pages."""


class View(NamedTuple):
    """What a worker knows of a peer: which life it is in, what it can do, and why it is refused, or None."""

    incarnation: int
    capabilities: Capabilities
    mismatch: str | None


class Leg(State):
    """One handoff on one rank, as long as anything of it is open."""

    __slots__ = (
        "born",
        "busy",
        "epoch",
        "ledger",
        "outcome",
        "pages",
        "peer",
        "ref",
        "request",
        "shared",
        "state",
        "tries",
    )

    def __init__(self, ref: str, request: Request, peer: Address, state: str) -> None:
        self.ref = ref
        self.request = request
        self.peer = peer
        self.state = state
        self.outcome: Outcome | None = None
        self.born: Epoch | None = None  # what the tags are bound to: prefill's epoch
        self.epoch: Epoch | None = None  # the lease: decode's epoch
        self.pages: dict[Unit, int] = {}  # held by this leg alone
        self.shared: dict[Unit, int] = {}  # held together with the prefix index
        self.ledger = Ledger()
        self.busy = 0  # local work under way, which still reads or writes the pages
        self.tries = 0


L = TypeVar("L", bound=Leg)


class Worker(State, Generic[L]):
    """One rank of one worker. `handle` takes an event and gives commands; it keeps no clock, thread or socket."""

    __slots__ = (
        "address",
        "config",
        "counter",
        "ending",
        "engine",
        "fence_begun",
        "fence_due",
        "fencing",
        "incarnation",
        "index",
        "legs",
        "on",
        "out",
        "past",
        "peers",
        "pool",
    )
    SHARED = frozenset({"address", "config", "on", "out"})
    ORDERED = frozenset({"legs"})

    def __init__(self, address: Address, config: Config, incarnation: int, engine: int) -> None:
        """Start a life: `incarnation` and `engine` are greater than in any earlier life at this address."""
        self.address = address
        self.config = config
        self.on: Mechanisms = config.on
        self.incarnation = incarnation
        self.engine = engine
        self.ending = False  # what becomes free is not given out before all that is to end has ended
        self.fencing = False  # nothing new begins until the engine has been fenced
        self.fence_due = False  # the timer is set
        self.fence_begun = False  # `Fence` has been asked for
        self.counter = 0
        self.peers: dict[Address, View] = {}
        self.legs: dict[str, L] = {}
        self.past = Tombstones(config.tombstones)
        self.pool = Pool(config.pages)
        self.index = PrefixIndex(self.on, config.layout.page_tokens)
        self.out: list[Command] = []

    def handle(self, event: Any) -> list[Command]:
        """Take an event in and give what is to be done, in order.

        Raises:
            KeyError: if the event is of no known type.
            ConservationError: on a fault of this code, never on account of the event.

        """
        self.out = []
        if type(event) is Envelope:
            self._receive(event)
        else:
            self.HANDLERS[type(event)](self, event)
        if self.fencing:
            self._try_fence()
        return self.out

    def greet(self, *peers: Address) -> list[Command]:
        """Say hello, on start."""
        self.out = []
        for peer in peers:
            self._hello(peer, reply=True)
        return self.out

    # Peers

    def _receive(self, envelope: Envelope) -> None:
        """Act on a message if its kind may come from there, and both lives are the ones it was meant between."""
        source, message = envelope.source, envelope.message
        if source.worker == self.address.worker:
            act = self.FROM_RANK.get(type(message))
            if act is not None and envelope.incarnation == self.incarnation:
                act(self, message, source)
            return
        if isinstance(message, Hello):
            self._learn(source, envelope.incarnation, message)
            return
        view = self.peers.get(source)
        act = self.FROM_PEER.get(type(message))
        if view is None or view.incarnation < envelope.incarnation:
            self._hello(source, reply=True)  # a life whose hello was lost
        elif view.incarnation == envelope.incarnation and envelope.expects != self.incarnation:
            self._hello(source, reply=False)
        elif view.incarnation == envelope.incarnation and act is not None and self._speaks_for(source, message.ref):
            act(self, message, source)

    def _speaks_for(self, source: Address, ref: str) -> bool:
        """Say whether this peer is that of the handoff, if there is one: nobody else's word on it counts."""
        leg = self.legs.get(ref)
        return leg is None or leg.peer == source

    def _learn(self, source: Address, incarnation: int, hello: Hello) -> None:
        before = self.peers.get(source)
        if before is not None and incarnation < before.incarnation:
            return
        reason = mismatch(self.config.capabilities(), hello.capabilities)
        self.peers[source] = View(incarnation, hello.capabilities, reason)
        if before is not None and incarnation > before.incarnation:
            self.ending = True
            for leg in [leg for leg in self.legs.values() if leg.peer == source]:
                self._peer_restarted(leg)
            self.ending = False
            self._pump()
        if hello.reply:
            self._hello(source, reply=False)

    def _peer_restarted(self, leg: L) -> None:
        raise NotImplementedError

    def _hello(self, to: Address, *, reply: bool) -> None:
        self._send(to, Hello(self.config.capabilities(), reply))

    def _send(self, to: Address, message: Message) -> None:
        if to.worker == self.address.worker:
            expects = self.incarnation
        else:
            view = self.peers.get(to)
            expects = view.incarnation if view is not None else -1
        self.out.append(Send(to, Envelope(self.address, self.incarnation, expects, message)))

    def _judge(self, leg: L, steps: int = 0) -> Outcome | None:
        """Say why this rank refuses the length, or None. With auto-truncate the prompt is cut, if that helps."""
        if self.config.judge(leg.request, steps) == COMMITTED:
            return None
        shorter = self.config.cut(leg.request, steps) if self.config.truncate else None
        if shorter is None:
            return LENGTH
        leg.request = shorter
        return None

    def _peer_refusal(self, peer: Address) -> Outcome | None:
        """Say why no handoff with this peer begins: it was never heard of, or it can do less than this worker."""
        view = self.peers.get(peer)
        if view is None:
            return UNREACHABLE
        return SKEW if view.mismatch is not None and self.on.skew_refusal else None

    # Pages

    def _turn(self, leg: L) -> bool:
        """Say whether nobody is before this leg: every rank serves in the same order, or ranks would wait crosswise."""
        first = next(other for other in self.legs.values() if other.state == QUEUED)
        return first is leg and not self.fencing

    def _reserve(self, leg: L, units: Iterable[Unit], state: str = LEASED) -> bool:
        """Reserve a page for each unit that no cached prefix serves; False if the pool has no room for all."""
        shared = self._cached(leg.request)
        kept = set(shared.values())
        missing = [unit for unit in units if unit not in shared]
        kinds = [unit.kind for unit in missing]
        if not self.pool.room(kinds) and not self._make_room(kinds, kept):
            return False
        for page in shared.values():
            self.pool.hold(page)
        leg.shared = shared
        leg.pages = {unit: self.pool.take(unit.kind, state) for unit in missing}
        if self.on.scrub and leg.pages:
            self.out.append(Scrub(tuple(leg.pages.values())))
        return True

    def _make_room(self, kinds: list[str], kept: set[int]) -> bool:
        """Let the prefix index go of pages, least recently used first, until there is room; False if there is none."""
        for page in self.index.oldest():
            if page not in kept:
                for gone in self.index.remove(page):
                    self.pool.drop(gone)
                if self.pool.room(kinds):
                    return True
        return False

    def _cached(self, request: Request) -> dict[Unit, int]:
        layout = self.config.layout
        if not (self.config.prefix_cache and layout.shareable()):
            return {}
        found = {kind: self.index.match(request, kind) for kind in self._cached_kinds()}
        common = min((len(pages) for pages in found.values()), default=0)
        return {Unit(kind, index): pages[index] for kind, pages in found.items() for index in range(common)}

    def _cache(self, leg: L, units: Iterable[Unit]) -> None:
        """Enter whole live pages of a request into the prefix index, where what they go on from is still in it.

        Pages it shares are not entered again: one that has left the index may have left it as bad.
        """
        layout = self.config.layout
        if not (self.config.prefix_cache and layout.shareable()):
            return
        pages = {unit: leg.pages[unit] for unit in units if unit in leg.pages}
        whole = range(leg.request.length // layout.page_tokens)
        for kind in self._cached_kinds():
            for page in self.index.insert(leg.request, kind, [pages.get(Unit(kind, index)) for index in whole]):
                self.pool.hold(page)

    def _cached_kinds(self) -> list[str]:
        return [kind for kind in self.config.layout.kinds if kind in {FULL, LATENT}]

    def _taint(self, leg: L, bad: tuple[Unit, ...]) -> None:
        """Take bad pages out of the prefix index, with what was derived from them."""
        if not self.on.clean_cache:
            return
        layout = self.config.layout
        for unit in bad:
            end = unit.index * layout.page_tokens + layout.valid(unit, leg.request.length)
            for page in self.index.taint(leg.request, end if unit.kind in PAGED else leg.request.length):
                self.pool.drop(page)

    def _next_epoch(self) -> Epoch:
        self.counter += 1
        return Epoch(self.incarnation, self.counter)

    def _binding(self, leg: L, unit: Unit) -> Binding:
        assert leg.born is not None
        request = leg.request
        valid = self.config.layout.valid(unit, request.length)
        shard = 0 if unit.kind == LATENT else self.address.rank
        return Binding(leg.ref, request.id, request.scope, leg.born, unit.kind, unit.index, valid, shard)

    # Fencing

    def _doubt(self) -> None:
        """Note that pages are in quarantine that only a fenced engine frees: soon, or at once beyond the bound."""
        doubtful = sum(len(leg.ledger.doubtful) for leg in self.legs.values())
        if self.fencing or doubtful > self.config.quarantine_bound * self._capacity():
            self.fencing = True
        elif not self.fence_due:  # set once: later doubts do not put it off
            self.fence_due = True
            self.out.append(Timer(ENGINE, self.config.fence_seconds))

    def _capacity(self) -> int:
        return len(self.pool)

    def _fence_now(self) -> None:
        self.fence_due = False
        self.fencing = any(leg.ledger.drained == DOUBTFUL for leg in self.legs.values())

    def _try_fence(self) -> None:
        """Fence once no sound operation would be hurt; until then none begins."""
        if not self.fence_begun and not any(leg.ledger.open for leg in self.legs.values()):
            self.fence_begun = True
            self.out.append(Fence(self.engine))

    def _fenced(self, event: Fenced) -> None:
        if event.engine != self.engine:
            return
        self.engine += 1
        self.fencing = self.fence_begun = False
        for leg in list(self.legs.values()):
            self._proved(leg)
        self._pump()

    def _proved(self, leg: L) -> None:
        raise NotImplementedError

    def _pump(self) -> None:
        raise NotImplementedError

    def _expired(self, event: Expired) -> None:
        if event.ref is ENGINE:
            self._fence_now()
        elif event.ref in self.legs:
            self._timed_out(self.legs[event.ref])

    def _timed_out(self, leg: L) -> None:
        raise NotImplementedError

    HANDLERS: ClassVar[dict[type, Callable[..., None]]] = {Expired: _expired, Fenced: _fenced}
    FROM_PEER: ClassVar[dict[type, Callable[..., None]]] = {}
    FROM_RANK: ClassVar[dict[type, Callable[..., None]]] = {}

    def _again(self, leg: Leg, message: Message) -> bool:
        """Say something to the peer of a leg and set the timer; False if it was said often enough."""
        if leg.tries >= self.config.tries:
            return False
        leg.tries += 1
        self._send(leg.peer, message)
        self.out.append(Timer(leg.ref, self.config.retry_seconds))
        return True
