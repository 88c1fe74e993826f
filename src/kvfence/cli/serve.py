"""`kvfence serve`: the embedded disaggregated engine, on this machine, with every protection on.

The engine is imported when it is called: to audit a log none has to be loaded.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from kvfence.cli.mechanisms import Without, mechanisms
from kvfence.errors import InputError
from kvfence.facts.redact import clean

if TYPE_CHECKING:
    from kvfence.engine.coordinator import Coordinator, Log

LogFormat = Literal["human", "json"]
_LOCAL = ("127.0.0.1", "::1", "localhost")


def command(
    *,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="DIR", help="A checkpoint (Llama and its kin). The recall model, unless given."
        ),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", metavar="NAME", help="The name clients ask for.")
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to bind.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65000, help="The coordinator's; workers' follow. 0: any free."),
    ] = 30000,
    prefill: Annotated[int, typer.Option("--prefill", metavar="N", help="Prefill workers.")] = 1,
    decode: Annotated[int, typer.Option("--decode", metavar="N", help="Decode workers.")] = 1,
    tp_size: Annotated[int, typer.Option("--tp-size", metavar="N", help="Tensor-parallel ranks of a worker.")] = 2,
    transport: Annotated[
        str, typer.Option("--transport", metavar="NAME", help="shared-memory or tcp-epoch.")
    ] = "shared-memory",
    context_length: Annotated[
        int | None,
        typer.Option("--context-length", metavar="TOKENS", help="Longest prompt and answer. 4096, or the model's."),
    ] = None,
    prefill_pool_tokens: Annotated[
        int | None,
        typer.Option("--prefill-pool-tokens", metavar="TOKENS", help="KV pool of a prefill worker."),
    ] = None,
    decode_pool_tokens: Annotated[
        int | None, typer.Option("--decode-pool-tokens", metavar="TOKENS", help="KV pool of a decode worker.")
    ] = None,
    page_size: Annotated[int, typer.Option("--page-size", metavar="TOKENS", help="Tokens of a page.")] = 16,
    chunked_prefill_size: Annotated[
        int, typer.Option("--chunked-prefill-size", metavar="TOKENS", help="Tokens of one forward pass of prefill.")
    ] = 256,
    allow_auto_truncate: Annotated[
        bool, typer.Option("--allow-auto-truncate", help="Cut over-length prompts to what fits.")
    ] = False,
    disable_radix_cache: Annotated[
        bool, typer.Option("--disable-radix-cache", help="Share no prefixes, within a tenant either.")
    ] = False,
    tags: Annotated[
        str, typer.Option("--tags", metavar="ALGORITHM", help="blake3-keyed (tampering) or xxh3-128 (faults).")
    ] = "blake3-keyed",
    tenant_header: Annotated[
        str, typer.Option("--tenant-header", metavar="NAME", help="The header that names the tenant.")
    ] = "X-Tenant",
    without: Without = None,
    lab: Annotated[bool, typer.Option("--lab", help="Let the engine be weakened; for this machine alone.")] = False,
    allow_short_pool: Annotated[
        bool,
        typer.Option("--allow-short-pool", help="With --lab: start although a pool holds no full-context request."),
    ] = False,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How to write the log.")] = "human",
) -> None:
    """Serve a model with prefill and decode processes, until interrupted.

    Refuses to start when a pool cannot hold one request of the full context, and with a mechanism off outside the lab.
    """
    from kvfence.engine.coordinator import Coordinator
    from kvfence.engine.settings import Settings

    if lab and host not in _LOCAL:
        raise InputError("--host", "an engine in the lab binds this machine alone (127.0.0.1)")
    with _model(model) as directory:
        settings = Settings(
            directory,
            prefill=prefill,
            decode=decode,
            ranks=tp_size,
            transport=transport,
            context_length=context_length if context_length is not None or model is not None else 4096,
            prefill_pool_tokens=prefill_pool_tokens,
            decode_pool_tokens=decode_pool_tokens,
            page_tokens=page_size,
            chunk_tokens=chunked_prefill_size,
            truncate=allow_auto_truncate,
            prefix_cache=not disable_radix_cache,
            tags=tags,
            on=mechanisms(without or []),
            lab=lab,
            allow_short_pool=allow_short_pool,
        )
        name = served_model_name or (model.name if model is not None else "recall")
        asyncio.run(_serve(Coordinator(settings, _logger(log_format)), name, host, port, tenant_header))


@contextmanager
def _model(given: Path | None) -> Iterator[Path]:
    """Give the checkpoint's directory: the one asked for, or a recall model for as long as the engine runs."""
    if given is not None:
        yield given
        return
    from kvfence.engine.recall.files import write_recall
    from kvfence.engine.recall.variants import Variant

    with tempfile.TemporaryDirectory(prefix="kvfence-") as directory:
        write_recall(Path(directory), Variant())
        yield Path(directory)


async def _serve(engine: Coordinator, name: str, host: str, port: int, tenant_header: str) -> None:
    from kvfence.engine.http.server import Server
    from kvfence.engine.request import RefusedError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with engine, Server(engine, name, host, port, tenant_header) as server:
            for worker, url in server.urls.items():
                if worker:
                    engine.log("info", f"{worker} answers at {url}")
            engine.log("info", f"ready: {server.urls['']}/v1 (model {name})")
            await stop.wait()
            engine.log("info", "stopping")
            await engine.stop()  # before the ports are closed, so that every client still hears of it
    except RefusedError as error:
        raise InputError("the engine", error.detail) from None


def _logger(log_format: LogFormat) -> Log:
    def human(level: str, text: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        print(f"{now} {level.upper():7} {clean(text)}", file=sys.stderr, flush=True)  # noqa: T201

    def json(level: str, text: str) -> None:
        line = {"ts": datetime.now(UTC).isoformat(), "level": level, "message": clean(text)}
        print(msgspec.json.encode(line).decode(), file=sys.stderr, flush=True)  # noqa: T201

    return json if log_format == "json" else human
