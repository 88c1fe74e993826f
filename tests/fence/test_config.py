"""A rank admits a prompt only if its pool holds every length on the way, and refuses to start with what cannot work."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.fence.capabilities import VERSION, Capabilities
from kvfence.fence.config import Config
from kvfence.fence.mechanisms import ALL
from kvfence.fence.outcome import COMMITTED, LENGTH
from kvfence.fence.proof import COMPLETED, RECEIVER_FENCED, SENDER_FENCED, TRANSPORTS, Memory, proves
from kvfence.fence.statement import Request
from kvfence.fence.units import FULL, KINDS, LATENT, RECURRENT, ROW, WINDOW, Layout

CONTEXT = 60
BASE = Layout(4, (FULL, ROW))
PAGES = {FULL: 5, ROW: 1}

configs = st.builds(
    lambda page_tokens, kinds, window, pages, context: Config(
        Layout(page_tokens, tuple(kinds), window), dict(zip(KINDS, pages, strict=True)), context
    ),
    st.integers(1, 6),
    st.lists(st.sampled_from(KINDS), unique=True),
    st.integers(0, 25),
    st.lists(st.integers(1, 9), min_size=len(KINDS), max_size=len(KINDS)),
    st.integers(1, CONTEXT),
)


def request(length: int) -> Request:
    return Request("r", "s", tuple(range(length)))


def holds(config: Config, length: int) -> bool:
    """Say whether the pool has a page for every unit of one request of a length."""
    kinds = [unit.kind for unit in config.layout.required(length)]
    return all(kinds.count(kind) <= config.pages[kind] for kind in config.layout.kinds)


def longest(config: Config) -> int:
    """Give the greatest length, up to the context, that is held together with every length below it."""
    length = 0
    while length < config.context_length and holds(config, length + 1):
        length += 1
    return length


# How many tokens the pool holds


@pytest.mark.parametrize("page_tokens", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kind", [FULL, LATENT])
def test_a_kind_that_keeps_all_tokens_holds_its_pages(kind: str, page_tokens: int) -> None:
    for pages in range(1, 9):
        config = Config(Layout(page_tokens, (kind, ROW)), {kind: pages, ROW: 1}, CONTEXT)
        assert config.pool_tokens == longest(config) == min(CONTEXT, pages * page_tokens)


@pytest.mark.parametrize("page_tokens", [1, 2, 3, 4, 5])
def test_a_window_of_any_alignment_is_held_at_every_length_that_is_claimed(page_tokens: int) -> None:
    for window, pages in product(range(1, 14), range(1, 9)):
        config = Config(Layout(page_tokens, (WINDOW,), window), {WINDOW: pages}, CONTEXT)
        assert all(holds(config, length) for length in range(config.pool_tokens + 1))
        assert config.pool_tokens == longest(config)


@pytest.mark.parametrize(
    ("window", "pages", "tokens"),
    [
        (4, 1, 4),  # 5 tokens: a window of 1 to 4 lies in two pages
        (4, 2, CONTEXT),
        (6, 2, 8),  # 9 tokens: a window of 3 to 8 lies in three
        (6, 3, CONTEXT),
        (5, 1, 4),
        (5, 2, CONTEXT),  # a window of 4 to 8 and one of 3 to 7 both lie in two pages: 5 tokens never lie in more
        (8, 2, 8),
        (8, 3, CONTEXT),
        (9, 3, CONTEXT),  # the widest that three pages hold however it lies
        (10, 3, 12),
        (1, 1, CONTEXT),
        (2, 1, 4),
    ],
)
def test_a_window_needs_a_page_more_than_its_length_or_bounds_the_prompt(window: int, pages: int, tokens: int) -> None:
    config = Config(Layout(4, (WINDOW,), window), {WINDOW: pages}, CONTEXT)
    assert config.pool_tokens == longest(config) == tokens


@given(context=st.integers(1, 1000), pages=st.integers(1, 3))
def test_where_nothing_grows_with_the_prompt_the_context_bounds_it(context: int, pages: int) -> None:
    config = Config(Layout(4, (RECURRENT, ROW)), {RECURRENT: pages, ROW: pages}, context)
    assert config.pool_tokens == context
    assert config.limit == context


@given(config=configs)
def test_the_scarcest_kind_bounds_the_pool(config: Config) -> None:
    assert 0 < config.pool_tokens == longest(config) <= config.context_length


# What is admitted


@given(config=configs)
def test_the_limit_is_the_shortest_prompt_but_the_empty_one_that_is_refused(config: Config) -> None:
    for length in range(1, CONTEXT + 3):
        expected = COMMITTED if length < config.limit else LENGTH
        assert config.judge(request(length)) == expected


@given(config=configs, steps=st.integers(0, 30))
def test_what_is_admitted_fits_with_all_its_steps(config: Config, steps: int) -> None:
    """No page comes back before the end, so all that is read on the way is there at once."""
    for length in range(CONTEXT + 3):
        needed = {unit for more in range(steps + 1) for unit in config.layout.required(length + more)}
        kinds = [unit.kind for unit in needed]
        room = all(kinds.count(kind) <= config.pages[kind] for kind in config.layout.kinds)
        fits = 0 < length < config.limit and length + steps <= config.context_length and room
        assert config.judge(request(length), steps) == (COMMITTED if fits else LENGTH)


@pytest.mark.parametrize(("length", "steps", "outcome"), [(9, 1, COMMITTED), (9, 2, LENGTH), (1, 9, COMMITTED)])
@pytest.mark.parametrize("kinds", [(RECURRENT, ROW), (FULL, ROW)])
def test_prompt_and_answer_together_are_within_the_context(
    kinds: tuple[str, ...], length: int, steps: int, outcome: str
) -> None:
    config = Config(Layout(4, kinds), dict.fromkeys(kinds, 9), 10)
    assert config.judge(request(length), steps) == outcome


@given(config=configs, steps=st.integers(0, 9))
def test_a_prompt_of_no_token_is_refused_as_nothing_starts_from_it(config: Config, steps: int) -> None:
    assert config.judge(request(0), steps) == LENGTH


@pytest.mark.parametrize(
    ("context", "limit"),
    [
        (19, 19),
        (20, 20),  # a prompt of the whole context leaves no room for an answer
        (21, 21),
        (22, 21),  # the pool holds 20 tokens
        (100, 21),
    ],
)
def test_limit_around_the_end_of_context_and_pool(context: int, limit: int) -> None:
    config = Config(BASE, PAGES, context)
    assert config.limit == limit
    assert config.judge(request(limit - 1)) == COMMITTED
    assert config.judge(request(limit)) == LENGTH


@pytest.mark.parametrize(("length", "steps", "outcome"), [(20, 0, COMMITTED), (19, 1, COMMITTED), (20, 1, LENGTH)])
def test_steps_count_as_tokens_of_the_pool(length: int, steps: int, outcome: str) -> None:
    assert Config(BASE, PAGES, 100).judge(request(length), steps) == outcome


def test_what_judges_is_the_length_given_and_not_the_steps_of_the_request() -> None:
    config = Config(BASE, PAGES, 100)
    assert config.judge(request(20)._replace(steps=50)) == COMMITTED


@given(config=configs, steps=st.sampled_from([-1, -7, -100]))
def test_no_answer_is_shorter_than_no_token(config: Config, steps: int) -> None:
    for length in (0, 1, config.limit - 1, config.limit, config.limit + 10):
        assert config.judge(request(length), steps) == LENGTH
        assert config.cut(request(length), steps) is None


@pytest.mark.parametrize(
    ("length", "steps", "pages", "outcome"),
    [
        (8, 0, 2, COMMITTED),
        (8, 4, 3, COMMITTED),
        (8, 5, 3, LENGTH),  # the window of the prompt begins in page 0, and no page comes back on the way to page 3
        (8, 5, 4, COMMITTED),
        (10, 2, 2, COMMITTED),
        (10, 3, 3, COMMITTED),
        (10, 3, 2, LENGTH),
    ],
)
def test_a_window_needs_every_page_it_goes_over_on_the_way(length: int, steps: int, pages: int, outcome: str) -> None:
    config = Config(Layout(4, (WINDOW, RECURRENT), 5), {WINDOW: pages, RECURRENT: 1}, CONTEXT)
    assert config.judge(request(length), steps) == outcome


# What is cut


@given(config=configs, length=st.integers(0, CONTEXT + 3), steps=st.integers(-1, 30))
def test_a_prompt_is_cut_to_the_longest_that_is_admitted(config: Config, length: int, steps: int) -> None:
    whole = request(length)._replace(scope="t", adapter="x", content="y", steps=steps)
    admitted = [least for least in range(length + 1) if config.judge(request(least), steps) == COMMITTED]
    expected = whole._replace(tokens=whole.tokens[: admitted[-1]]) if admitted else None
    assert config.cut(whole, steps) == expected


@pytest.mark.parametrize(("context", "cut"), [(131072, None), (131073, 1), (200000, 68928), (300000, 131000)])
@pytest.mark.parametrize("kinds", [(ROW,), (FULL, ROW)])
def test_a_long_prompt_is_cut_with_few_judgements(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], context: int, cut: int | None
) -> None:
    config = Config(Layout(64, kinds), {FULL: 5000, ROW: 1}, context)
    judge, judged = Config.judge, []

    def counted(self: Config, asked: Request, steps: int = 0) -> str:
        judged.append(asked.length)
        assert len(judged) <= 40
        return judge(self, asked, steps)

    monkeypatch.setattr(Config, "judge", counted)
    shorter = config.cut(request(131000), 131072)
    assert (shorter.length if shorter else None) == cut


@pytest.mark.parametrize(
    ("length", "steps", "cut"), [(20, 0, 20), (21, 0, 20), (99, 0, 20), (20, 1, 19), (99, 19, 1), (99, 20, None)]
)
def test_the_answer_takes_its_room_before_the_prompt(length: int, steps: int, cut: int | None) -> None:
    shorter = Config(BASE, PAGES, 100).cut(request(length), steps)
    assert (shorter.length if shorter else None) == cut


# What is refused at the start


@pytest.mark.parametrize("name", ["context_length", "ranks", "slots", "lanes", "chunk_tokens", "tries", "tombstones"])
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_are_positive(name: str, size: int) -> None:
    sizes = {"context_length": 100, name: size}
    with pytest.raises(ValueError, match=f"{name} is {size}, and must be at least 1"):
        Config(BASE, PAGES, **sizes)  # type: ignore[arg-type]
    assert getattr(Config(BASE, PAGES, **{**sizes, name: 1}), name) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["wait_seconds", "retry_seconds", "fence_seconds"])
@pytest.mark.parametrize("seconds", [0, 0.0, -1, -0.5])
def test_times_are_positive(name: str, seconds: float) -> None:
    times = {name: seconds}
    with pytest.raises(ValueError, match=f"{name} is {seconds}, and must be more than 0"):
        Config(BASE, PAGES, 100, **times)  # type: ignore[arg-type]
    assert getattr(Config(BASE, PAGES, 100, **{name: 0.5}), name) == 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize("kinds", [(FULL, FULL), (FULL, ROW, FULL), (ROW, FULL, ROW)])
def test_no_cache_kind_is_named_twice(kinds: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"a cache kind is named twice in {', '.join(kinds)}"):
        Config(Layout(4, kinds), PAGES, 100)


@pytest.mark.parametrize("page_tokens", [0, -1, -4])
@pytest.mark.parametrize("kinds", [(), (ROW,), (FULL, ROW), KINDS])
def test_pages_hold_tokens(kinds: tuple[str, ...], page_tokens: int) -> None:
    pages = dict.fromkeys(KINDS, 4)
    with pytest.raises(ValueError, match=f"page_tokens is {page_tokens}, and must be at least 1"):
        Config(Layout(page_tokens, kinds, 6), pages, 100)
    assert Config(Layout(1, kinds, 6), pages, 100).layout.page_tokens == 1


def test_an_unknown_transport_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        ValueError, match="transport 'pigeon' is not one of shared-memory, tcp-epoch, mooncake-tcp-push"
    ):
        Config(BASE, PAGES, 100, transport="pigeon")


@pytest.mark.parametrize(
    ("transport", "event", "memory"),
    [
        ("rdma", "completed", "target"),
        ("gpudirect", "completed", "target"),
        ("mooncake-tcp-pull", "sender-fenced", "source"),
    ],
)
def test_a_transport_that_leaves_a_page_in_quarantine_for_ever_is_refused(
    transport: str, event: str, memory: str
) -> None:
    why = f"of transport '{transport}' it is not known that {event} frees the {memory}"
    with pytest.raises(ValueError, match=why):
        Config(BASE, PAGES, 100, transport=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_transport_is_taken_exactly_if_completion_and_fences_free_both_ends(transport: str) -> None:
    proofs: list[tuple[str, Memory]] = [
        (COMPLETED, "target"),
        (COMPLETED, "source"),
        (RECEIVER_FENCED, "target"),
        (SENDER_FENCED, "source"),
    ]
    if all(proves(transport, event, memory) for event, memory in proofs):
        assert Config(BASE, PAGES, 100, transport=transport).transport == transport
    else:
        with pytest.raises(ValueError, match="it is not known that"):
            Config(BASE, PAGES, 100, transport=transport)


@pytest.mark.parametrize("transport", ["shared-memory", "tcp-epoch", "mooncake-tcp-push"])
def test_a_transport_whose_writes_are_proved_over_is_taken(transport: str) -> None:
    assert Config(BASE, PAGES, 100, transport=transport).capabilities().transport == transport


@pytest.mark.parametrize("pages", [{FULL: 5}, {FULL: 5, ROW: 0}, {FULL: 5, ROW: -1, LATENT: 5}])
def test_every_cache_kind_has_pages(pages: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no pages for cache kind 'row'"):
        Config(BASE, pages, 100)
    with pytest.raises(ValueError, match="no pages for cache kind 'full'"):
        Config(BASE, {LATENT: 5}, 100)


# What is told to peers


def test_capabilities_are_those_of_the_set_up() -> None:
    config = Config(BASE, PAGES, 100, ranks=2, model="m@1", tags=("xxh3-128",), transport="tcp-epoch")
    assert config.capabilities() == Capabilities(
        VERSION, 21, BASE, 2, "m@1", ("xxh3-128",), canary=True, transport="tcp-epoch"
    )
    assert Config(BASE, PAGES, 100, version=(1, 4)).capabilities().version == (1, 4)


@pytest.mark.parametrize("off", [(), ("tags",), ("canary",), ("tags", "canary"), ("scrub",)])
def test_tags_and_canaries_are_told_of_while_they_are_on(off: tuple[str, ...]) -> None:
    told = Config(BASE, PAGES, 100, on=ALL.without(*off)).capabilities()
    assert told.tags == (() if "tags" in off else ("blake3-keyed",))
    assert told.canary == ("canary" not in off)


def test_tags_that_are_on_have_an_algorithm() -> None:
    with pytest.raises(ValueError, match="tags are on, and no tag algorithm is offered"):
        Config(BASE, PAGES, 100, tags=())
    assert Config(BASE, PAGES, 100, tags=(), on=ALL.without("tags")).capabilities().tags == ()


@pytest.mark.parametrize("tags", [("md5",), ("blake3-keyed", "md5"), ("BLAKE3_KEYED",), ("",)])
@pytest.mark.parametrize("off", [(), ("tags",)])
def test_an_algorithm_that_is_not_known_is_refused(tags: tuple[str, ...], off: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"'{tags[-1]}' is no tag algorithm"):
        Config(BASE, PAGES, 100, tags=tags, on=ALL.without(*off))


@pytest.mark.parametrize("tags", [("xxh3-128",), ("blake3-keyed",), ("xxh3-128", "blake3-keyed")])
def test_every_algorithm_that_is_known_is_taken(tags: tuple[str, ...]) -> None:
    assert Config(BASE, PAGES, 100, tags=tags).capabilities().tags == tags


def test_out_of_the_box_everything_is_on_and_tags_are_keyed() -> None:
    config = Config(BASE, PAGES, 100)
    assert config.on == ALL
    assert config.tags == ("blake3-keyed",)
    assert not config.truncate
    with pytest.raises(FrozenInstanceError):
        config.truncate = True  # type: ignore[misc]


def test_every_setting_is_documented_in_order() -> None:
    described = (Config.__doc__ or "").split("Attributes:\n")[1]
    names = [line.split(":")[0].strip() for line in described.splitlines() if line.startswith("        ")]
    documented = [name for line in names for name in line.split(", ")]
    assert documented == [setting.name for setting in fields(Config)]
