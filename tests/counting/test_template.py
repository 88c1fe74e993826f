from __future__ import annotations

import pytest

from kvfence.counting.template import ChatTemplate, UnwritableError

HI = {"role": "user", "content": "hi"}


def render(source: str, **given: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render([HI], add_generation_prompt=True, **given)  # type: ignore[arg-type]


def test_a_template_is_given_tools_documents_and_variables() -> None:
    source = "{{ tools[0].name }} {{ documents[0].text }} {{ x }} {{ bos_token }}"
    given = {"tools": [{"name": "f"}], "documents": [{"text": "t"}], "variables": {"x": 1}}
    assert render(source, **given) == "f t 1 <s>"


def test_without_them_it_is_given_nothing() -> None:
    assert render("{{ tools is none }} {{ documents is none }} {{ x is defined }}") == "True True False"


def test_a_variable_counts_before_a_special_token() -> None:
    assert render("{{ bos_token }}", variables={"bos_token": "other"}) == "other"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("tojson", '{"b": "é<", "a": 1}'),
        ("tojson(ensure_ascii=true)", '{"b": "\\u00e9<", "a": 1}'),
        ("tojson(separators=(',', ':'))", '{"b":"é<","a":1}'),
        ("tojson(sort_keys=true)", '{"a": 1, "b": "é<"}'),
        ("tojson(indent=1)", '{\n "b": "é<",\n "a": 1\n}'),
    ],
)
def test_json_is_written_as_hugging_face_does(call: str, expected: str) -> None:
    assert render(f"{{{{ x | {call} }}}}", variables={"x": {"b": "é<", "a": 1}}) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ x.clear() }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(UnwritableError):
        render(source, variables={"x": {"a": 1}})


def test_it_can_be_looked_into() -> None:
    template = ChatTemplate("{{ a }}", {})
    assert template.source == "{{ a }}"
    assert len(template.syntax().body) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("source", ["{% if %}", "{{ x | nope }}", "{% set x = none[1:] %}", "{{" + "(" * 5000 + "}}"])
def test_what_is_no_template_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match="is no Jinja template"):
        ChatTemplate(source, {})
