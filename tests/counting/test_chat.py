from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvfence.counting.asked import CHAT, BadRequestError, Chat, UncountableError, read
from kvfence.counting.chat import Rendered, Renderer, Settings, open_renderer, render
from kvfence.counting.chat.content import of_sglang, of_vllm
from kvfence.counting.model_files import ModelFiles
from kvfence.counting.template import ChatTemplate, UnwritableError
from tests.counting.templates import REAL

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
# Shows all that a template is given.
DUMP = (
    "{{ messages | tojson }}|{{ tools | tojson }}|{{ documents | tojson }}|{{ add_generation_prompt }}"
    "|{{ enable_thinking | default('-') }}|{{ x | default('-') }}|{{ bos_token }}"
)
PARTS = "{% for message in messages %}{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
END = "|True|-|-|<s>"
SGLANG = Settings(engine="sglang", version="0.5.23", model="/models/x")
OLDER = Settings(engine="sglang", version="0.5.18", model="/models/x")
VLLM = Settings(engine="vllm", version="0.32.0")
KVFENCE = Settings(engine="kvfence", version=None)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

Open = Callable[..., Renderer]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Open a renderer for a model with a template."""

    def make(settings: Settings, template: object = DUMP, config: object = CONFIG, **more: object) -> Renderer:
        named = {"chat_template": template, "bos_token": "<s>", "eos_token": None}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(named | more))
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        return open_renderer(settings, ModelFiles.open(tmp_path))

    return make


def conversation(engine: str, *messages: object, **body: object) -> Chat:
    fields = MEMBERS.decode(json.dumps({"messages": messages} | body))
    (prompt,) = read(engine, CHAT, fields).prompts
    assert isinstance(prompt, Chat)
    return prompt


def written(renderer: Renderer, engine: str, *messages: object, **body: object) -> str:
    return renderer.render(conversation(engine, *messages, **body)).text


def user(content: object = "hi", **more: object) -> dict[str, object]:
    return {"role": "user", "content": content} | more


def assistant(content: object = "yes", **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content} | more


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("settings", [SGLANG, VLLM, KVFENCE], ids=lambda settings: settings.engine)
def test_a_plain_conversation_is_what_the_template_makes_of_it(opened: Open, settings: Settings, name: str) -> None:
    renderer = opened(settings, REAL[name], eos_token="</s>")
    messages: list[dict[str, object]] = [{"role": "system", "content": " be\u00e9 "}, user(), assistant(), user("more")]
    chat = conversation(settings.engine, *messages)
    assert chat.plain is not None
    plainly = ChatTemplate(REAL[name], {"bos_token": "<s>", "eos_token": "</s>"})
    expected = plainly.render(messages, add_generation_prompt=True)
    assert renderer.render(chat) == Rendered(expected, add_special_tokens=False)
    assert renderer.bound is not None
    assert len(expected.encode()) <= renderer.bound.most(chat.turns, chat.most_bytes)


def test_sglang_makes_a_last_answer_the_users(opened: Open) -> None:
    renderer = opened(SGLANG)
    expected = '[{"role": "user", "content": "hi"}, {"role": "user", "content": "yes"}]|null|null' + END
    assert written(renderer, "sglang", user(), assistant()) == expected
    assert written(renderer, "sglang", user(name="n"), assistant(tool_calls=[CALL], name="n")) == expected
    assert written(opened(VLLM), "vllm", user(), assistant()) == expected.replace(
        '"user", "content": "y', '"assistant", "content": "y'
    )


def test_sglang_takes_roles_in_any_letters_but_the_users(opened: Open) -> None:
    renderer = opened(SGLANG)
    assert '"role": "system"' in written(renderer, "sglang", {"role": "SYSTEM", "content": "a"}, user())
    for role in ("User", "alien"):
        with pytest.raises(BadRequestError):
            written(renderer, "sglang", {"role": role, "content": "a"})
    assert '"root"' in written(renderer, "sglang", {"role": "root", "content": "a"}, user())
    with pytest.raises(BadRequestError):
        written(opened(OLDER), "sglang", {"role": "root", "content": "a"})


def test_sglang_gives_known_fields_in_its_own_order(opened: Open) -> None:
    more = {"zzz": 1, "reasoning_content": "r", "name": "n", "tool_calls": [CALL | {"zzz": 1}], "phase": "final_answer"}
    message = '{"role": "assistant", "content": "", "name": "n", "phase": "final_answer", "reasoning_content": "r", '
    message += '"tool_calls": [{"id": "c", "index": null, "type": "function", '
    message += '"function": {"name": "f", "arguments": {"a": 1}}}]}'
    found = written(opened(SGLANG), "sglang", more | {"role": "assistant"}, user(name="dropped"))
    assert found == f'[{message}, {{"role": "user", "content": "hi"}}]|null|null{END}'
    found = written(opened(OLDER), "sglang", more | {"role": "assistant"}, user(name="dropped"))
    assert found == f'[{message}, {{"role": "user", "content": "hi"}}]|null|null{END}'.replace(
        '"phase": "final_answer", ', ""
    )


@pytest.mark.parametrize(
    ("settings", "template", "role", "content", "expected"),
    [
        (SGLANG, DUMP, "user", ["a", "", "b"], '"a  b"'),
        (SGLANG, DUMP, "tool", ["a", "b"], '"a b"'),
        (SGLANG, DUMP, "user", [], '""'),
        (
            SGLANG,
            DUMP + "{# image #}",
            "user",
            ["a", "b"],
            '[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]',
        ),
        (SGLANG, DUMP + "{# image #}", "tool", ["a", "b"], '"a b"'),
        (VLLM, DUMP, "user", ["a", "", "b"], '"a\\nb"'),
        (VLLM, DUMP, "tool", ["a", "b"], '"a\\nb"'),
        (VLLM, DUMP, "user", [], '""'),
        (VLLM, DUMP + "{# image #}", "user", ["a", "b"], '"a\\nb"'),
        (
            VLLM,
            DUMP + "{{ '' if 1 }}{% if 0 %}" + PARTS + "{% endif %}",
            "user",
            ["a"],
            '[{"type": "text", "text": "a"}]',
        ),
        (VLLM, DUMP + "{% if 0 %}" + PARTS + "{% endif %}", "tool", ["a", "", "b"], '"a\\n\\nb"'),
        (KVFENCE, DUMP, "user", ["a", "b"], '"a\\nb"'),
    ],
)
def test_parts_of_a_content(
    opened: Open, settings: Settings, template: str, role: str, content: list[str], expected: str
) -> None:
    parts = [{"type": "text", "text": text} for text in content]
    if settings is KVFENCE or parts:
        assert f'"content": {expected}' in written(
            opened(settings, template), settings.engine, {"role": role, "content": parts}
        )
    else:
        assert '"content": ""' in written(opened(settings, template), settings.engine, {"role": role, "content": []})


def test_vllm_wraps_texts_for_a_template_that_loops_over_contents(opened: Open) -> None:
    renderer = opened(VLLM, PARTS)
    assert written(renderer, "vllm", user("hi")) == "[hi]"
    assert renderer.bound is None
    assert written(opened(SGLANG, PARTS), "sglang", user("hi")) == "[][]"  # SGLang lets it loop over the letters
    told = Settings(engine="vllm", version="0.32.0", content_format="string")
    assert written(opened(told, PARTS), "vllm", user("hi")) == "[][]"


def test_tools_of_sglang(opened: Open) -> None:
    function = '{"description": null, "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": false}'
    expected = f'|[{{"type": "function", "function": {function}, "defer_loading": null}}]|null'
    assert expected in written(opened(OLDER), "sglang", user(), tools=[TOOL])
    function = '{"name": "f", "parameters": {"type": "object", "properties": {}}, "description": null}'
    expected = f'|[{{"type": "function", "function": {function}, "defer_loading": null}}]|null'
    renderer = opened(SGLANG)
    assert expected in written(renderer, "sglang", user(), tools=[TOOL])
    assert expected in written(renderer, "sglang", user(), tools=[TOOL], tool_choice="required")
    other = {"type": "function", "function": {"name": "g"}}
    named = {"type": "function", "function": {"name": "f"}}
    assert expected in written(renderer, "sglang", user(), tools=[other, TOOL], tool_choice=named)
    choices: tuple[dict[str, object], ...] = (
        {"tools": []},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": None},
    )
    for choice in choices:
        assert "|null|null|" in written(renderer, "sglang", user(), **choice)


def test_sglang_tries_functions_alone_where_tools_do_not_do(opened: Open) -> None:
    flat = opened(SGLANG, "{% for tool in tools or [] %}{{ tool.name + '!' }}{% endfor %}")
    assert written(flat, "sglang", user(), tools=[TOOL]) == "f!"
    with pytest.raises(UnwritableError):
        written(opened(SGLANG, "{{ raise_exception('no') }}"), "sglang", user(), tools=[TOOL])


def test_tools_of_vllm(opened: Open) -> None:
    function = '{"name": "f", "description": null, "parameters": {"type": "object", "properties": {}}}'
    expected = f'|[{{"type": "function", "function": {function}}}]|null'
    assert expected in written(opened(VLLM), "vllm", user(), tools=[TOOL])
    assert expected in written(opened(VLLM), "vllm", user(), tools=[TOOL], tool_choice="none")
    hides = Settings(engine="vllm", version="0.32.0", hides_unused_tools=True)
    assert "|null|null|" in written(opened(hides), "vllm", user(), tools=[TOOL], tool_choice="none")
    with pytest.raises(BadRequestError):
        written(opened(VLLM), "vllm", user(), tools=[])


def test_calls_and_thoughts_of_vllm(opened: Open) -> None:
    calls = [CALL, CALL | {"function": {"name": "f", "arguments": "no JSON"}}]
    found = written(opened(VLLM), "vllm", assistant(None, tool_calls=calls, reasoning_content="r"), user())
    call = '{"id": "c", "function": {"arguments": %s, "name": "f"}, "type": "function"}'
    expected = (
        f'"tool_calls": [{call % json.dumps({"a": 1})}, {call % "{}"}], "reasoning": "r", "reasoning_content": "r"'
    )
    assert f'{{"role": "assistant", "content": "", {expected}}}' in found


@pytest.mark.parametrize(
    ("settings", "variables", "expected"),
    [
        (SGLANG, {"x": None, "enable_thinking": False}, "|False|None|<s>"),
        (SGLANG, {"x": "auto"}, "|-|auto|<s>"),
        (SGLANG, {"bos_token": "B"}, "|-|-|B"),
        (VLLM, {"x": None, "enable_thinking": False}, "|False|-|<s>"),
        (VLLM, {"x": "auto"}, "|-|-|<s>"),
        (VLLM, {"bos_token": "B", "unread": 1}, "|-|-|B"),
    ],
)
def test_variables(opened: Open, settings: Settings, variables: dict[str, object], expected: str) -> None:
    assert written(opened(settings), settings.engine, user(), chat_template_kwargs=variables).endswith(expected)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_servers_own_variables_give_way_to_the_bodys(opened: Open, engine: str) -> None:
    settings = Settings(
        engine=engine, version={"sglang": "0.5.23", "vllm": "0.32.0"}[engine], model="m", defaults={"x": 1}
    )
    renderer = opened(settings)
    assert written(renderer, engine, user()).endswith("|-|1|<s>")
    assert written(renderer, engine, user(), chat_template_kwargs={"x": 2}).endswith("|-|2|<s>")
    assert renderer.bound is None


def test_what_only_vllm_takes_from_a_body(opened: Open) -> None:
    renderer = opened(VLLM)
    chat = conversation("vllm", user(), add_special_tokens=True, add_generation_prompt=False, reasoning_effort="none")
    assert renderer.render(chat) == Rendered(
        '[{"role": "user", "content": "hi"}]|null|null|False|False|-|<s>', add_special_tokens=True
    )
    assert '|[{"text": "t"}]|' in written(renderer, "vllm", user(), documents=[{"text": "t"}])


@pytest.mark.parametrize(
    ("settings", "messages", "body"),
    [
        (SGLANG, [user()], {"reasoning_effort": "low"}),
        (SGLANG, [user()], {"reasoning": {"enabled": True}}),
        (SGLANG, [assistant()], {"continue_final_message": True}),
        (SGLANG, [user()], {"chat_template_kwargs": {"tools": []}}),
        (SGLANG, [user()], {"chat_template_kwargs": {"reasoning_effort": "low"}}),
        (SGLANG, [user()], {"chat_template_kwargs": 3}),
        (SGLANG, [user()], {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "int"}}}]}),
        (SGLANG, [user()], {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": 2**64}}}]}),
        (SGLANG, [user()], {"tools": [TOOL | {"defer_loading": True}]}),
        (SGLANG, [{"role": "system", "content": "a", "tools": [TOOL]}], {}),
        (SGLANG, [assistant(prefix=True)], {}),
        (SGLANG, [user([{"type": "text", "text": "a", "zzz": 1}])], {}),
        (SGLANG, [user([{"type": "image_url", "image_url": {"url": "u"}}])], {}),
        (SGLANG, [assistant([{"type": "thinking", "thinking": "a"}])], {}),
        (
            SGLANG,
            [assistant(tool_calls=[CALL | {"function": {"name": "f", "arguments": '{"a": 18446744073709551616}'}}])],
            {},
        ),
        (VLLM, [assistant()], {"continue_final_message": True}),
        (VLLM, [{"role": "developer", "content": "a"}], {}),
        (VLLM, [user(zzz=1)], {}),
        (VLLM, [user(task="t")], {}),
        (VLLM, [{"role": "system", "content": "x-anthropic-billing-header: 1\na"}], {}),
        (VLLM, [{"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 1"}]}], {}),
        (VLLM, [assistant(tool_calls=[CALL | {"index": 0}])], {}),
        (VLLM, [user(tool_calls=[CALL])], {}),
        (VLLM, [user([{"type": "input_text", "text": "a"}])], {}),
        (VLLM, [user(["a"])], {}),
        (VLLM, [user()], {"documents": [{"text": 1}]}),
        (VLLM, [user()], {"chat_template_kwargs": {"tokenize": True}}),
        (KVFENCE, [user([])], {}),
    ],
)
def test_what_is_not_followed_is_uncountable(
    opened: Open, settings: Settings, messages: list[object], body: dict[str, object]
) -> None:
    renderer = opened(settings)
    with pytest.raises(UncountableError):
        written(renderer, settings.engine, *messages, **body)


@pytest.mark.parametrize("arguments", ["", "no JSON", "[1]", '{"a": NaN}'])
def test_sglang_takes_no_arguments_but_objects(opened: Open, arguments: str) -> None:
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(BadRequestError):
        written(opened(SGLANG), "sglang", assistant(tool_calls=[call]), user())


def started(**changed: object) -> Settings:
    """Tell of an SGLang server with other start-up arguments."""
    return Settings(**({"engine": "sglang", "version": "0.5.23", "model": "/models/x"} | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        (started(version="0.5.24"), {}),
        (started(version="0.5.17"), {}),
        (started(version=None), {}),
        (started(tool_parser="deepseekv32"), {}),
        (started(reasoning_parser="hunyuan"), {}),
        (started(model=None), {}),
        (started(model="org/llava-v1.5"), {}),
        (started(named_template="chatml"), {}),
        (started(named_template="/a.jinja"), {}),
        (started(tokenizer_mode="slow"), {}),
        (started(defaults={"reasoning_effort": "low"}), {}),
        (started(defaults={"tools": []}), {}),
        (
            started(template_of_several="b"),
            {"template": [{"name": "a", "template": "x"}, {"name": "c", "template": "y"}]},
        ),
        (started(), {"template": None}),
        (started(), {"template": "{% if %}"}),
        (started(), {"config": None}),
        (started(), {"config": CONFIG | {"vision_config": {}}}),
        (started(), {"config": CONFIG | {"architectures": ["DeepseekV4ForCausalLM"]}}),
        (Settings(engine="vllm", version="0.31.0"), {}),
        (Settings(engine="vllm", version=None), {}),
        (Settings(engine="vllm", version="0.32.0", named_template="/a.jinja"), {}),
        (Settings(engine="vllm", version="0.32.0", takes_embeddings=True), {}),
        (Settings(engine="vllm", version="0.32.0", defaults={"tokenize": True}), {}),
        (VLLM, {"config": CONFIG | {"model_type": "gpt_oss"}}),
        (VLLM, {"template": [{"name": "tool_use", "template": "x"}]}),
        (
            VLLM,
            {"template": "{% macro f(c) %}{% for p in c %}a{% endfor %}{% endmacro %}{{ f(messages[0].content) }}"},
        ),
        (KVFENCE, {"template": None}),
        (Settings(engine="other", version="1.0"), {}),
    ],
)
def test_an_engine_that_may_write_otherwise_is_not_opened(
    opened: Open, settings: Settings, model: dict[str, object]
) -> None:
    with pytest.raises(UncountableError):
        opened(settings, **model)


@pytest.mark.parametrize(
    "name", ["tekken.json", "tokenizer.model.v3", "preprocessor_config.json", "additional_chat_templates"]
)
@pytest.mark.parametrize("settings", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_nor_is_a_model_that_is_encoded_otherwise(opened: Open, tmp_path: Path, settings: Settings, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UncountableError):
        opened(settings)


@pytest.mark.parametrize("template", ["{{ strftime_now('%d') }}", "{{ pad_token }}"])
@pytest.mark.parametrize("settings", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_what_depends_on_the_engines_place_is_not_written(opened: Open, settings: Settings, template: str) -> None:
    renderer = opened(settings, template)
    with pytest.raises(UncountableError):
        written(renderer, settings.engine, user())
    assert (renderer.bound is not None) is ("strftime" in template)  # a time is short, whatever it is


def test_of_several_templates_each_engine_takes_its_own(opened: Open) -> None:
    several = [{"name": name, "template": f"{name}:" + "{{ tools | tojson }}"} for name in ("a", "default", "tool_use")]
    assert written(opened(SGLANG, several), "sglang", user()).startswith("a:")
    assert written(opened(started(template_of_several="default"), several), "sglang", user()).startswith("default:")
    renderer = opened(VLLM, several)
    assert written(renderer, "vllm", user()).startswith("default:")
    assert written(renderer, "vllm", user(), tools=[TOOL]).startswith("tool_use:")


def test_a_template_given_at_the_start_counts_before_the_models(opened: Open) -> None:
    given = started(named_template="/a.jinja", template="\na\\nb{{ messages | length }}\n", model=None)
    assert written(opened(given), "sglang", user()) == "a\nb1"


def test_settings_of_a_server_info() -> None:
    info = {
        "version": "0.5.21",
        "model_path": "/m",
        "default_chat_template_kwargs": {"x": 1},
        "tool_call_parser": "qwen25",
        "chat_template": None,
        "tokenizer_mode": "auto",
        "zzz": 3,
    }
    expected = Settings(engine="sglang", version="0.5.21", model="/m", defaults={"x": 1}, tool_parser="qwen25")
    assert Settings.of_sglang(info) == expected
    assert Settings.of_sglang({}) == Settings(engine="sglang", version=None)


def test_a_large_conversation_is_written_in_a_thread(opened: Open) -> None:
    renderer = opened(VLLM)
    threads = []

    class Watched:
        bound = None

        @staticmethod
        def render(chat: Chat) -> Rendered:
            threads.append(threading.current_thread())
            return renderer.render(chat)

    async def both() -> tuple[Rendered, Rendered]:
        small, large = (conversation("vllm", user("a" * size)) for size in (10, 200_000))
        return await render(Watched(), small), await render(Watched(), large)

    small, large = asyncio.run(both())
    assert len(large.text) - len(small.text) == 199_990
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


@pytest.mark.parametrize(
    ("template", "sglang", "vllm"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string", "string"),
        ("{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", "openai", "openai"),
        ("{% for x in messages %}{% for p in x['content'] %}{% endfor %}{% endfor %}", "string", "openai"),
        (
            "{% set l = messages[1:] %}{% for x in l %}{% for p in x.content | list %}{% endfor %}{% endfor %}",
            "string",
            "openai",
        ),
        ("{% for message in other %}{% for p in message.content %}{% endfor %}{% endfor %}", "openai", "string"),
        ("{% for p in content %}{% endfor %}", "string", "openai"),
        ("{% macro f(x) %}{{ x }}{% endmacro %}", "string", "string"),
        ("{% macro f(x) %}{% for p in x %}{% endfor %}{% endmacro %}", "string", None),
        ("<image>", "openai", "string"),
    ],
)
def test_how_a_template_takes_contents(template: str, sglang: str, vllm: str | None) -> None:
    assert of_sglang(ChatTemplate(template, {})) == sglang
    assert of_vllm(ChatTemplate(template, {})) == vllm
