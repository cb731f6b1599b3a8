"""The routes of counted stacks: folded text, a flame graph and a pprof profile, also of some seconds."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote

from kprobe_exporter.export.stacks import flame_graph, folded, pprof
from kprobe_exporter.model.stacks import Profile
from kprobe_exporter.web.messages import HttpError, Request, Response, line
from kprobe_exporter.web.rendering import Workers

MOST_SECONDS = 20
"""The longest profile of some seconds. A client that waits holds a connection."""

MOST_WAITING = 4
"""Requests for some seconds at the same time; each holds two profiles."""

MAX_WAITING_OF_WIDE = 2
"""The most of these from one wide network, so that one client does not take all places."""

DISABLED = "stacks are not served: the agent runs with --web.disable-stacks"


class _Form(NamedTuple):
    """A form in which a profile is served."""

    render: Callable[[Profile], bytes]
    headers: dict[str, str]


FOLDED = _Form(folded.folded, {"Content-Type": "text/plain; charset=utf-8", "Vary": "Accept-Encoding"})
FLAME_GRAPH = _Form(
    lambda profile: flame_graph.flame_graph(profile, f"/probe/{quote(profile.probe, safe='')}"),
    {
        "Content-Type": flame_graph.CONTENT_TYPE,
        "Vary": "Accept-Encoding",
        "Content-Security-Policy": flame_graph.CONTENT_SECURITY_POLICY,
        "Referrer-Policy": "no-referrer",
    },
)
PPROF = _Form(
    pprof.pprof,
    {"Content-Type": pprof.CONTENT_TYPE, "Content-Disposition": 'attachment; filename="profile.pb.gz"'},
)


class StackRoutes:
    """Serves the profiles that ``profile`` returns, None for a probe that counts no stacks.

    ``profile`` is called in a thread of its own, because it may wait for names of functions, and scrapes may
    not. None in its place: stacks are not served at all.
    """

    def __init__(self, profile: Callable[[str], Profile | None] | None) -> None:
        self._profile = profile
        self._workers = Workers(1, "stacks")
        self._waiting: list[str] = []  # the clients' wide networks

    async def stacks(self, request: Request, name: str) -> Response:
        if name.endswith(".svg"):
            return await self._served(request, name.removesuffix(".svg"), FLAME_GRAPH)
        return await self._served(request, name, FOLDED)

    async def pprof(self, request: Request, name: str) -> Response:
        return await self._served(request, name, PPROF)

    async def _served(self, request: Request, name: str, form: _Form) -> Response:
        if self._profile is None:
            return line(DISABLED, HTTPStatus.FORBIDDEN)
        seconds = _seconds(request.parameters("seconds"))
        if not seconds:
            return await self._workers.rendered(
                request,
                ("stacks", name, form.headers["Content-Type"]),
                lambda _: Response(form.render(self._read(name)), form.headers),
            )
        network = request.client.network.wide
        if len(self._waiting) >= MOST_WAITING or self._waiting.count(network) >= MAX_WAITING_OF_WIDE:
            return line("too many profiles of some seconds are being taken", HTTPStatus.TOO_MANY_REQUESTS)
        self._waiting.append(network)
        try:
            return await self._difference(request, name, form, seconds)
        finally:
            self._waiting.remove(network)

    async def _difference(self, request: Request, name: str, form: _Form, seconds: int) -> Response:
        before = await self._workers.run(request, lambda: self._read(name))
        await asyncio.sleep(seconds)

        def render(_: object) -> Response:
            return Response(form.render(self._read(name).minus(before)), form.headers)

        # A key of its own: the seconds of two requests are not the same ones.
        return await self._workers.rendered(request, object(), render)

    def _read(self, name: str) -> Profile:
        """Return a probe's profile. Raises HttpError if there is none."""
        assert self._profile is not None
        if (found := self._profile(name)) is None:
            sentence = f"no probe {name!r} counts its stacks: give it `stacks: {{}}`"
            raise HttpError(HTTPStatus.NOT_FOUND, sentence)
        return found


def _seconds(asked: list[str]) -> int:
    """Return the seconds of a query, 0 for none. Raises HttpError."""
    last = asked[-1] if asked else "0"
    if not (last.isascii() and last.isdigit() and len(last) < 9 and int(last) <= MOST_SECONDS):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"seconds is a whole number up to {MOST_SECONDS}")
    return int(last)
