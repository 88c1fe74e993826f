"""One rank as a process: what it is started with, what it says, and what it never shows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvfence.engine import wire
from kvfence.engine.channel import GoneError, pair
from kvfence.engine.coordinator import Coordinator
from kvfence.engine.rank import Setup
from kvfence.engine.settings import Plan, Role, Settings
from kvfence.engine.zygote import Zygote
from kvfence.fence.tags import KEY_BYTES
from tests.engine.engines import all_free, ask, job, lives, settings_of, until

KEY = os.urandom(KEY_BYTES)


def setup_of(model: Path, role: Role) -> Setup:
    plan = Plan(settings_of(model))
    return Setup(f"{role}-0", role, 0, plan.configs[role], str(model), 5, 70, 30.0, KEY, plan.slab_floats(), lab=False)


class Process:
    """A rank without a coordinator: this test speaks to it."""

    def __init__(self, zygote: Zygote, setup: Setup) -> None:
        self.link, its = pair()
        self.link.socket.settimeout(20)
        self.alive, held = os.pipe()
        slabs = os.memfd_create("slabs", os.MFD_CLOEXEC)
        self.pid = zygote.spawn(setup, [its.fileno(), held, slabs])
        its.close()
        os.close(held)
        os.close(slabs)

    def hear(self) -> wire.FromRank:
        return wire.decode_from_rank(self.link.receive())

    def ended(self) -> bool:
        """Wait until every process of it has ended."""
        self.link.close()
        return os.read(self.alive, 1) == b""

    def close(self) -> None:
        self.link.close()
        os.close(self.alive)


@pytest.fixture
def processes(zygote: Zygote, recall_model: Path) -> Iterator[dict[Role, Process]]:
    roles: tuple[Role, ...] = ("prefill", "decode")
    made = {role: Process(zygote, setup_of(recall_model, role)) for role in roles}
    yield made
    for process in made.values():
        process.close()


def test_what_a_rank_is_started_with_arrives_as_it_was(recall_model: Path) -> None:
    setup = setup_of(recall_model, "decode")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(setup), type=Setup) == setup


def test_a_rank_says_where_it_takes_writes_in_and_which_processes_it_has(processes: dict[Role, Process]) -> None:
    for role, process in processes.items():
        ready = process.hear()
        assert isinstance(ready, wire.Ready)
        assert ready.engine == 70
        assert ready.pids[0] == process.pid
        assert len(ready.pids) == (2 if role == "prefill" else 1)
        assert bool(ready.where) == (role == "decode")
        assert all(map(lives, ready.pids))


def test_a_rank_and_its_mover_end_with_their_link(processes: dict[Role, Process]) -> None:
    for process in processes.values():
        assert isinstance(process.hear(), wire.Ready)
        assert process.ended()


def test_a_rank_tells_how_it_is(processes: dict[Role, Process]) -> None:
    for role, process in processes.items():
        process.hear()
        process.link.send(wire.encode(wire.AskStatus()))
        status = process.hear()
        assert isinstance(status, wire.Status)
        assert set(status.pool) == {"free"}
        assert status.arena == ({"free": Settings.slots} if role == "decode" else {})
        assert status.legs == {}
        assert status.totals["engine"] == 70


def test_what_is_no_message_ends_a_rank_with_a_complaint(processes: dict[Role, Process]) -> None:
    process = processes["decode"]
    process.hear()
    process.link.send(b"\xc1 hostile")
    complaint = process.hear()
    assert isinstance(complaint, wire.Complaint)
    assert complaint.level == "error"
    assert "rank 0 of decode-0 failed" in complaint.text
    with pytest.raises(GoneError):
        process.link.receive()


def test_the_key_of_the_deployment_is_in_nothing_that_others_can_read(processes: dict[Role, Process]) -> None:
    for process in processes.values():
        ready = process.hear()
        assert isinstance(ready, wire.Ready)
        for pid in ready.pids:
            for name in ("cmdline", "environ"):
                shown = Path(f"/proc/{pid}/{name}").read_bytes()
                assert KEY not in shown
                assert KEY.hex().encode() not in shown
        assert KEY not in wire.encode(ready)


def test_a_rank_without_a_model_complains_and_ends(zygote: Zygote, recall_model: Path, tmp_path: Path) -> None:
    setup = setup_of(recall_model, "decode")
    process = Process(zygote, msgspec.structs.replace(setup, model=str(tmp_path)))
    try:
        complaint = process.hear()
        assert isinstance(complaint, wire.Complaint)
        assert str(tmp_path) in complaint.text
        assert process.ended()
    finally:
        process.close()


def test_ranks_meet_through_the_envelopes_they_are_brought(processes: dict[Role, Process]) -> None:
    prefill, decode = processes["prefill"], processes["decode"]
    for process in processes.values():
        process.hear()
    prefill.link.send(wire.encode(wire.Greet(["decode-0"])))
    hello = prefill.hear()
    assert isinstance(hello, wire.Carry)
    assert (hello.worker, hello.rank) == ("decode-0", 0)
    decode.link.send(wire.encode(wire.Deliver(hello.envelope)))
    answer = [decode.hear(), decode.hear()]
    assert wire.Met("prefill-0", 5) in answer
    (back,) = (said for said in answer if isinstance(said, wire.Carry))
    prefill.link.send(wire.encode(wire.Deliver(back.envelope)))
    assert prefill.hear() == wire.Met("decode-0", 5)


def test_nothing_is_kept_of_requests_that_are_over(recall_model: Path, zygote: Zygote) -> None:
    """Judged by what the process has open and mapped, after some requests and after many more."""

    async def main() -> None:
        async with Coordinator(settings_of(recall_model, ranks=2), zygote=zygote) as engine:
            await asyncio.gather(*(ask(engine, job(tokens=2)) for _ in range(8)))
            pids = [pid for worker in engine.workers.values() for pids in worker.pids.values() for pid in pids]
            before = {pid: _open(pid) for pid in pids}
            for _ in range(4):
                await asyncio.gather(*(ask(engine, job(tokens=2)) for _ in range(8)))
            await until(lambda: {pid: _open(pid) for pid in pids} == before)
            assert {worker.incarnation for worker in engine.workers.values()} == {1}

    asyncio.run(main())


def _open(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_status_without_requests_is_that_of_an_idle_engine(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model, prefix_cache=False), zygote=zygote) as engine:
            await all_free(engine)
            states = await engine.statuses(10)
            assert set(states) == {"prefill-0", "decode-0"}
            assert {len(ranks) for ranks in states.values()} == {1}

    asyncio.run(main())
