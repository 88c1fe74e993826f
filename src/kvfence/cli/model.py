"""`kvfence model`: make a model to try an engine with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvfence.engine.recall.files import parameters, write_recall
from kvfence.engine.recall.variants import ITEM_BYTES, VARIANTS, Attention, Dtype
from kvfence.errors import InputError

app = typer.Typer(help="Make a model to try an engine with.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def recall(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write it: a new or an empty directory, or a recall model's.")
    ],
    *,
    variant: Annotated[
        Literal["small", "classic"],
        typer.Option("--variant", help="small is the least that recites prose; classic has heads of 256 dimensions."),
    ] = "small",
    attention: Annotated[
        Attention, typer.Option("--attention", help="full is Llama's; latent is DeepSeek's compressed cache.")
    ] = "full",
    kv_heads: Annotated[
        int, typer.Option("--kv-heads", metavar="N", help="Key-value heads, each with its part of what is said.")
    ] = 2,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Type of the weights.")] = "bfloat16",
    max_positions: Annotated[
        int, typer.Option("--max-positions", metavar="N", help="Most tokens of prompt and answer.")
    ] = 8192,
) -> None:
    """Write the recall model: a checkpoint that recites what is in its KV cache."""
    try:
        sizes = replace(VARIANTS[variant], attention=attention, kv_heads=kv_heads, dtype=dtype, positions=max_positions)
    except ValueError as error:
        raise InputError("the call", f"asks for a model that cannot be: {error}") from error
    write_recall(directory, sizes)
    count = parameters(sizes)
    typer.echo(
        f"{directory}: {count:,} parameters, {count * ITEM_BYTES[dtype]:,} bytes of {dtype} weights, "
        f"{sizes.kv_bytes_per_token:,} KV bytes per token"
    )
