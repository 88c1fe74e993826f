from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.counting.template import ChatTemplate, UnwritableError
from kvfence.counting.template_bound import ROLE_BYTES, LinearBound, bound_of
from kvfence.counting.template_expression import _CASE
from tests.counting.templates import CHATML, REAL, SPECIALS

NAMED = frozenset((*SPECIALS, "unk_token"))
ROLES = ("system", "user", "assistant", "tool", "x" * ROLE_BYTES)

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.sampled_from(
        ("", " ", '"\\\n' * 5, "\x00" * 9, "\u0390" * 7, "<think>a</think>b", "\U0010ffff", "false", "a" * 300)
    ),
)
CONVERSATIONS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(ROLES), "content": TEXTS}), min_size=1, max_size=6
)


LATE = """
{%- set ns = namespace(x='', y='') %}
{%- for m in messages %}{% set ns.y = ns.x %}{% set ns.x = ns.x + m.content %}{% endfor %}{{ ns.y }}
"""
EARLIER = """
{%- set ns = namespace(m=none) %}{% for m in messages %}{% set ns.m = m %}{% endfor %}
{%- for m in messages %}{{ ns.m.content }}{% endfor %}
"""


def bound(source: str) -> LinearBound | None:
    return bound_of(ChatTemplate(source, SPECIALS), NAMED)


def hold(source: str, messages: list[dict[str, str]]) -> bool:
    """Look that the bound, if there is one, is no shorter than what the template writes; tell whether it wrote."""
    template = ChatTemplate(source, SPECIALS)
    found = bound_of(template, NAMED)
    try:
        written = template.render(messages, add_generation_prompt=True)
    except UnwritableError:
        return False
    if found is not None:
        body = msgspec.json.encode(messages)  # no JSON of these messages is shorter
        assert len(written.encode()) <= found.most(len(messages), len(body))
    return True


@pytest.mark.parametrize("name", REAL)
def test_templates_of_models_are_bounded_closely(name: str) -> None:
    found = bound(REAL[name])
    assert found is not None
    assert found.per_body_byte <= 3  # the branches of several roles are not known to exclude each other
    assert found.base + found.per_message < 300


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=40, deadline=None)
@given(messages=CONVERSATIONS)
def test_no_prompt_of_a_models_template_is_longer_than_its_bound(name: str, messages: list[dict[str, str]]) -> None:
    hold(REAL[name], messages)


def test_a_bound_is_what_the_template_adds() -> None:
    found = bound("a{% for m in messages %}[{{ m.content }}]{% endfor %}é")
    assert found == LinearBound(base=3, per_message=2, per_body_byte=1)
    assert found.most(messages=4, body_bytes=100) == 3 + 8 + 100


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% for n in messages %}{{ n.content }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ messages[0].content }}{% endfor %}",
        "{% for m in messages %}{{ messages | tojson }}{% endfor %}",
        "{% set all = messages[0].content %}{% for m in messages %}{{ all }}{% endfor %}",
        "{% for m in messages %}{{ m.content * 2 }}{% endfor %}",
        "{{ messages[0].content * messages | length }}",
        "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x + m.content %}{{ ns.x }}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for m in messages %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        LATE,
        "{% for c in messages[0].content %}ab{% endfor %}",
        "{% for i in range(1000) %}ab{% endfor %}",
        "{% for w in messages[0].content.split('a') %}{{ w }}long{% endfor %}",
        "{{ messages[0].content | indent(100) }}",
        "{{ messages[0].content | center(100000) }}",
        "{{ messages[0].content.replace('', 'abc') }}",
        "{{ messages[0].content | urlize }}",
        "{{ messages[0].content | e }}",
        "{{ messages[0].content.join(['a', 'b', 'c']) }}",
        "{{ '%1000s' % messages[0].content }}",
        "{{ '{:>1000}'.format(messages[0].content) }}",
        "{{ messages[0].content | tojson(indent=4) }}",
        "{{ messages[0].items() | list }}",
        "{{ messages[0] }}",
        "{{ messages }}",
        "{{ 2 ** 1000 }}",
        "{{ lipsum() }}",
        "{{ pad_token }}",
        "{{ strftime_now('%1000Y') }}",
        "{{ cycler('a') }}",
        "{% macro f(n) %}a{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}a{% endcall %}",
        "{% for m in messages %}{% if m.content %}{% continue %}{% endif %}a{% endfor %}",
        "{% for m in messages recursive %}a{{ loop(messages) }}{% endfor %}",
        "{% filter upper %}{{ messages[0].content }}{% endfilter %}",
        EARLIER,
    ],
)
def test_what_is_not_understood_has_no_bound(source: str) -> None:
    assert bound(source) is None


@pytest.mark.parametrize(
    ("source", "longest"),
    [
        ("{% if tools %}{{ tools * 9 }}{% endif %}a", 1),
        ("{% if messages[0].tool_calls %}{{ messages * 2 }}{% endif %}a", 1),
        ("{% if messages[9] is defined %}a{% else %}abc{% endif %}", 3),
        ("{% if messages[9] %}a{% else %}abc{% endif %}", 3),
        ("{% if messages[0].content[5] is defined %}a{% else %}abc{% endif %}", 3),
        ("{% if messages[0].content %}{% set x = 'a' %}{% endif %}{% if x is defined %}a{% else %}abc{% endif %}", 3),
        ("{% if messages[0].content %}{% set x = 'a' %}{% endif %}{% if x is string %}a{% else %}abc{% endif %}", 3),
        ("{% set x = messages[0].content and none %}{% if x is none %}abc{% else %}a{% endif %}", 3),
        ("{{ unk_token }}{{ bos_token }}", 3),
        ("{{ strftime_now('%d %b %Y') }}", 200),
        ("{% set ns = namespace(x='a') %}{% for m in messages %}{% set ns.x = 'abc' %}{% endfor %}{{ ns.x }}", 3),
    ],
)
def test_both_ways_count_where_neither_is_sure(source: str, longest: int) -> None:
    found = bound(source)
    assert found is not None
    assert found.per_message == found.per_body_byte == 0
    assert found.base <= longest + 4
    for content in ("", "a", "abcdefgh"):
        assert hold(source, [{"role": "user", "content": content}])


