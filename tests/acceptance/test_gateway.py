"""What the rig makes of a gateway's answers; neither an engine nor a gateway is started here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from acceptance.catalogue import LARGE_POOL
from acceptance.gateway import counting, ordinary, refusals
from acceptance.gateway.bodies import KINDS, completion, generate, varied
from acceptance.gateway.catalogue import DOORS, PAIR, SCENARIOS, TEMPLATE, VERSIONS
from acceptance.gateway.client import CHAT, COMPLETIONS, EVENTS, GENERATE, Client, Reply, Request, Router, prompts
from acceptance.gateway.play import PREFIX
from acceptance.gateway.scenarios import PLAYS
from acceptance.gateway.stage import REFUSED, Stage, word_of
from acceptance.gateway.table import read
from acceptance.pair import Pair, Ports
from acceptance.scenarios.incident import LENGTHS
from acceptance.scenarios.stage import Seen
from acceptance.texts import DONORS, NOTED
from acceptance.traffic import Exchange, Leg
from kvfence.counting.asked import Chat
from kvfence.counting.asked import read as read_asked
from kvfence.counting.chat import Settings, open_renderer, render
from kvfence.counting.chat.common import Rendered
from kvfence.counting.model_files import ModelFiles
from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import SMALL
from kvfence.gateway.judgement import Length
from kvfence.gateway.problem import CONTEXT_LENGTH, Problem

TOO_LONG = Reply(400, 0.001, Problem(400, "too long", code=CONTEXT_LENGTH).body(), "application/json")
DONOR = DONORS[0].text


def answer(text: str, tokens: int, path: str = GENERATE) -> Reply:
    document: dict[str, Any] = {"text": text, "output_ids": [1], "meta_info": {"prompt_tokens": tokens}}
    if path != GENERATE:
        document = {"id": "x", "choices": [{"text": text}], "usage": {"prompt_tokens": tokens}}
    return Reply(200, 0.01, json.dumps(document).encode(), "application/json")


def events(*documents: dict[str, Any]) -> Reply:
    said = b"".join(b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents)
    return Reply(200, 0.01, said + b"data: [DONE]\n\n", f"{EVENTS}; charset=utf-8")


def part(text: str, usage: object = None, finish: str | None = None, **own: object) -> dict[str, Any]:
    return {**own, "choices": [{"delta": {"content": text}, "finish_reason": finish}], "usage": usage}


class Scene:
    """A gateway and a pair by what they answer: refuses from the pair's limit on, or gives what it is told to."""

    def __init__(self, beyond: Callable[[Scene], Reply] = lambda _: TOO_LONG, limit: int = PAIR.limit) -> None:
        self.beyond = beyond
        self.limit = limit
        self.before = ""
        self.seen = 0
        self.empty_after: float | None = 0.01
        self.gauges = {"exchanges": 0}
        self.field = True

    async def ask(self, request: Request) -> Reply:
        await asyncio.sleep(0)
        size = length(request)
        if self.field and (name := next((name for name in request.body if request.body[name] == 7), None)):
            return Reply(400, 0.001, Problem(400, "no", param=name, code="field_refused").body(), "application/json")
        if size >= self.limit:
            return self.beyond(self)
        self.seen += 2
        self.before = str(request.body)
        return answer(NOTED[:4], size, request.path)

    async def fill(self, donor: object) -> None:
        self.before = cast(Any, donor).text
        self.seen += LARGE_POOL // 1000

    async def reached(self) -> int:
        return self.seen

    async def emptied(self, within: float) -> float | None:
        return self.empty_after if self.empty_after is None or self.empty_after < within else None

    async def status(self) -> dict[str, object]:
        return {"gauges": self.gauges}

    @property
    def router(self) -> Scene:
        return self

    async def admits(self, request: Request) -> bool:
        return length(request) < PAIR.limit


def length(request: Request) -> int:
    body = request.body
    said = body.get("text") or body.get("input_ids") or body.get("prompt")
    if said is None:
        said = "".join(str(message["content"]) for message in body["messages"])
    return len(said)


