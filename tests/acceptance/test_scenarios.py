from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from acceptance.catalogue import CONFIGURATIONS, PATIENCE, Configuration
from acceptance.scenarios import PLAYS
from acceptance.scenarios.stage import Reference, Seen, Stage
from acceptance.texts import ANSWER, CUE, NOTED
from acceptance.traffic import Client, Exchange, Leg, Prompt

UNEQUAL = next(one for one in CONFIGURATIONS if one.name == "unequal")
REFUSAL = Leg(400, 0.0, error="too long")


class Engine:
    """Answers as a pair would whose prefill refuses from its limit on, and says what comes of that."""

    def __init__(self, beyond: Callable[[str], Exchange], limit: int = UNEQUAL.limit) -> None:
        self.beyond = beyond
        self.limit = limit
        self.before = ""
        self.asked = 0

    async def ask(self, prompt: Prompt) -> Exchange:
        await asyncio.sleep(0)
        self.asked += 1
        if len(prompt.text) >= self.limit:
            return self.beyond(self.before)
        self.before = prompt.text
        text = f"{ANSWER if prompt.text.endswith(CUE) else NOTED}, and so on"
        leg = Leg(200, 0.01, text=text, tokens=tuple(prompt.text[-prompt.tokens :].encode()), cached_tokens=1)
        return Exchange(leg, leg)


def play(name: str, engine: Engine, configuration: Configuration = UNEQUAL, control: Reference | None = None) -> Seen:
    stage = Stage(cast(Client, engine), configuration, control)

    async def run() -> Seen:
        return await PLAYS[name](stage)

    return asyncio.run(run())


def stale(before: str) -> Exchange:
    leg = Leg(200, 0.1, text=before[40:150], tokens=(1,))
    return Exchange(Leg(200, 0.1, text="\n", tokens=(1,)), leg)


def refused(_before: str) -> Exchange:
    return Exchange(REFUSAL, REFUSAL)


def left_waiting(_before: str) -> Exchange:
    return Exchange(REFUSAL, Leg(500, PATIENCE + 0.1, error="timed out"))


@pytest.mark.parametrize("name", ["incident", "stream"])
def test_an_answer_from_the_donors_pages_is_a_leak_that_follows_the_donor(name: str) -> None:
    seen = play(name, Engine(stale))
    assert seen.word == "leaked"
    if name == "incident":
        assert seen.evidence[0] == "15 of 15 answers hold a donor's text; each is of the donor before: True"


@pytest.mark.parametrize("name", ["incident", "stream", "boundary"])
def test_a_refusal_of_both_roles_is_no_leak(name: str) -> None:
    assert play(name, Engine(refused)).word == "refused"


def test_a_pair_that_waits_is_asked_once() -> None:
    engine = Engine(left_waiting)
    seen = play("incident", engine)
    assert (seen.word, len(seen.evidence)) == ("waits", 1)


def test_the_boundary_names_the_lengths_if_they_differ() -> None:
    answers = iter([stale("x" * 200), refused(""), refused("")])
    assert play("boundary", Engine(lambda _before: next(answers))).word == "1018 wrong, 2000 refused, 4089 refused"


def test_the_boundary_says_so_if_less_is_admitted_than_declared() -> None:
    assert play("boundary", Engine(refused, limit=1000)).word == "1017 refused, then refused"


def test_ordinary_traffic_is_the_same_if_each_answer_is_what_it_was_alone() -> None:
    seen = play("normal", Engine(refused))
    assert seen.word == "same"
    assert seen.evidence[-1] == "not compared with a pair of equal pools"


def test_an_answer_that_differs_from_the_control_is_amiss() -> None:
    assert play("normal", Engine(refused), control={"60 tokens": (9,)}).word == "1 amiss"


def test_a_failure_among_ordinary_traffic_is_amiss() -> None:
    class Failing(Engine):
        async def ask(self, prompt: Prompt) -> Exchange:
            exchange = await super().ask(prompt)
            return Exchange(exchange.prefill, Leg(500, 0.1, error="gone")) if self.asked == 20 else exchange

    seen = play("normal", Failing(refused))
    assert seen.word in {"1 amiss", "same"}  # the twentieth may be one that is too long
    assert seen.word == "same" or "gone" in seen.evidence[0]


@pytest.mark.parametrize("name", ["flood", "pin"])
def test_load_tells_of_the_ordinary_prompt_and_of_the_long_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acceptance.scenarios.load.PINNED_FOR", 0)
    assert play(name, Engine(refused)).word == "answered (long: refused)"
    assert play(name, Engine(stale)).word == "answered (long: wrong)"
