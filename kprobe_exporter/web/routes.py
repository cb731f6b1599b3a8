"""The HTTP application: metrics, the status page, health, readiness and reload."""

import asyncio
import gzip
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kprobe_exporter.errors import UsageError
from kprobe_exporter.export.prometheus import Exposition, accepts_gzip, wants_openmetrics
from kprobe_exporter.model.values import Snapshot
from kprobe_exporter.web.auth import Access
from kprobe_exporter.web.limits import RequestLimits, check_allowed_hosts
from kprobe_exporter.web.page import CONTENT_SECURITY_POLICY
from kprobe_exporter.web.rendering import ClientsGone, Renderer, Rendering, SharedResponse, Unsent
from kprobe_exporter.web.responses import NOSNIFF, line
from kprobe_exporter.web.settings import WebSettings
from kprobe_exporter.web.status import render_status

log = logging.getLogger("kprobe_exporter.web")

# The interpreter's lock lets one thread render at a time, so more threads would only hold more memory. The
# second one renders while the first waits for the kernel.
_WORKERS = 2

# Bytes of a response, below which gzip's header costs more than compression saves.
_GZIP_FROM = 500

_OF_STATUS = {
    "Vary": "Accept-Encoding",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
}

Reload = Callable[[], str | None]
"""Reads the configuration again. Returns None, or the reason why the old one stays in force."""


def check_telemetry_path(path: str) -> None:
    """Raise UsageError, with one sentence, unless the metrics can be served at this path."""
    if not re.fullmatch(r"/[A-Za-z0-9._~/-]+", path):
        raise UsageError(
            f"the telemetry path {path!r} must start with / and go on in letters, digits"
            " and -._~/, such as /metrics"
        )
    if path.startswith("/-/"):
        raise UsageError(
            f"the telemetry path {path!r} is taken: /-/ is for health, readiness and reload;"
            " choose another, such as /metrics"
        )


