"""Checkpoints as they lie on disk: what is right is read exactly, and what is not is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.model.runner import Runner
from kvfence.errors import InputError
from tests.engine.model.checkpoints import Weights, deepseek, llama, safetensors, weights, whole, write

VALUES = np.array([[0.0, -0.0, 1.5], [-2.25, 1e-3, 65504.0]], dtype=np.float32)
INDEX = "model.safetensors.index.json"


def holding(directory: Path, **files: bytes) -> Path:
    """Write a checkpoint of these weight files alone."""
    write(directory, llama())
    (directory / "model.safetensors").unlink()
    for name, content in files.items():
        (directory / f"{name}.safetensors").write_bytes(content)
    return directory


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("pad", range(4))
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_tensor_is_read_as_float32(dtype: str, pad: int, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(holding(tmp_path, model=safetensors({"one": VALUES, "two": VALUES + 1}, dtype, pad)))
    for name, values in (("one", VALUES), ("two", VALUES + 1)):
        found = checkpoint.tensor(name, (2, 3))
        assert found.dtype == np.float32
        assert found.flags.c_contiguous
        assert found.flags.aligned
        wanted = values if dtype == "F32" else values.astype(np.float16)
        if dtype == "BF16":
            wanted = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        np.testing.assert_array_equal(found, wanted)


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(holding(tmp_path, model=save({"a": VALUES, "empty": VALUES[:0]}, {"format": "np"})))
    np.testing.assert_array_equal(checkpoint.tensor("a"), VALUES)
    assert checkpoint.tensor("empty").shape == (0, 3)


def test_float32_is_mapped_and_not_copied(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(holding(tmp_path, model=save({"a": VALUES})))
    assert np.shares_memory(checkpoint.tensor("a"), checkpoint.tensors["a"].data)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_a_checkpoint_of_half_precision_runs(dtype: str, tmp_path: Path) -> None:
    tensors = weights(llama())
    half = Runner(Checkpoint.open(write(tmp_path / "half", llama(), tensors, dtype)))
    full = Runner(Checkpoint.open(write(tmp_path / "full", llama(), tensors)))
    tokens = tuple(range(20))
    np.testing.assert_allclose(whole(half, tokens), whole(full, tokens), rtol=0, atol=1)
    assert np.corrcoef(whole(half, tokens), whole(full, tokens))[0, 1] > 0.99


def sharded(directory: Path, tensors: Weights, **index: Any) -> Path:
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    places = {name: part for part, held in parts.items() for name in held}
    files = {part[0]: safetensors({name: tensors[name] for name in held}) for part, held in parts.items()}
    holding(directory, **files)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places} | index))
    return directory


def test_a_sharded_checkpoint_is_the_single_one(tmp_path: Path) -> None:
    tensors = weights(llama())
    split = Checkpoint.open(sharded(tmp_path / "split", tensors))
    single = Checkpoint.open(write(tmp_path / "single", llama(), tensors))
    np.testing.assert_array_equal(whole(Runner(split), (1, 2, 3)), whole(Runner(single), (1, 2, 3)))
    (tmp_path / "split" / "other.safetensors").write_bytes(b"is not asked for")
    assert Checkpoint.open(tmp_path / "split").digest == split.digest


@pytest.mark.parametrize(
    "places",
    [
        None,
        [],
        {},
        {"x": 3},
        {"x": "../a.safetensors"},
        {"x": "sub/a.safetensors"},
        {"x": "/etc/a.safetensors"},
        {"x": "a.bin"},
        {"x": "c.safetensors"},
        {"x": "a.safetensors"},
        {"x": "a\0.safetensors"},
    ],
)
def test_an_index_that_names_no_such_place_is_refused(places: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weight_map|is missing|a\.safetensors"):
        Checkpoint.open(sharded(tmp_path, weights(llama()), weight_map=places))


def test_the_only_file_is_taken_whatever_its_name(tmp_path: Path) -> None:
    assert list(Checkpoint.open(holding(tmp_path, any=save({"a": VALUES}))).tensors) == ["a"]


def test_model_is_taken_before_others(tmp_path: Path) -> None:
    files = {"model": save({"a": VALUES}), "consolidated": save({"b": VALUES})}
    assert list(Checkpoint.open(holding(tmp_path, **files)).tensors) == ["a"]


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"2 safetensors files and no model\.safetensors\.index\.json"):
        Checkpoint.open(holding(tmp_path, a=save({"a": VALUES}), b=save({"b": VALUES})))


@pytest.mark.parametrize("lacking", ["", "config.json", "model.safetensors"])
def test_what_is_missing_is_named(lacking: str, tmp_path: Path) -> None:
    write(tmp_path / "here", llama())
    if lacking:
        (tmp_path / "here" / lacking).unlink()
    directory = tmp_path / ("here" if lacking else "there")
    with pytest.raises(InputError, match=r"is missing|is no directory") as caught:
        Checkpoint.open(directory)
    assert caught.value.source == str(directory / lacking)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe{", "no JSON"),
        (b"[1]", "no JSON object"),
        (b"[" * 100_000, "nested too deeply|no JSON"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_malformed_json_is_refused(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    write(tmp_path, llama())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        Checkpoint.open(tmp_path)
    assert caught.value.source == str(tmp_path / name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX])
def test_a_directory_in_place_of_a_file_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path, llama())
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        Checkpoint.open(tmp_path)


GOOD = safetensors({"a": VALUES})
PLACE = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        GOOD[:-1],
        GOOD[:20],
        GOOD + b"\0",
        b"\xff" * 8 + GOOD[8:],
        (1 << 30).to_bytes(8, "little") + GOOD[8:],
        with_header(b"{"),
        with_header([]),
        with_header({"a": 3}),
        with_header({"a": {}}),
        with_header({"a": PLACE | {"dtype": "F31"}}, bytes(24)),
        with_header({"a": PLACE | {"shape": [2, -3]}}, bytes(24)),
        with_header({"a": PLACE | {"shape": [2, 4]}}, bytes(24)),
        with_header({"a": PLACE | {"shape": [1 << 62, 1 << 62]}}, bytes(24)),
        with_header({"a": PLACE | {"data_offsets": [24, 0]}}, bytes(24)),
        with_header({"a": PLACE | {"data_offsets": [0, 1 << 62]}}, bytes(24)),
        with_header({"a": PLACE | {"data_offsets": [4, 28]}}, bytes(28)),
        with_header(b"[" * 100_000),
    ],
)
def test_a_malformed_weight_file_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        Checkpoint.open(holding(tmp_path, model=content))
    assert caught.value.source == str(tmp_path / "model.safetensors")


@given(data=st.data())
def test_no_damage_to_a_weight_file_is_a_traceback(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    directory = holding(tmp_path_factory.mktemp("damaged"), model=bytes(content[: data.draw(st.integers(0, 200))]))
    try:
        checkpoint = Checkpoint.open(directory)
        for name in checkpoint.tensors:
            checkpoint.tensor(name)
    except InputError:
        pass


def test_a_type_that_is_not_read_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(holding(tmp_path, model=save({"a": VALUES.astype(np.float64)})))
    with pytest.raises(InputError, match=r"model\.safetensors: a: has elements of type F64; those read are F32, F16"):
        checkpoint.tensor("a")


@pytest.mark.parametrize("config", [llama(attention_bias=True, mlp_bias=True), deepseek(attention_bias=True)])
def test_each_weight_is_needed_and_in_its_shape(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = weights(config)
    for name in tensors:
        if ".layers." in name and ".layers.2." not in name:
            continue
        rest = {other: values for other, values in tensors.items() if other != name}
        refused(tmp_path, config, rest, f"{name}: is in none of the weight files")
        wrong = np.zeros((*tensors[name].shape[:-1], tensors[name].shape[-1] + 1), dtype=np.float32)
        refused(tmp_path, config, rest | {name: wrong}, f"{name}: has shape .*, not ")


def refused(directory: Path, config: dict[str, Any], tensors: Weights, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Runner(Checkpoint.open(write(directory, config, tensors)))


def test_tied_embeddings_need_no_output_weights(tmp_path: Path) -> None:
    assert "lm_head.weight" not in weights(llama(tie_word_embeddings=True))
    Runner(Checkpoint.open(write(tmp_path, llama(tie_word_embeddings=True))))


def change_config(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(llama(rope_theta=20000.0)))


def change_weights(directory: Path) -> None:
    write(directory, llama(), weights(llama(), seed=1))


def change_name(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "renamed.safetensors")


def change_type(directory: Path) -> None:
    write(directory, llama(), dtype="BF16")


@pytest.mark.parametrize("change", [change_config, change_weights, change_name, change_type])
def test_the_digest_names_the_model(change: Callable[[Path], None], tmp_path: Path) -> None:
    digests = [Checkpoint.open(write(tmp_path / name, llama())).digest for name in ("one", "two")]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 16
    change(tmp_path / "two")
    assert Checkpoint.open(tmp_path / "two").digest != digests[0]