def test_what_only_the_first_pass_writes_counts_once() -> None:
    source = "{% for m in messages %}{% if loop.first %}{{ messages[0].content }}{% endif %}{{ m.content }}{% endfor %}"
    assert bound(source) == LinearBound(base=0, per_message=0, per_body_byte=2)
    # The last pass is another than the first, and what it writes is not known to be written once.
    assert bound(source.replace("loop.first", "loop.last")) is None
    assert bound(source.replace("loop.first", "loop.first or loop.last")) is None


def test_a_change_of_letters_is_bounded_for_all_of_unicode() -> None:
    points = (chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000)
    changing = [character for character in points if not character.lower() == character.upper() == character.title()]
    assert len(changing) > 1000
    for name, factor in _CASE.items():
        worst = max(len(getattr(character, name)().encode()) / len(character.encode()) for character in changing)
        assert 1 < worst <= factor, name


EXPRESSIONS = (
    "'ab'",
    "nothing",
    "yes",
    "three",
    "messages[0].content",
    "messages[-1]['role']",
    "messages[1].content",
    "m.content",
    "m['role']",
    "m.name",
    "m.get('content')",
    "m.get('name', 'ab')",
    "m",
    "x",
    "y",
    "ns.x",
    "ns.y",
    "loop.index",
    "loop.first",
    "messages",
    "(messages | length)",
    "bos_token",
    "tools",
    "f({0})",
)
OPERATIONS = (
    "{0}",
    "({0} + {1})",
    "({0} ~ {1})",
    "({0} and {1})",
    "({0} or {1})",
    "({0} if {2} else {1})",
    "({0} | trim)",
    "({0} | upper)",
    "({0} | tojson)",
    "({0} | replace('a', '\"<>'))",
    "({0} | default({1}))",
    "({0} | default({1}, true))",
    "({0} | string)",
    "({0} | first)",
    "{0}.split('a')[-1]",
    "{0}.strip()",
    "{0}[1:]",
    "{0}[0]",
)
TESTS = (
    "{0}",
    "not {0}",
    "{0} is defined",
    "{0} is string",
    "{0} is none",
    "{0} is mapping",
    "{0} == {1}",
    "{0} is true",
    "loop.first",
    "loop.index0 == 0 and {0}",
)
STATEMENTS = (
    "{{{{ {0} }}}}",
    "text",
    "{{% set x = {0} %}}",
    "{{% set y = {0} %}}",
    "{{% set ns.x = {0} %}}",
    "{{% set ns.y = {0} %}}",
    "{{% set ns.x = ns.x + {0} %}}",
    "{{% if {2} %}}{3}{{% else %}}{4}{{% endif %}}",
    "{{% if {2} %}}{3}{{% endif %}}",
    "{{% for m in messages %}}{3}{{% endfor %}}",
    "{{% for m in messages[1:] if {2} %}}{3}{{% endfor %}}",
    "{{% set x %}}{3}{{% endset %}}",
)


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Make a small template of anything that the analysis knows of."""

    def expression(depth: int) -> str:
        atom = draw(st.sampled_from(EXPRESSIONS[: -1 if depth else None]))
        if not depth or draw(st.booleans()):
            return atom.format("'a'")
        parts = (expression(depth - 1), expression(depth - 1), test(depth - 1))
        return draw(st.sampled_from(OPERATIONS)).format(*parts)

    def test(depth: int) -> str:
        return draw(st.sampled_from(TESTS)).format(expression(depth), expression(depth))

    def body(depth: int) -> str:
        return "".join(statements(depth))

    def statements(depth: int) -> Iterator[str]:
        for _ in range(draw(st.integers(1, 3))):
            form = draw(st.sampled_from(STATEMENTS[:7] if not depth else STATEMENTS))
            inner = (body(depth - 1), body(depth - 1)) if "{3}" in form else ("", "")
            yield form.format(expression(1), "", test(1), *inner)

    head = "{% macro f(a) %}[{{ a }}]{% endmacro %}{% set ns = namespace(x='', y=false) %}"
    head += "{% set nothing = none %}{% set yes = true %}{% set three = 3 %}"
    return head + body(2)


@settings(max_examples=120, deadline=None)
@given(templates(), CONVERSATIONS)
def test_no_prompt_of_any_template_is_longer_than_its_bound(source: str, messages: list[dict[str, str]]) -> None:
    hold(source, messages)


def test_the_templates_of_that_test_are_bounded_and_written_often_enough() -> None:
    seen = {True: 0, False: 0}

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(templates())
    def count(source: str) -> None:
        if bound(source) is not None:
            seen[hold(source, [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}])] += 1

    count()
    assert seen[True] > 12


def test_an_unbounded_template_is_no_error() -> None:
    assert bound(CHATML + "{{ messages }}") is None
