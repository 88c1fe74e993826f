"""The files beside a model's weights that say how a conversation becomes a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kvfence.errors import InputError

SETTINGS: Final = "tokenizer_config.json"
TEMPLATE: Final = "chat_template.jinja"
_CONFIG: Final = "config.json"

# Any of these beside the weights, or among the keys of config.json, and the model takes more than text.
_MEDIA_FILES: Final = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_MEDIA_KEYS: Final = ("vision", "visual", "image", "video", "audio", "speech", "mm_", "thinker", "talker")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """What is read once, when the gateway starts.

    Attributes:
        directory: where the files are.
        templates: chat templates by name, in the order of the file; one alone is called "default".
        specials: the texts of the special tokens by name (`bos_token`).
        named_tokens: the special tokens that the settings name, with a text or with null.
        architectures: the model's classes, or None where there is no config.json.
        model_type: of config.json.
        media: whether the model seems to take images, sound or video.
        names: the names of all files of the directory.

    """

    directory: Path
    templates: Mapping[str, str]
    specials: Mapping[str, str]
    named_tokens: frozenset[str]
    architectures: tuple[str, ...] | None
    model_type: str | None
    media: bool
    names: frozenset[str]

    @classmethod
    def open(cls, directory: Path) -> ModelFiles:
        """Read a model's directory; only `tokenizer_config.json` must be there.

        Raises:
            InputError: a file is absent or damaged, or says what cannot be followed.

        """
        settings = read_document(directory / SETTINGS)
        path = directory / _CONFIG
        config = read_document(path) if path.exists() else None
        names = frozenset(entry.name for entry in directory.iterdir())
        return cls(
            directory=directory,
            templates=read_templates(directory, settings),
            specials=read_specials(settings, directory / SETTINGS),
            named_tokens=frozenset(name for name in settings if name.endswith("_token")),
            architectures=None if config is None else _architectures(config, path),
            model_type=None if config is None else _text(config.get("model_type")),
            media=_takes_media(config or {}, names),
            names=names,
        )


def read_bytes(path: Path) -> bytes:
    """Read a file.

    Raises:
        InputError: it cannot be read.

    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from None


def read_document(path: Path) -> dict[str, object]:
    """Read a file that holds one JSON object.

    Raises:
        InputError: it does not.

    """
    try:
        document = msgspec.json.decode(read_bytes(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(str(path), "is not JSON") from None
    if not isinstance(document, dict):
        raise InputError(str(path), "must be a JSON object")
    return document


def read_specials(settings: Mapping[str, object], path: Path) -> dict[str, str]:
    """Give the texts of the special tokens that have a name of their own.

    Args:
        settings: of tokenizer_config.json.
        path: of that file, for complaints.

    Raises:
        InputError: one of them is no text.

    """
    found = {}
    for name, value in settings.items():
        if not name.endswith("_token") or value is None or isinstance(value, bool):
            continue
        text = value.get("content") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise InputError(str(path), "must be a token's text", field=name)
        found[name] = text
    return found


def read_templates(directory: Path, settings: Mapping[str, object]) -> dict[str, str]:
    """Give the chat templates by name; a file of its own counts before the setting.

    Raises:
        InputError: what stands there is no template's text.

    """
    path = directory / TEMPLATE
    if path.exists():
        try:
            return {"default": read_bytes(path).decode()}
        except UnicodeDecodeError:
            raise InputError(str(path), "is not UTF-8") from None
    source = settings.get("chat_template")
    if source is None:
        return {}
    if isinstance(source, str):
        return {"default": source}
    found = {}
    for entry in source if isinstance(source, list) else [None]:
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise InputError(str(directory / SETTINGS), "must be a template's text", field="chat_template")
        found[name] = text
    return found


def _architectures(config: Mapping[str, object], path: Path) -> tuple[str, ...]:
    value = config.get("architectures") or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(str(path), "must be a list of names", field="architectures")
    return tuple(value)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _takes_media(config: Mapping[str, object], names: frozenset[str]) -> bool:
    return not names.isdisjoint(_MEDIA_FILES) or any(word in key for key in config for word in _MEDIA_KEYS)