def create_app(
    snapshot: Callable[[], Snapshot],
    ready: Callable[[], str | None],
    telemetry_path: str = "/metrics",
    *,
    reload: Reload | None = None,
    settings: Callable[[], WebSettings] = WebSettings,
    allowed_hosts: Collection[str] = (),
) -> ASGIApp:
    """Return the application. ``ready`` returns None, or why not; without ``reload``, reloading is forbidden.

    ``snapshot`` is called in 2 worker threads, and ``ready`` and ``reload`` each in one of its own, so the
    event loop answers other requests while they wait. An exception becomes one line for the client and one
    in the log. ``settings`` is called in the event loop, at each request. ``allowed_hosts``: see
    ``RequestLimits``.
    """
    check_telemetry_path(telemetry_path)
    check_allowed_hosts(allowed_hosts)
    exposition = Exposition(snapshot)
    workers, watcher, reloader = _Workers(_WORKERS, "web"), _Workers(1, "ready"), _Workers(1, "reload")

    async def metrics(request: Request) -> Response:
        accept = ",".join(request.headers.getlist("accept"))
        names = frozenset(request.query_params.getlist("name[]"))
        gzipped = _takes_gzip(request)

        def render() -> Rendering:
            body, content_type = exposition.render(accept, names)
            return _rendering(body, content_type, {"Vary": "Accept, Accept-Encoding"}, gzipped)

        return await workers.rendered((wants_openmetrics(accept), names, gzipped), render, request)

    async def status(request: Request) -> Response:
        gzipped = _takes_gzip(request)

        def render() -> Rendering:
            body = render_status(snapshot(), telemetry_path)
            return _rendering(body, "text/html; charset=utf-8", _OF_STATUS, gzipped)

        return await workers.rendered(("status", gzipped), render, request)

    def readiness(_: Request) -> Response:
        reason = ready()
        return line("ready") if reason is None else line(reason, HTTPStatus.SERVICE_UNAVAILABLE)

    async def healthy(_: Request) -> Response:
        return line("healthy")

    app = Starlette(
        routes=[
            Route("/", status),
            Route(telemetry_path, metrics),
            Route("/-/healthy", healthy),
            Route("/-/ready", watcher.endpoint(readiness)),
            Route("/-/reload", _reloading(reloader, reload), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refuse},
    )
    # /metrics/ is an unknown path and is not redirected.
    app.router.redirect_slashes = False
    return RequestLimits(Access(app, settings), allowed_hosts)


def _reloading(workers: "_Workers", reload: Reload | None) -> Callable[[Request], Awaitable[Response]]:
    turn = asyncio.Lock()

    def respond(_: Request) -> Response:
        assert reload is not None
        reason = reload()
        return line("reloaded") if reason is None else line(reason, HTTPStatus.INTERNAL_SERVER_ERROR)

    off_loop = workers.endpoint(respond)

    async def endpoint(request: Request) -> Response:
        if reload is None:
            return line("Lifecycle API is not enabled.", HTTPStatus.FORBIDDEN)
        if _is_from_a_page(request):
            return line("a web page may not ask for this", HTTPStatus.FORBIDDEN)
        # A request that waits here occupies no worker. The reload under way does not satisfy it, because
        # files may have changed since they were read.
        async with turn:
            return await off_loop(request)

    return endpoint


def _is_from_a_page(request: Request) -> bool:
    """Return whether a browser sends this for a web page of any site; the agent's own page never does.

    An Origin that equals the Host proves nothing: an attacker's name may resolve to us (DNS rebinding).
    """
    site = request.headers.get("sec-fetch-site", "none")
    return "origin" in request.headers or site != "none"


class _Workers:
    """Threads that compute responses. A request waits for a thread in the event loop."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._free = asyncio.Semaphore(threads)
        self._renderer = Renderer(self._threads, self._free)
        self._unsent = Unsent()

    async def rendered(self, key: Hashable, render: Callable[[], Rendering], request: Request) -> Response:
        """Answer with what ``render`` returns, called once for all requests with this ``key`` that wait."""

        async def answer() -> Response:
            return SharedResponse(await self._renderer.get(key, render, request), self._unsent)

        return await _guarded(request, answer)

    def endpoint(self, respond: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers a request with ``respond``, also if its client has gone."""

        async def endpoint(request: Request) -> Response:
            async def answer() -> Response:
                async with self._free:
                    return await asyncio.get_running_loop().run_in_executor(self._threads, respond, request)

            return await _guarded(request, answer)

        return endpoint


async def _guarded(request: Request, answer: Callable[[], Awaitable[Response]]) -> Response:
    """Return the answer, or one line that says why there is none."""
    try:
        return await answer()
    except ClientsGone:
        return line("the client has gone", HTTPStatus.SERVICE_UNAVAILABLE)
    except asyncio.CancelledError:
        # The server stops and does not wait any longer; the worker's response is discarded.
        return line("the agent stops", HTTPStatus.SERVICE_UNAVAILABLE)
    except Exception as error:
        # %r keeps the message on one line.
        debug = log.isEnabledFor(logging.DEBUG)
        log.error("cannot answer %s: %r", request.url.path, error, exc_info=debug)
        return line("something went wrong: see the agent's log", HTTPStatus.INTERNAL_SERVER_ERROR)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if "Allow" in headers:
        # Starlette joins a set, whose order varies.
        headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
    return line(error.detail, error.status_code, headers)


def _takes_gzip(request: Request) -> bool:
    return accepts_gzip(request.headers.get("accept-encoding", ""))


def _rendering(body: bytes, content_type: str, headers: Mapping[str, str], gzipped: bool) -> Rendering:
    headers = {"Content-Type": content_type, **NOSNIFF, **headers}
    if len(body) >= _GZIP_FROM and gzipped:
        body = gzip.compress(body, compresslevel=6)
        headers["Content-Encoding"] = "gzip"
    return Rendering(body, headers)
