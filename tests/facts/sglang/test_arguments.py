from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import keys
from kvfence.facts.dialects.sglang.arguments import (
    DEFAULTS,
    FIELDS,
    Dump,
    put_fields,
    read_dump,
    read_flags,
    with_defaults,
)
from kvfence.facts.fact import Evidence, Key
from kvfence.facts.keys import KEYS
from kvfence.facts.model import Kind, Sighting

MANY = {f"field_{number}": number for number in range(120)}


def dumped(text: str) -> Dump:
    found = read_dump(text)
    assert found is not None
    return found


def put(**fields: object) -> Sighting:
    sighting = Sighting("w.log", Kind.LOG, "w")
    put_fields(sighting, fields, lambda name, content: Evidence("w.log", f"{name}={content}"))
    return sighting


def values(**fields: object) -> dict[str, object]:
    return {name: fact.value for name, fact in put(**fields).facts.items()}


def flags(text: str) -> dict[str, object]:
    return read_flags(text.split()).fields


def test_dict_and_repr_say_the_same() -> None:
    fields = {"model_path": "/m", "tp_size": 2, "context_length": None, "x": [1, 2], "y": True, "z": 0.5}
    as_call = "ServerArgs(" + ", ".join(f"{name}={content!r}" for name, content in fields.items()) + ")"
    assert dumped(repr(fields)).fields == dumped(as_call).fields == fields
    assert (dumped(repr(fields)).mapping, dumped(as_call).mapping) == (True, False)


def test_whole_dump_is_told_from_an_excerpt() -> None:
    assert dumped(repr(MANY)).complete
    assert not dumped(repr({"tp_size": 2})).complete


VALUES = ["it's", 'say "hi"', "back\\slash", "a, b='c'", "}{", "('x': 1,", "größe", "two\nlines", "", "tp_size=9, "]


@pytest.mark.parametrize("content", VALUES)
def test_strange_values_stay_whole(content: str) -> None:
    assert dumped(repr({"served_model_name": content, "tp_size": 2})).fields == {
        "served_model_name": content,
        "tp_size": 2,
    }


@pytest.mark.parametrize("content", VALUES)
def test_strange_values_survive_an_object_that_python_cannot_read(content: str) -> None:
    text = repr({"served_model_name": content, "tp_size": 2})[:-1] + ", 'x': <Object at 0x7f>, 'pp_size': 3}"
    found = dumped(text)
    assert not found.complete
    assert found.fields["served_model_name"] == content
    assert (found.fields["tp_size"], found.fields["pp_size"]) == (2, 3)


def test_objects_are_kept_as_text() -> None:
    assert dumped("ServerArgs(x=Path('/a'), y=Mode.A, tp_size=2)").fields == {
        "x": "Path('/a')",
        "y": "Mode.A",
        "tp_size": 2,
    }


@pytest.mark.parametrize("cut", [25, 60, 100, 400])
def test_cut_dump_gives_what_stands_before_the_cut(cut: int) -> None:
    text = repr({"model_path": "/m", **MANY})[:cut]
    found = dumped(text)
    assert not found.complete
    assert found.fields["model_path"] == "/m"
    assert all(found.fields[name] == MANY[name] for name in found.fields.keys() - {"model_path"})


@given(st.integers(1, 300))
def test_no_cut_makes_a_value_up(cut: int) -> None:
    fields = {"served_model_name": "it's 'tp_size': 9, pp_size=9", "port": 30000, "api_key": None, "tp_size": 2}
    found = read_dump(repr(fields)[:cut])
    if found is not None:
        assert all(found.fields[name] == fields[name] for name in found.fields.keys() & fields.keys())
        assert found.fields.keys() <= fields.keys()


@pytest.mark.parametrize("text", ["", "None", "[1, 2]", "model_path='x'", "args", "ServerArg(x=1)"])
def test_other_text_is_no_dump(text: str) -> None:
    assert read_dump(text) is None


@pytest.mark.parametrize(
    "text", ["{" + "[" * 5000, "{'a': " * 3000, "ServerArgs(" * 3000, "{'a': " + "(" * 90 + ")" * 90 + "}"]
)
def test_hostile_nesting_does_not_stop_it(text: str) -> None:
    read_dump(text)


def test_endless_number_does_not_stop_it() -> None:
    found = read_dump("{'tp_size': 2, 'x': " + "9" * 5000 + "}")
    assert found is None or found.fields["tp_size"] == 2


@pytest.mark.parametrize("content", ["a+" * 500 + "a", "-" * 500 + "1", "not " * 500 + "x", "a" + "()" * 500])
def test_deep_argument_does_not_stop_it(content: str) -> None:
    assert dumped(f"{{'tp_size': 2, 'x': {content}}}").fields["tp_size"] == 2


@given(st.text(max_size=200))
def test_no_dump_stops_it(text: str) -> None:
    read_dump("{" + text)
    read_dump("ServerArgs(" + text)


