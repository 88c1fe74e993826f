"""`kvfence gateway`: the door in front of SGLang or vLLM, or of an existing router, or the PD router itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

LogFormat = Literal["human", "json"]
Engine = Literal["sglang", "vllm", "kvfence"]
KEY_VARIABLE = "KVFENCE_API_KEY"
SALT_VARIABLE = "KVFENCE_SALT_KEY"


def command(
    *,
    upstream: Annotated[
        list[str] | None,
        typer.Option("--upstream", metavar="URL", help="Front mode: an engine's server or a router. May be repeated."),
    ] = None,
    prefill: Annotated[
        list[str] | None,
        typer.Option(
            "--prefill",
            metavar="URL[,PORT]",
            help="Pd mode: a prefill worker, and the port of its bootstrap server. With --upstream: one behind that "
            "router, asked for its limit only. May be repeated.",
        ),
    ] = None,
    decode: Annotated[
        list[str] | None,
        typer.Option("--decode", metavar="URL", help="A decode worker, likewise. May be repeated."),
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="URL",
            help="With --upstream: a worker of both roles behind that router. May be repeated.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to bind.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="For clients. 0: any free one.")
    ] = 8400,
    admin_host: Annotated[
        str, typer.Option("--admin-host", metavar="ADDRESS", help="The address of the operators' port.")
    ] = "127.0.0.1",
    admin_port: Annotated[
        int,
        typer.Option("--admin-port", metavar="N", min=0, max=65535, help="For /status, /metrics and quarantine."),
    ] = 8401,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, max=256, help="Processes that share the port.")
    ] = 1,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="PATH",
            help="The model's directory, or its tokenizer.json. Without it the engine is asked for each count.",
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option("--chat-template", metavar="FILE", help="The template that the engine was given, if it was."),
    ] = None,
    counting: Annotated[
        Literal["auto", "off"],
        typer.Option("--counting", help="Count prompts, by tokenizer or engine; or do not, and see --uncounted."),
    ] = "auto",
    engine: Annotated[
        Engine | None,
        typer.Option("--engine", help="What answers, where it does not say so: a router does not."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="TOKENS",
            min=1,
            help="The length of the shortest prompt that is refused. A lower one that a worker tells counts.",
        ),
    ] = None,
    unknown_limit: Annotated[
        Literal["refuse", "pass"],
        typer.Option("--unknown-limit", help="While no limit is known: answer 503, or pass requests on."),
    ] = "refuse",
    uncounted: Annotated[
        Literal["refuse", "pass"] | None,
        typer.Option(
            "--uncounted",
            help="An uncountable prompt: answer 503, or pass it on. Unless given: refuse, or pass in pd mode, "
            "where an answer is held until both roles agree on the prompt.",
            show_default=False,
        ),
    ] = None,
    on_suspicion: Annotated[
        Literal["log", "refuse"],
        typer.Option("--on-suspicion", help="A suspicious answer: log it, or withhold it and quarantine its workers."),
    ] = "log",
    balance: Annotated[
        Literal["least-loaded", "round-robin"], typer.Option("--balance", help="How workers are chosen.")
    ] = "least-loaded",
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="NAME=ACTION",
            help="What becomes of a member or header that clients send: refuse, strip or allow. May be repeated.",
        ),
    ] = None,
    tenant_header: Annotated[
        str | None,
        typer.Option(
            "--tenant-header",
            metavar="NAME",
            help="The header that names the tenant, set by whoever is in front. Salts the prefix cache by it.",
        ),
    ] = None,
    salt_key_env: Annotated[
        str, typer.Option("--salt-key-env", metavar="NAME", help="The variable that holds the key of the salts.")
    ] = SALT_VARIABLE,
    api_key_env: Annotated[
        str, typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the workers' API key.")
    ] = KEY_VARIABLE,
    max_body: Annotated[
        int, typer.Option("--max-body", metavar="BYTES", min=1024, help="Bytes of a request's body.")
    ] = 32 << 20,
    max_memory: Annotated[
        int, typer.Option("--max-memory", metavar="BYTES", min=1 << 20, help="Bytes of all bodies held at a time.")
    ] = 1 << 30,
    max_clients: Annotated[
        int, typer.Option("--max-clients", metavar="N", min=1, help="Connections of clients, of each process.")
    ] = 10_000,
    idle_timeout: Annotated[
        float,
        typer.Option(
            "--idle-timeout", metavar="SECONDS", min=0, help="How long a worker may send nothing. 0: any time."
        ),
    ] = 600.0,
    total_timeout: Annotated[
        float,
        typer.Option("--total-timeout", metavar="SECONDS", min=0, help="How long an answer may take. 0: any time."),
    ] = 3600.0,
    refresh: Annotated[
        float, typer.Option("--refresh", metavar="SECONDS", min=0.1, help="Between two readings of a worker.")
    ] = 10.0,
    drain: Annotated[
        float, typer.Option("--drain", metavar="SECONDS", min=0, help="For answers to end after SIGTERM.")
    ] = 30.0,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="How to write the log.")] = "human",
) -> None:
    """Refuse at the door what no pair of workers can hold, and pass on the rest, until interrupted."""
    from kvfence.gateway import choices
    from kvfence.gateway.http.request import Bounds
    from kvfence.gateway.run import Ports, run
    from kvfence.gateway.settings import Settings

    places = choices.read_places(upstream or [], prefill or [], decode or [], worker or [], limit)
    header = choices.read_tenant_header(tenant_header)
    settings = Settings(
        upstreams=places.upstreams,
        prefill=places.prefill,
        decode=places.decode,
        limits_from=places.limits_from,
        engine=engine,
        counting=counting,
        tokenizer=tokenizer,
        chat_template=choices.read_template(chat_template),
        unknown_limit=unknown_limit,
        uncounted=uncounted,
        on_suspicion=on_suspicion,
        balance=balance,
        fields=choices.read_fields(field or []),
        tenant_header=header,
        salt_key=choices.read_salt(header, salt_key_env, os.environ),
        upstream_key=choices.read_key(api_key_env, os.environ),
        bounds=Bounds(body=max_body),
        memory=max_memory,
        clients=max_clients,
        idle=idle_timeout,
        total=total_timeout,
        drain=drain,
        refresh=refresh,
    )
    run(settings, Ports(host, port, admin_host, admin_port), workers, log_format)
