"""The operators' port: `/status` as JSON and as a page, `/metrics`, and quarantine by hand. Never for clients."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final, Literal, Self

import msgspec
from aiohttp import web
from jinja2 import Environment

from kvfence import __version__
from kvfence.errors import InputError
from kvfence.facts.redact import clean
from kvfence.gateway.group import Group, Order, Report, Status
from kvfence.gateway.metrics import of_fleet
from kvfence.gateway.settings import Settings
from kvfence.gateway.tally import add_up, exposition

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_BODY_MOST: Final = 4096


class _Ordered(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /quarantine and /release."""

    name: str
    reason: str = "by order"


class Admin:
    """Serves the operators' port, from entering to leaving the context.

    Args:
        group: the gateway's processes.
        settings: the operator's choices, which the status tells (no key among them).
        host: the address to bind.
        port: 0 for any free one.

    """

    def __init__(self, group: Group, settings: Settings, host: str, port: int) -> None:
        self.port = port
        self._group = group
        self._settings = settings
        self._host = host
        self._runner: web.AppRunner | None = None
        source = (files("kvfence.gateway") / "page" / "status.html").read_text(encoding="utf-8")
        self._page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)

    async def __aenter__(self) -> Self:
        """Open the port.

        Raises:
            InputError: it cannot be bound.

        """
        app = web.Application(client_max_size=_BODY_MOST)
        app.router.add_get("/", self._show)
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_post("/quarantine", self._quarantine)
        app.router.add_post("/release", self._release)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self.port, reuse_address=True).start()
        except OSError as error:
            await self._runner.cleanup()
            problem = f"cannot bind {self._host}:{self.port} ({error.strerror})"
            raise InputError("--admin-port", problem) from None
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _status(self, request: web.Request) -> web.Response:
        del request
        status = make_status(await self._group.reports(), self._settings)
        return web.Response(body=msgspec.json.format(msgspec.json.encode(status)), content_type="application/json")

    async def _show(self, request: web.Request) -> web.Response:
        del request
        status = make_status(await self._group.reports(), self._settings)
        page = self._page.render(status=status, version=__version__)
        return web.Response(text=page, content_type="text/html", headers={"Cache-Control": "no-store"})

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        reports = await self._group.reports()
        text = exposition(add_up(report.snapshot for report in reports), of_fleet(reports))
        return web.Response(body=text, headers={"Content-Type": _TEXT})

    async def _health(self, request: web.Request) -> web.Response:
        del request
        alive = bool(await self._group.reports())
        return _json({"status": "ok" if alive else "no process answers"}, 200 if alive else 503)

    async def _ready(self, request: web.Request) -> web.Response:
        del request
        reports = await self._group.reports()
        ready = bool(reports) and all(report.ready for report in reports)
        problem = next((report.problem for report in reports if report.problem), None)
        return _json({"status": "ready" if ready else "not ready", "problem": problem}, 200 if ready else 503)

    async def _quarantine(self, request: web.Request) -> web.Response:
        return await self._order(request, "quarantine")

    async def _release(self, request: web.Request) -> web.Response:
        return await self._order(request, "release")

    async def _order(self, request: web.Request, do: Literal["quarantine", "release"]) -> web.Response:
        if request.content_type != "application/json":  # so that no page of a browser can post it unasked
            return _json({"error": "must be sent as application/json"}, 415)
        try:
            ordered = msgspec.json.decode(await request.read(), type=_Ordered)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _json({"error": f'must be like {{"name": "decode-0"}}: {error}'}, 400)
        known = await self._group.order(Order(do, ordered.name, clean(ordered.reason)))
        if not known:
            return _json({"error": "no worker or pair has this name; /status lists them"}, 404)
        return _json({"done": do, "name": ordered.name}, 200)


def _json(document: dict[str, Any], status: int) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, content_type="application/json")


def make_status(reports: list[Report], settings: Settings) -> Status:
    """Put the reports of all processes into one document; of what each sees for itself, the first's counts."""
    total = add_up(report.snapshot for report in reports)
    fleet = reports[0].fleet if reports else None
    return Status(
        version=__version__,
        mode="pd" if settings.pd else "front",
        ready=bool(reports) and all(report.ready for report in reports),
        problem=next((report.problem for report in reports if report.problem), None),
        processes=len(reports),
        since=total.since,
        limit=reports[0].limit if reports else None,
        counting=reports[0].counting if reports else "",
        settings=settings.told(),
        fleet=fleet,
        counts={" ".join(name): count for name, count in total.counts},
        gauges=total.gauges,
    )
