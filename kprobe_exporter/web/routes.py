"""The HTTP application: metrics, the status page and those of probes, health, readiness and reload."""

import re
from collections.abc import Callable, Collection
from http import HTTPStatus

from kprobe_exporter.errors import UsageError, one_line
from kprobe_exporter.export.prometheus import Exposition, negotiated
from kprobe_exporter.model.snapshot import Snapshot, summary
from kprobe_exporter.model.stacks import Profile
from kprobe_exporter.web.access import Access, WebSettings
from kprobe_exporter.web.messages import App, HttpError, Request, Response, line
from kprobe_exporter.web.parts import CONTENT_SECURITY_POLICY
from kprobe_exporter.web.probe_page import render_probe, unknown
from kprobe_exporter.web.recordings import RecordingRoutes, Recordings
from kprobe_exporter.web.rendering import Workers
from kprobe_exporter.web.sessions import Connect, SessionRoutes
from kprobe_exporter.web.stacks import StackRoutes
from kprobe_exporter.web.status import render_status

# The interpreter's lock lets one thread render at a time, so more threads would only hold more memory. The
# second one renders while the first waits for the kernel.
_WORKERS = 2

_RELOAD, _RECORD, _SESSION = "/-/reload", "/-/record", "/-/session"

_NO_PAGE = "a web page may not ask for this"
_NO_LIFECYCLE = "Lifecycle API is not enabled: start the agent with --web.enable-lifecycle."

_OF_STATUS = {
    "Content-Type": "text/html; charset=utf-8",
    "Vary": "Accept-Encoding",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
}


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
    reload: Callable[[], str | None] | None = None,
    settings: Callable[[], WebSettings] = WebSettings,
    allowed_hosts: Collection[str] = (),
    profile: Callable[[str], Profile | None] | None = None,
    recordings: Recordings | None = None,
    serves_recordings: bool = False,
    connect: Connect | None = None,
) -> App:
    """Return the application; ``settings`` and ``allowed_hosts`` are those of ``Access``.

    ``ready`` returns None, or why not. ``reload`` reads the configuration again, and returns None, or why
    the old one stays in force; without it, reloading is forbidden. ``profile`` returns the counted stacks of
    a probe, None if it counts none; without it, no stacks are served. ``recordings`` are written on request
    where reloading is allowed, and their files are served if ``serves_recordings``. ``connect`` asks for
    sessions; without it, they are forbidden. ``snapshot`` is called in
    2 threads, and each of the others in one of its own, so the event loop answers other requests meanwhile.
    An exception becomes one line for the client and one in the log.
    """
    check_telemetry_path(telemetry_path)
    exposition = Exposition(snapshot)
    workers = Workers(_WORKERS, "web")

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        names = _names(request)
        # Requests that differ only in unknown names share a rendering, and cost as little as one.
        known = exposition.known_names(names)

        def render(requests: Collection[Request]) -> Response:
            body, content_type = exposition.render(accept, frozenset().union(*map(_names, requests)))
            return Response(body, {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"})

        return await workers.rendered(request, (negotiated(accept), known, known == names), render)

    async def status(request: Request) -> Response:
        def render(_: object) -> Response:
            return Response(render_status(snapshot(), telemetry_path), _OF_STATUS)

        return await workers.rendered(request, "status", render)

    async def probe(request: Request, name: str) -> Response:
        def render(_: object) -> Response:
            now = snapshot()
            page = render_probe(now, name, stacks=profile is not None)
            if page is None:
                raise HttpError(HTTPStatus.NOT_FOUND, unknown(now, name))
            return Response(page, _OF_STATUS)

        return await workers.rendered(request, ("probe", name), render)

    async def healthy(_: Request) -> Response:
        return line("healthy")

    def reloaded() -> str:
        """Return the answer to a reload: also which probes are not up, and why."""
        probes = snapshot().probes
        failed = [probe for probe in probes if probe.state in ("down", "tripped")]
        if not failed:
            return "reloaded"
        states = summary((probe.name, probe.state) for probe in probes)
        lines = [f"reloaded; {states}", *(f"{probe.name}: {probe.reason}" for probe in failed)]
        return "\n".join(map(one_line, lines))

    readiness = Workers(1, "ready").endpoint(ready, "ready", HTTPStatus.SERVICE_UNAVAILABLE)

    # A request that waits for the one thread occupies none. The reload under way does not satisfy it, because
    # files may have changed since they were read.
    reloader = reload and Workers(1, "reload").endpoint(reload, reloaded, HTTPStatus.INTERNAL_SERVER_ERROR)

    stacks, recorded = StackRoutes(profile), RecordingRoutes(recordings, served=serves_recordings)
    sessions = SessionRoutes(connect)

    async def session(request: Request) -> Response:
        if _is_from_a_page(request):
            return line(_NO_PAGE, HTTPStatus.FORBIDDEN)
        return await sessions.session(request)

    async def changing(request: Request) -> Response:
        if reloader is None:
            return line(_NO_LIFECYCLE, HTTPStatus.FORBIDDEN)
        if _is_from_a_page(request):
            return line(_NO_PAGE, HTTPStatus.FORBIDDEN)
        return await (reloader if request.path == _RELOAD else recorded.record)(request)

    exact: dict[str, App] = {
        "/": status,
        telemetry_path: metrics,
        "/-/healthy": healthy,
        "/-/ready": readiness,
        _RELOAD: changing,
        _RECORD: changing,
        _SESSION: session,
        "/recordings": recorded.list,
    }
    # A telemetry path below one of these comes first. /metrics/ is an unknown path and is not redirected.
    below = {
        "/probe/": probe,
        "/stacks/": stacks.stacks,
        "/debug/pprof/": stacks.pprof,
        "/recordings/": recorded.file,
    }

    async def route(request: Request) -> Response:
        path = request.path
        prefix = next(filter(path.startswith, below), "")
        if not prefix and path not in exact:
            return line("Not Found", HTTPStatus.NOT_FOUND)
        methods = ("POST",) if path in (_RELOAD, _RECORD, _SESSION) else ("GET", "HEAD")
        if request.method not in methods:
            allow = {"Allow": ", ".join(methods)}
            return line("Method Not Allowed", HTTPStatus.METHOD_NOT_ALLOWED, allow)
        if path in exact:
            return await exact[path](request)
        return await below[prefix](request, path.removeprefix(prefix))

    return Access(route, settings, allowed_hosts)


def _names(request: Request) -> frozenset[str]:
    return frozenset(request.parameters("name[]"))


def _is_from_a_page(request: Request) -> bool:
    """Return whether a browser sends this for a web page of any site; the agent's own page never does.

    An Origin that equals the Host proves nothing: an attacker's name may resolve to us (DNS rebinding).
    """
    site = request.headers.get("sec-fetch-site", "none")
    return "origin" in request.headers or site != "none"