def play(name: str, scene: Scene) -> Seen:
    async def run() -> Seen:
        return await PLAYS[name](cast(Stage, scene))

    return asyncio.run(run())


# The table and the catalogue


def test_the_table_declares_each_scenario_of_each_gateway() -> None:
    table = read()
    assert set(table) == set(VERSIONS)
    for version, doors in table.items():
        assert {name: set(row) for name, row in doors.items()} == {door.name: set(door.scenarios) for door in DOORS}, (
            version
        )


def test_each_scenario_can_be_played() -> None:
    assert set(SCENARIOS) == set(PLAYS)


@pytest.mark.parametrize(
    "text",
    [
        '["0.5.20".blind]\nincident = "refused"\n',
        '["0.5.19".deaf]\nincident = "refused"\n',
        '["0.5.19".blind]\ncounts = "equal"\n',
    ],
)
def test_what_there_is_not_cannot_be_declared(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"gateway\.toml"):
        read(path)


def test_a_gateway_is_started_as_its_row_says(tmp_path: Path) -> None:
    counting_door, blind = DOORS
    assert counting_door.flags(tmp_path) == ("--tokenizer", str(tmp_path), "--chat-template", str(TEMPLATE))
    assert blind.flags(tmp_path) == ("--counting", "off")
    assert PREFIX.strip() == "gateway"


def test_the_template_writes_what_the_checkpoints_own_leaves_out(tmp_path: Path) -> None:
    write_recall(tmp_path, SMALL)
    settings = Settings.of_sglang(
        {"version": "0.5.23", "model_path": str(tmp_path), "chat_template": str(TEMPLATE)}, TEMPLATE.read_text()
    )
    body = KINDS["chat with tools"]("And now?").body
    fields = msgspec.json.decode(msgspec.json.encode(body), type=dict[str, msgspec.Raw])
    (prompt,) = read_asked("sglang", CHAT, fields).prompts
    assert isinstance(prompt, Chat)

    async def written() -> Rendered:
        return await render(open_renderer(settings, ModelFiles.open(tmp_path)), prompt)

    text = asyncio.run(written()).text
    assert text.startswith("[tools][{")
    assert '[call]weather {"place": "東京"}' in text
    assert text.endswith("[user]\nAnd now?[assistant]\n")


def test_there_are_enough_requests_of_each_sort() -> None:
    asked = list(varied())
    assert len(asked) >= 60
    assert {request.path for request in asked} == {GENERATE, COMPLETIONS, CHAT}
    assert any("tools" in request.body for request in asked)
    assert any(prompts(request) for request in asked)


# What an answer comes to


def test_one_clean_error_is_a_refusal() -> None:
    assert word_of(TOO_LONG, DONOR, "")[0] == REFUSED


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (answer(DONOR[20:90], 2000), "leaked"),
        (events(part(DONOR[20:40]), part(DONOR[40:70])), "leaked"),
        (Reply(400, 0.1, json.dumps({"error": {"message": DONOR[:80]}}).encode(), "application/json"), "leaked"),
        (answer("something", 2000), "wrong"),
        (events({"error": {"code": CONTEXT_LENGTH}}), "wrong"),
        (Reply(502, 0.1, Problem(502, "withheld", code="withheld").body(), "application/json"), "wrong"),
        (Reply(0, 60.0), "wrong"),
    ],
)
def test_anything_else_is_none(reply: Reply, word: str) -> None:
    assert word_of(reply, DONOR, "")[0] == word


def test_what_stands_in_the_own_prompt_is_no_leak() -> None:
    assert word_of(answer(DONOR[20:90], 2000), DONOR, DONOR)[0] == "wrong"


def test_a_stream_is_the_same_however_it_was_cut() -> None:
    one = events(part("ab", id="x", created=1), part("", finish="length", id="x", created=1))
    other = events(*(part(text, id="y", created=2) for text in "ab"), part("", finish="length", id="y", created=2))
    assert one.comparable() == other.comparable()
    assert one.without_own() != other.without_own()
    assert one.comparable() != events(part("ac"), part("", finish="length")).comparable()
    assert one.comparable() != events(part("ab")).comparable()


