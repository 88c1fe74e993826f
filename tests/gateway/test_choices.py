"""From what an operator writes to the settings: every mistake is named by its option."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfence.errors import InputError
from kvfence.gateway import choices
from kvfence.gateway.settings import Settings

P, D, U = "http://10.0.0.1:1", "http://10.0.0.2:1", "http://10.0.0.3:1"


def test_the_mode_follows_from_what_is_given() -> None:
    pd = choices.read_places([], [f"{P},8998"], [D], [], None)
    assert (len(pd.prefill), len(pd.decode), pd.upstreams) == (1, 1, ())
    assert pd.prefill[0].bootstrap_port == 8998
    front = choices.read_places([U], [P], [D], ["http://10.0.0.4:1"], 500)
    assert [spec.role for spec in front.upstreams] == ["router"]
    assert [spec.role for spec in front.limits_from] == ["prefill", "decode", "behind"]
    assert {spec.limit for spec in front.limits_from} == {500}
    assert [spec.role for spec in choices.read_places([U], [], [], [], None).upstreams] == ["unified"]


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (([], [], [], []), "the call"), (([], [P], [], []), "--decode"), (([], [], [D], []), "--prefill"),
        (([], [P], [D], [U]), "--worker"), (([], [P], [P], []), "the call"), (([U], [U], [], []), "the call"),
        ((["10.0.0.1:1"], [], [], []), "--upstream"), ((["https://a:1"], [], [], []), "--upstream"),
        (([], [f"{P},x"], [D], []), "--prefill"), (([], [P], [f"{D},5"], []), "--decode"),
        ((["http://user:secret@a:1"], [], [], []), "--upstream"),
    ],
)  # fmt: skip
def test_what_makes_no_mode_is_refused(given: tuple[list[str], list[str], list[str], list[str]], option: str) -> None:
    with pytest.raises(InputError) as error:
        choices.read_places(*given, None)
    assert error.value.source == option
    assert "secret" not in str(error.value)


def test_fields_headers_and_keys() -> None:
    assert choices.read_fields(["rid=refuse", "X-Foo=allow"]) == {"rid": "refuse", "x-foo": "allow"}
    assert choices.read_tenant_header("X-Tenant") == "x-tenant"
    assert choices.read_key("KEY", {"KEY": " abc "}) == "abc"
    assert choices.read_key("KEY", {}) is None
    assert choices.read_salt("x-tenant", "SALT", {"SALT": "0123456789abcdef"}) == b"0123456789abcdef"
    assert choices.read_salt(None, "SALT", {}) is None
    with pytest.raises(InputError, match="--field"):
        choices.read_fields(["rid"])
    with pytest.raises(InputError, match="--tenant-header"):
        choices.read_tenant_header("Authorization")
    with pytest.raises(InputError) as error:
        choices.read_key("KEY", {"KEY": "se\ncret"})
    assert "cret" not in str(error.value)
    with pytest.raises(InputError, match="SALT"):
        choices.read_salt("x-tenant", "SALT", {"SALT": "short"})


def test_a_template_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages }}")
    assert choices.read_template(path) == "{{ messages }}"
    assert choices.read_template(None) is None
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        choices.read_template(path)
    with pytest.raises(InputError, match="cannot be read"):
        choices.read_template(tmp_path / "none")


def test_no_key_is_shown() -> None:
    settings = Settings(salt_key=b"salt-salt-salt-salt", upstream_key="key-key-key", chat_template="long")
    assert "salt-salt" not in repr(settings)
    assert "key-key" not in repr(settings)
    assert "key-key" not in str(settings.told())


@pytest.mark.parametrize(
    ("pd", "chosen", "passes"), [(True, None, True), (False, None, False), (True, "refuse", False)]
)
def test_an_uncounted_prompt_goes_on_where_the_answer_is_held(pd: bool, chosen: None, passes: bool) -> None:
    places = choices.read_places([] if pd else [U], [P] if pd else [], [D] if pd else [], [], None)
    settings = Settings(upstreams=places.upstreams, prefill=places.prefill, decode=places.decode, uncounted=chosen)
    assert settings.pd is pd
    assert settings.passes_uncounted is passes