@pytest.mark.parametrize(
    ("command", "field", "expected"),
    [
        ("--tp 8", "tp_size", "8"),
        ("--tp-size 8", "tp_size", "8"),
        ("--tensor-parallel-size 8", "tp_size", "8"),
        ("--tp=8", "tp_size", "8"),
        ("--tp_size 8", "tp_size", "8"),
        ("--dp 2", "dp_size", "2"),
        ("--pp 2", "pp_size", "2"),
        ("--context-len 4096", "context_length", "4096"),
        ("--context-length=4096", "context_length", "4096"),
        ("--allow-auto-trunc", "allow_auto_truncate", True),
        ("--allow-auto-truncate", "allow_auto_truncate", True),
        ("--served-model-name=", "served_model_name", ""),
        ("--cuda-graph-bs 1 2 4 --tp 8", "tp_size", "8"),
        ("--schedule-conservativeness -0.5 --tp 8", "tp_size", "8"),
        ("--port 1 --port 2", "port", "2"),
        ("python --tp 8 > out.log", "tp_size", "8"),
    ],
)
def test_flag_sets_its_field(command: str, field: str, expected: object) -> None:
    assert flags(command)[field] == expected


def test_flag_without_value_takes_none_from_what_follows() -> None:
    assert flags("--allow-auto-truncate false --port 1") == {"allow_auto_truncate": True, "port": "1"}


def test_list_takes_all_its_values() -> None:
    read = read_flags(["--lora-paths", "a", "b", "c", "--tp", "8"])
    assert read.fields == {"lora_paths": "a b c", "tp_size": "8"}


def test_prefix_that_may_mean_two_flags_is_unknown() -> None:
    assert read_flags(["--disagg", "x"]).unknown == ("--disagg",)


def test_unknown_flags_are_told_and_their_values_passed_over() -> None:
    read = read_flags(["--no-such-flag", "7", "--tp", "8", "--other=3"])
    assert (read.unknown, read.fields) == (("--no-such-flag", "--other"), {"tp_size": "8"})


def test_flag_that_lacks_its_value_is_told() -> None:
    assert read_flags(["--port"]).unknown == ("--port",)
    assert read_flags(["--port", "--tp", "8"]).fields == {"tp_size": "8"}


def test_config_file_is_named() -> None:
    assert read_flags(["--config", "a.yaml", "--tp", "8"]).config == "a.yaml"
    assert read_flags(["--config"]).config is None


@given(
    st.lists(
        st.sampled_from(["--tp", "--port=1", "--config", "8", "--", "--=", "-x", "", "--no-x", "=", "--lora-paths"])
    )
)
def test_no_words_stop_it(words: list[str]) -> None:
    read_flags(words)


@pytest.mark.parametrize(
    ("field", "given_as", "key", "expected"),
    [
        ("disaggregation_mode", "prefill", keys.ROLE, "prefill"),
        ("disaggregation_mode", "null", keys.ROLE, "unified"),
        ("disaggregation_mode", "encode", keys.ROLE, None),
        ("disaggregation_mode", None, keys.ROLE, None),
        ("port", "30000", keys.PORT, 30000),
        ("port", 30000.0, keys.PORT, 30000),
        ("port", True, keys.PORT, None),
        ("port", "http", keys.PORT, None),
        ("context_length", None, keys.CONTEXT_LEN, None),
        ("allow_auto_truncate", "True", keys.AUTO_TRUNCATE, True),
        ("allow_auto_truncate", False, keys.AUTO_TRUNCATE, False),
        ("allow_auto_truncate", "maybe", keys.AUTO_TRUNCATE, None),
        ("mem_fraction_static", "0.88", keys.MEM_FRACTION, 0.88),
        ("mem_fraction_static", None, keys.MEM_FRACTION, None),
        ("mem_fraction_static", "most", keys.MEM_FRACTION, None),
        ("quantization", "None", keys.QUANTIZATION, None),
        ("quantization", ["fp8"], keys.QUANTIZATION, None),
    ],
)
def test_value_is_converted_or_left_out(field: str, given_as: object, key: Key[Any], expected: object) -> None:
    assert values(**{field: given_as}).get(key.name) == expected


ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.binary())


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), ODD))
def test_every_fact_has_the_type_of_its_key(fields: dict[str, object]) -> None:
    for name, content in values(**fields).items():
        assert isinstance(content, KEYS[name].kind)


def test_secret_is_told_of_and_never_kept() -> None:
    sighting = put(model_path="m", api_key="hunter2hunter2", admin_api_key=None)
    assert "hunter2" not in repr(sighting)
    assert sighting.facts["api_key_set"].value is True
    assert [shown.value for shown in sighting.secrets_shown] == ["api_key"]


@pytest.mark.parametrize("blank", [None, "", "None"])
def test_no_key_is_told_as_none(blank: object) -> None:
    sighting = put(model_path="m", api_key=blank)
    assert sighting.facts["api_key_set"].value is False
    assert sighting.secrets_shown == []


@pytest.mark.parametrize("scrubbed", ["<redacted>", "***", "xxxx", "${API_KEY}"])
def test_secret_that_was_blanked_out_is_not_shown(scrubbed: str) -> None:
    sighting = put(model_path="m", api_key=scrubbed)
    assert sighting.facts["api_key_set"].value is True
    assert sighting.secrets_shown == []


def test_fields_prove_the_engine() -> None:
    assert values(tp_size=2)["engine"] == "sglang"
    assert values() == {}


def test_defaults_are_those_of_fields_that_are_not_given() -> None:
    assert with_defaults({"host": "h"}).keys() == DEFAULTS.keys() - {"host"}
    assert all(FIELDS[name][1](content) is not None for name, content in DEFAULTS.items())