def test_a_stream_with_usage_that_nobody_asked_for_is_another() -> None:
    plain, told = events(part("ab")), events(part("ab", usage={"prompt_tokens": 3}))
    assert plain.comparable() != told.comparable()
    counted = events(
        part("a", usage={"prompt_tokens": 3, "completion_tokens": 1}),
        part("b", usage={"prompt_tokens": 3, "completion_tokens": 2}),
    )
    assert counted.comparable() == events(part("ab", usage={"prompt_tokens": 3, "completion_tokens": 2})).comparable()


def test_whole_answers_are_the_same_but_for_id_and_time() -> None:
    first, second, third = (
        Reply(200, 0.1, b'{"id":"%b","created":%d,"choices":[{"text":"%b"}]}' % parts, "application/json")
        for parts in ((b"a", 1, b"x"), (b"b", 22, b"x"), (b"a", 1, b"y"))
    )
    assert first.comparable() == second.comparable()
    assert first.comparable() != third.comparable()


def test_prompts_of_a_batch_are_counted_together_and_of_a_stream_once() -> None:
    batch = [{"text": "a", "meta_info": {"prompt_tokens": tokens}} for tokens in (3, 4)]
    assert Reply(200, 0.1, json.dumps(batch).encode(), "application/json").prompt_tokens == 7
    meta = {"prompt_tokens": 3}
    assert events({"text": "a", "meta_info": meta}, {"text": "ab", "meta_info": meta}).prompt_tokens == 3
    assert TOO_LONG.prompt_tokens is None


# The scenarios


def test_the_incident_is_refused_at_the_door_if_nothing_reaches_an_engine() -> None:
    seen = play("incident", Scene())
    assert seen.word == "refused at the door"
    assert f"{2 * len(DONORS) * len(LENGTHS)} prompts" in seen.evidence[0]


def test_the_incident_is_but_refused_if_engines_were_asked() -> None:
    def beyond(scene: Scene) -> Reply:
        scene.seen += 2
        return TOO_LONG

    assert play("incident", Scene(beyond)).word == "refused"


def test_the_incident_leaks_if_one_answer_holds_a_donors_text() -> None:
    assert play("incident", Scene(lambda scene: answer(scene.before[20:90], 2000))).word == "leaked"


def test_decode_is_freed_if_it_is_empty_soon_and_answers_the_next() -> None:
    assert play("queue", Scene()).word == "freed"
    held = Scene()
    held.empty_after = refusals.PROMPTLY + 1
    assert play("queue", held).word == "held"
    late = Scene(lambda _: Reply(400, refusals.PROMPTLY + 1, TOO_LONG.content, "application/json"))
    assert play("queue", late).word == "held"


def test_the_boundary_is_exact_only_where_prefill_refuses() -> None:
    assert play("boundary", Scene()).word == "exact"
    low, high = play("boundary", Scene(limit=PAIR.limit - 1)), play("boundary", Scene(limit=PAIR.limit + 1))
    assert (low.word, high.word) == (f"{len(KINDS)} differ", f"{len(KINDS)} differ")
    assert f"{PAIR.limit - 1} tokens: prefill admits" in low.evidence[1]


def test_fields_are_refused_by_name_and_before_an_engine_is_asked() -> None:
    assert play("fields", Scene()).word == "refused"
    scene = Scene()
    scene.field = False
    assert "amiss" in play("fields", scene).word


def test_mixed_traffic_is_the_same_if_nothing_is_left() -> None:
    seen = play("mixed", Scene())
    assert (seen.word, seen.evidence[0][:15]) == ("same", "10 leaves 200, ")
    left = Scene()
    left.gauges, left.empty_after = {"exchanges": 1}, None
    assert play("mixed", left).word == "2 amiss"


