from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvfence.counting.model_files import ModelFiles
from kvfence.errors import InputError


def write(directory: Path, settings: object, config: object = None) -> Path:
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_models_files(tmp_path: Path) -> None:
    settings = {
        "chat_template": "t",
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "pad_token": None,
        "add_bos_token": True,
    }
    files = ModelFiles.open(write(tmp_path, settings, {"architectures": ["A"], "model_type": "a"}))
    assert files.templates == {"default": "t"}
    assert files.specials == {"bos_token": "<s>", "eos_token": "</s>"}
    assert {"bos_token", "eos_token", "pad_token"} <= files.named_tokens
    assert (files.architectures, files.model_type, files.media) == (("A",), "a", False)
    assert files.names == {"tokenizer_config.json", "config.json"}


def test_without_a_configuration_its_class_is_not_known(tmp_path: Path) -> None:
    files = ModelFiles.open(write(tmp_path, {}))
    assert (files.templates, files.architectures, files.model_type) == ({}, None, None)


def test_templates_by_name_keep_their_order(tmp_path: Path) -> None:
    several = [{"name": "b", "template": "1"}, {"name": "default", "template": "2"}]
    assert list(ModelFiles.open(write(tmp_path, {"chat_template": several})).templates.items()) == [
        ("b", "1"),
        ("default", "2"),
    ]


def test_a_file_of_its_own_counts_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    assert ModelFiles.open(write(tmp_path, {"chat_template": "setting"})).templates == {"default": "file"}


@pytest.mark.parametrize("key", ["vision_config", "audio_token_id", "image_token_index", "mm_projector", "video_token"])
def test_a_key_of_media(tmp_path: Path, key: str) -> None:
    assert ModelFiles.open(write(tmp_path, {}, {key: 1})).media


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_a_file_of_media(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert ModelFiles.open(write(tmp_path, {}, {})).media


@pytest.mark.parametrize(
    ("settings", "config", "place"),
    [
        ([], None, "tokenizer_config.json: must be a JSON object"),
        ({"chat_template": 3}, None, "chat_template: must be"),
        ({"chat_template": [3]}, None, "chat_template: must be"),
        ({"bos_token": 3}, None, "bos_token: must be"),
        ({}, {"architectures": "A"}, "config.json: architectures: must be"),
        ({}, [], "config.json: must be a JSON object"),
    ],
)
def test_damage_is_named(tmp_path: Path, settings: object, config: object, place: str) -> None:
    with pytest.raises(InputError) as caught:
        ModelFiles.open(write(tmp_path, settings, config))
    assert place in str(caught.value)


def test_absent_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer_config\.json: cannot be read"):
        ModelFiles.open(tmp_path)
