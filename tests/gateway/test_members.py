"""Members deep inside a value are found however their names are spelled, and nothing else is changed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.gateway.members import Cut, ExcessError, Search

PATH = ("content", "uuid")


def raw(text: str) -> msgspec.Raw:
    """Give JSON as a decoder does: a slice of something larger."""
    return msgspec.json.decode(f'{{"x":  {text} , "y": 1}}'.encode(), type=dict[str, msgspec.Raw])["x"]


def take(text: str, path: tuple[str, ...] = PATH) -> tuple[str, list[str]]:
    """Give what is left of a value, and the values that were judged."""
    judged: list[str] = []
    left = Cut(path, Search({path[-1]}), lambda value: judged.append(bytes(value).decode())).without(raw(text))
    return bytes(left).decode(), judged


@pytest.mark.parametrize(
    "text",
    [
        '[{"content":[{"uuid":"a"}]}]',
        r'[{"content":[{"\u0075uid":"a"}]}]',
        r'[{"content":[{"uu\u0069\u0064":"a"}]}]',
        r'[{"content":[{"\u0075\u0075\u0069\u0064":"a"}]}]',
    ],
)
def test_name_is_found_however_it_is_spelled(text: str) -> None:
    assert json.loads(text) == [{"content": [{"uuid": "a"}]}]
    assert Search({"uuid"}).may_find(raw(text))
    assert take(text) == ('[{"content":[{}]}]', ['"a"'])


@pytest.mark.parametrize("spelling", [r"pad\u005fvalue", r"pad\u005Fvalue", r"pad_v\u0061lue", r"pad_valu\u0065"])
def test_underscore_may_be_spelled_too(spelling: str) -> None:
    assert Search({"pad_value"}).may_find(raw(f'{{"{spelling}":1}}'))


@pytest.mark.parametrize(
    "text",
    [
        '[{"role":"user","content":"a uuid, \\"uuid\\", is not one"}]',
        r'[{"content":"<\/b> \u003cb\u003e \u4f60\u597d \ud83d\ude00 \u0026 \u0000 \n"}]',
        "[]",
        '""',
    ],
)
def test_what_encoders_write_is_not_taken_for_a_name(text: str) -> None:
    assert not Search({"uuid"}).may_find(raw(text))


@pytest.mark.parametrize(
    ("text", "left", "judged"),
    [
        ('[{"uuid":1,"content":"x"}]', '[{"uuid":1,"content":"x"}]', []),
        ('[{"content":[{"text":{"uuid":1}}]}]', '[{"content":[{"text":{"uuid":1}}]}]', []),
        ('{"content":{"uuid":1, "a":1.50}}', '{"content":{"a":1.50}}', ["1"]),
        ('[{"content":[{"uuid":1},{"uuid":[2]}]},{"a":null}]', '[{"content":[{},{}]},{"a":null}]', ["1", "[2]"]),
        ('[{"content":{"n":98765432109876543210987, "uuid":1}}]', '[{"content":{"n":98765432109876543210987}}]', ["1"]),
        ("7", "7", []),
    ],
)  # fmt: skip
def test_only_members_at_the_path_are_taken(text: str, left: str, judged: list[str]) -> None:
    assert take(text) == (left, judged)


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ('{"content":{"uuid":1,"uuid":null}}', ["null"]),
        ('{"content":{"uuid":null,"uuid":1}}', ["1"]),
        ('{"content":[{"uuid":1}],"content":"x"}', []),
        ('{"content":[{"uuid":1}],"content":{"uuid":null,"uuid":2}}', ["2"]),
    ],
)
def test_name_that_comes_twice_is_the_last_and_then_once(text: str, judged: list[str]) -> None:
    left, seen = take(text)
    assert seen == judged
    assert "uuid" not in left
    assert json.loads(left) == {"content": left_of(json.loads(text)["content"])}


def left_of(content: Any) -> Any:
    return {key: value for key, value in content.items() if key != "uuid"} if isinstance(content, dict) else content


def test_tower_of_lists_is_not_climbed() -> None:
    assert take('[[["uuid"]]]') == ('[[["uuid"]]]', [])
    assert take("[[[[[[1]]]]]]") == ("[[[[[[1]]]]]]", [])
    with pytest.raises(ExcessError):
        take('[[[["uuid"]]]]')


def test_parts_without_number_are_not_all_looked_at() -> None:
    assert take(f'[{{"content":[{"{}," * 8_000}{{"uuid":1}}]}}]')[1] == ["1"]
    with pytest.raises(ExcessError):
        take(f'[{{"content":[{"{}," * 12_000}{{"uuid":1}}]}}]')
    with pytest.raises(ExcessError):
        take(f'[{"0," * 300_000}"uuid"]')
    assert take(f"[{'0,' * 300_000}0]") == (f"[{'0,' * 300_000}0]", [])


@pytest.mark.parametrize("before", [*range(65_500, 65_540), 131_060, 262_100])
def test_name_is_found_wherever_it_stands(before: int) -> None:
    value = raw(f'"{"x" * before}"')
    assert not Search({"uuid"}).may_find(value)
    assert Search({"uuid"}).may_find(raw(f'["{"x" * before}","uuid","{"y" * 70_000}"]'))


def test_judge_may_raise() -> None:
    def refuse(value: msgspec.Raw) -> None:
        raise LookupError(bytes(value))

    with pytest.raises(LookupError):
        Cut(PATH, Search({"uuid"}), refuse).without(raw('{"content":{"uuid":1}}'))


NAMES = st.sampled_from(["uuid", "content", "text", "type"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def cut(value: Any, path: tuple[str, ...]) -> Any:
    """Do the same on decoded JSON."""
    if isinstance(value, list):
        return [cut(part, path) for part in value]
    if not isinstance(value, dict):
        return value
    key, *rest = path
    if not rest:
        return {name: part for name, part in value.items() if name != key}
    return {name: cut(part, tuple(rest)) if name == key else part for name, part in value.items()}


@given(VALUES, st.booleans(), st.integers(0, 3))
def test_cut_is_that_of_decoded_json(value: Any, ascii_only: bool, escaped: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    name = "".join(f"\\u{ord(letter):04x}" if place < escaped else letter for place, letter in enumerate("uuid"))
    text = text.replace('"uuid"', f'"{name}"')
    given_raw = raw(text.encode("utf-8", "replace").decode())
    expected = cut(json.loads(bytes(given_raw)), PATH)
    if not Search({"uuid"}).may_find(given_raw):
        assert json.loads(bytes(given_raw)) == expected
        return
    try:
        left = Cut(PATH, Search({"uuid"}), lambda _: None).without(given_raw)
    except ExcessError:
        return
    assert json.loads(bytes(left)) == expected
