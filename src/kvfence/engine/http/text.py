"""A model's text: from strings and conversations to token ids, and back, by the files beside its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from kvfence.counting.model_files import (
    SETTINGS,
    TEMPLATE,
    read_bytes,
    read_document,
    read_specials,
    read_templates,
)
from kvfence.counting.template import ChatTemplate, Message, UnwritableError
from kvfence.engine.http.pieces import Pieces, Stream
from kvfence.errors import InputError

_TOKENIZER: Final = "tokenizer.json"
_EOS: Final = "eos_token_id"


NORMALISED: Final = 4
"""By how much a normaliser may shorten a text: a tokenizer may drop spaces, or compose characters."""


class TooLongError(ValueError):
    """A text has more tokens than may be, as can be told from its length alone."""


class Text:
    """Encodes prompts and decodes answers. Safe to use from several threads.

    A prompt may spell a special token, as with every server that follows Hugging Face: a client speaks for itself
    only, and can so reshape no one else's conversation.

    Attributes:
        stop_tokens: the ids that end an answer, in order.
        vocabulary: token ids are below it.

    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        pieces: Pieces,
        template: ChatTemplate | None,
        *,
        stop_tokens: tuple[int, ...],
        vocabulary: int,
    ) -> None:
        self.stop_tokens = stop_tokens
        self.vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._template = template

    @classmethod
    def open(cls, directory: Path) -> Text:
        """Read a model's directory.

        `tokenizer.json` and `tokenizer_config.json` must be there; `chat_template.jinja`, `generation_config.json` and
        `config.json` may be.

        Raises:
            InputError: a file is absent or damaged, or says what cannot be followed.

        """
        tokenizer, pieces, ids = _read_tokenizer(directory / _TOKENIZER)
        settings = read_document(directory / SETTINGS)
        config = directory / "config.json"
        generation = directory / "generation_config.json"
        documents = {path: read_document(path) for path in (generation, config) if path.exists()}
        vocabulary = documents.get(config, {}).get("vocab_size", ids)
        if not isinstance(vocabulary, int) or isinstance(vocabulary, bool) or vocabulary < 1:
            raise InputError(str(config), "must be a number of tokens", field="vocab_size")
        specials = read_specials(settings, directory / SETTINGS)
        stops = {token for path, document in documents.items() for token in _eos(document, path)}
        named = tokenizer.token_to_id(specials.get("eos_token", ""))
        if named is not None:
            stops.add(named)
        return cls(
            tokenizer,
            pieces,
            _read_template(directory, settings, specials),
            stop_tokens=tuple(sorted(stops)),
            vocabulary=min(ids, vocabulary),
        )

    def encode(self, text: str, most: int | None = None) -> tuple[int, ...]:
        """Give a prompt's token ids, with what the tokenizer's post-processor adds (a first token, often).

        Raises:
            UnwritableError: the vocabulary has no tokens for this text.
            TooLongError: it is so long that it has more than `most` tokens, however it is split.

        """
        return self._encode(text, most, add_special_tokens=True)

    def chat(
        self, messages: Sequence[Message], most: int | None = None, *, add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Give a conversation's token ids; the chat template writes all special tokens itself.

        Raises:
            UnwritableError: the model has no chat template, its template cannot write these messages, or the
                vocabulary has no tokens for them.
            TooLongError: as for `encode`.

        """
        if self._template is None:
            raise UnwritableError("the model has no chat template")
        prompt = self._template.render(messages, add_generation_prompt=add_generation_prompt)
        return self._encode(prompt, most, add_special_tokens=False)

    def stream(self) -> Stream:
        """Start to decode an answer."""
        return Stream(self._pieces)

    def name(self, token: int) -> bytes:
        """Give the bytes of one token, as lists of log probabilities show them; empty for an unknown id."""
        return self._pieces.name(token)

    def _encode(self, text: str, most: int | None, *, add_special_tokens: bool) -> tuple[int, ...]:
        if most is not None and len(text) > most * self._pieces.longest * NORMALISED:
            raise TooLongError
        try:
            # Of one text `encode` holds the interpreter all the while; of several, even if it is one, it does not.
            (encoded,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
            return tuple(encoded.ids)
        except Exception:  # noqa: BLE001 (the library raises nothing narrower)
            raise UnwritableError("the model's vocabulary has no tokens for the text") from None


def _read_tokenizer(path: Path) -> tuple[Tokenizer, Pieces, int]:
    """Read a tokenizer, the bytes of its tokens, and the number that its ids are below."""
    raw = read_bytes(path)
    decoders = tuple(_decoders(read_document(path).get("decoder")))
    try:
        tokenizer = Tokenizer.from_str(raw.decode())
    except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
        raise InputError(str(path), f"is no tokenizer ({error})") from None
    # A saved tokenizer may cut prompts, or fill them up, as suited those who trained the model.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise InputError(str(path), "has no tokens", field="model.vocab")
    try:
        return tokenizer, Pieces(tokenizer, decoders), max(vocabulary.values()) + 1
    except ValueError as error:
        raise InputError(str(path), str(error), field="decoder") from None


def _decoders(decoder: object) -> Iterable[str]:
    """Give the types of a tokenizer's decoder, or of the steps it is a sequence of."""
    if isinstance(decoder, dict):
        steps = decoder.get("decoders")
        if isinstance(steps, list):
            for step in steps:
                yield from _decoders(step)
        else:
            yield str(decoder.get("type"))


def _eos(document: Mapping[str, object], path: Path) -> list[int]:
    """Give the token ids that end an answer, of a model's configuration."""
    value = document.get(_EOS)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    ids = [token for token in listed if isinstance(token, int) and not isinstance(token, bool) and token >= 0]
    if len(ids) != len(listed):
        raise InputError(str(path), "must be a token id or a list of them", field=_EOS)
    return ids


def _read_template(directory: Path, settings: Mapping[str, object], specials: Mapping[str, str]) -> ChatTemplate | None:
    """Compile the chat template; of several, the one named default."""
    source = read_templates(directory, settings).get("default")
    if source is None:
        return None
    try:
        return ChatTemplate(source, specials)
    except ValueError as error:
        of_its_own = (directory / TEMPLATE).exists()
        path, field = (TEMPLATE, None) if of_its_own else (SETTINGS, "chat_template")
        raise InputError(str(directory / path), str(error), field=field) from None
