"""`kvfence model recall` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvfence.cli.model import app
from kvfence.errors import InputError

RUNNER = CliRunner()


def test_it_tells_what_was_written(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["recall", str(tmp_path / "m")])
    assert (done.exit_code, done.stdout) == (
        0,
        f"{tmp_path / 'm'}: 360,768 parameters, 721,536 bytes of bfloat16 weights, 1,024 KV bytes per token\n",
    )
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_every_option_counts(tmp_path: Path) -> None:
    options = ["--variant", "classic", "--attention", "latent", "--kv-heads", "4", "--dtype", "float32"]
    done = RUNNER.invoke(app, ["recall", str(tmp_path), *options, "--max-positions", "4096"])
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert (config["dtype"], config["max_position_embeddings"], config["v_head_dim"]) == ("float32", 4096, 64)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--kv-heads", "3"], "the call: asks for a model that cannot be: 3 key-value heads do not divide 16 heads"),
        (["--max-positions", "1"], "1 positions are not from 64 to 131072"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, options: list[str], problem: str) -> None:
    done = RUNNER.invoke(app, ["recall", str(tmp_path / "m"), *options])
    assert isinstance(done.exception, InputError)
    assert problem in str(done.exception)
    assert not (tmp_path / "m").exists()


def test_another_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = RUNNER.invoke(app, ["recall", str(tmp_path)])
    assert isinstance(done.exception, InputError)
    assert "holds something other than a recall model" in str(done.exception)