def test_mixed_traffic_differs_if_one_answer_does() -> None:
    scene, asked = Scene(), len(list(ordinary._ordinary()))

    class Other(Scene):
        async def ask(self, request: Request) -> Reply:
            reply = await scene.ask(request)
            self.seen += 1
            return answer("other", 1, request.path) if self.seen == asked + 9 and reply.status == 200 else reply

    assert play("mixed", Other()).word in ("1 amiss", "2 amiss")


def test_counts_are_equal_if_the_engine_says_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Same:
        off = 0

    @asynccontextmanager
    async def opened(_stage: Stage) -> AsyncIterator[type[Same]]:
        yield Same

    async def count(counter: Any, request: Request) -> Length:
        tokens = length(request) + counter.off
        return Length(tokens, tokens, "exact", tokens, tokens)

    monkeypatch.setattr(counting, "_counter", opened)
    monkeypatch.setattr(counting, "_count", count)
    assert play("counts", Scene()).word == "equal"
    Same.off = 1
    assert play("counts", Scene()).word == f"{len(list(varied()))} differ"


# The router


class Legs(Client):
    """Answers in the roles' place."""

    def __init__(self, prefill: Reply) -> None:
        self.prefill = prefill
        self.asked: list[tuple[str, Request]] = []

    async def ask(self, url: str, request: Request) -> Reply:
        self.asked.append((url, request))
        if request.path == "/abort_request" or url.endswith(":1"):
            return self.prefill
        if self.prefill.status != 200 or (self.prefill.prompt_tokens or 0) <= 1:
            await asyncio.sleep(30)
        return answer("b", 600)


def router(legs: Legs) -> Router:
    return Router(Pair(Ports(1, 2, 3), {}, 0.0), legs)


def test_both_legs_get_one_room_and_only_decode_is_asked_for_a_stream() -> None:
    legs = Legs(answer("a", 600))
    reply = asyncio.run(router(legs).ask(generate("x" * 600, stream=True)))
    assert reply.text == "b"
    bodies = {url[-1]: request.body for url, request in legs.asked}
    assert bodies["1"]["bootstrap_room"] == bodies["2"]["bootstrap_room"] > 0
    assert bodies["2"]["stream"]
    assert "stream" not in bodies["1"]


def test_a_batch_gets_a_room_for_each_prompt() -> None:
    legs = Legs(answer("a", 600))
    asyncio.run(router(legs).ask(completion(["a", "b"])))
    assert len(set(legs.asked[0][1].body["bootstrap_room"])) == 2


@pytest.mark.parametrize(
    ("prefill", "admitted"), [(answer("a", 600), True), (answer("a", 1), False), (TOO_LONG, False)]
)
def test_prefill_admits_what_it_answers_from_more_than_a_stub(prefill: Reply, admitted: bool) -> None:
    legs = Legs(prefill)
    assert asyncio.run(router(legs).admits(generate("x" * 600))) is admitted
    aborted = [request.body["rid"] for _, request in legs.asked if request.path == "/abort_request"]
    assert aborted == ([] if admitted else [legs.asked[0][1].body["rid"]])


def test_the_gateways_answer_stands_for_both_roles() -> None:
    class Gate:
        async def ask(self, request: Request) -> Reply:
            assert request.body["stream"]
            return events({"text": "a", "meta_info": {}}, {"text": "ab", "output_ids": [1, 2], "meta_info": {}})

    async def run() -> Exchange:
        stage = Stage(
            DOORS[1], cast(Any, None), Pair(Ports(1, 2, 3), {}, 0.0), Path(), cast(Any, None), cast(Any, None)
        )
        through = Stage.through_the_door(stage)
        through.client._stage = Gate()  # type: ignore[attr-defined]
        try:
            return await through.ask("hi", stream=True)
        finally:
            await through.client.close()

    exchange = asyncio.run(run())
    assert exchange.prefill is exchange.decode
    assert isinstance(exchange.decode, Leg)
    assert (exchange.decode.status, exchange.decode.text, exchange.decode.tokens) == (200, "ab", (1, 2))
