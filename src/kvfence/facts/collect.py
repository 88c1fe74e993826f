"""Collect what inputs say: files, directories, URLs and processes, into one deployment."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvfence.errors import InputError
from kvfence.facts import process
from kvfence.facts.assume import Assumption
from kvfence.facts.files import NothingRecognisedError, read_file, worker_name
from kvfence.facts.live_options import LiveOptions
from kvfence.facts.merge import merge
from kvfence.facts.model import Deployment, Kind, Sighting
from kvfence.facts.redact import clean
from kvfence.facts.stream import open_file

LARGEST_DIRECTORY = 50_000
SHOWN_NOTES = 50


@dataclass(frozen=True)
class Input:
    """An input as the user gave it, with the role given for it, if any."""

    text: str
    role: str | None = None

    @property
    def is_url(self) -> bool:
        """Whether it is to be fetched."""
        return self.text.startswith(("http://", "https://"))


def collect(
    inputs: Sequence[Input],
    *,
    assumptions: Sequence[Assumption] = (),
    live: LiveOptions | None = None,
) -> Deployment:
    """Read all inputs and merge what they say.

    Raises:
        InputError: an input cannot be used.

    """
    notes: list[str] = []
    sightings: list[Sighting] = []
    urls = [one for one in inputs if one.is_url]
    for one in inputs:
        if not one.is_url:
            found = list(_read_path(one, notes))
            for sighting in found:
                sighting.stated_role = one.role
            sightings += found
    if urls:
        from kvfence.facts.live import read_urls  # noqa: PLC0415 (an HTTP client is slow to load)

        fetched = asyncio.run(read_urls([one.text for one in urls], live or LiveOptions()))
        for one, sighting_list in zip(urls, fetched, strict=True):
            for sighting in sighting_list:
                sighting.stated_role = one.role
            sightings += sighting_list
    return merge(sightings, assumptions, [clean(note) for note in _few(notes)])


def _read_path(given: Input, notes: list[str]) -> Iterator[Sighting]:
    source = clean(given.text)
    if given.text == "-":
        yield from read_file(sys.stdin.buffer, Path("standard-input"), "standard input", notes.append)
        return
    path = Path(given.text)
    if path.is_dir():
        yield from _read_directory(path, source, notes)
        return
    with open_file(path, source) as raw:
        try:
            yield from read_file(raw, path, source, notes.append)
        except NothingRecognisedError as error:
            notes.append(f"{error}; nothing is known of its worker")
            yield _unknown(path, source)


def _read_directory(path: Path, source: str, notes: list[str]) -> Iterator[Sighting]:
    if process.is_process_folder(path):
        yield from process.read_process_folder(path, source)
        return
    files = _walk(path, source, notes)
    configs: set[Path] = set()
    used = False
    # Scripts before YAML: a --config file that a script names belongs to the script.
    for file in sorted(files, key=lambda file: (file.suffix in (".yaml", ".yml"), str(file))):
        if file.resolve() in configs:
            used = True
            continue
        name = clean(str(file))
        try:
            with open_file(file, name) as raw:
                found = read_file(raw, file, name, notes.append)
        except InputError as error:
            notes.append(f"not read: {error}")
            continue
        for sighting in found:
            used = True
            configs |= {Path(line.source).resolve() for fact in sighting.facts.values() for line in fact.evidence}
            yield sighting
    if not used:
        raise InputError(source, "holds no file that says something of a server")


def _walk(path: Path, source: str, notes: list[str]) -> list[Path]:
    """List the files below a directory, hidden ones left out; what may not be entered is noted."""

    def note(error: OSError) -> None:
        notes.append(f"not read: {error.filename}: {error.strerror}")

    files: list[Path] = []
    for folder, folders, names in os.walk(path, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found = (Path(folder) / name for name in names if not name.startswith("."))
        files += (file for file in found if file.is_file())
        if len(files) > LARGEST_DIRECTORY:
            raise InputError(source, f"holds more than {LARGEST_DIRECTORY:,} files; name the ones to read")
    return files


def _unknown(path: Path, source: str) -> Sighting:
    return Sighting(source, Kind.LOG, worker_name(path) or path.name, str(path.parent))


def _few(notes: list[str]) -> list[str]:
    if len(notes) <= SHOWN_NOTES:
        return notes
    return [*notes[:SHOWN_NOTES], f"and {len(notes) - SHOWN_NOTES} more notes of this kind"]
