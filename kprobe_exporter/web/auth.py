"""Basic authentication, the limit on each network's request rate, and the headers of every response."""

import base64
import binascii
import time
from collections.abc import Callable, ItemsView
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kprobe_exporter.util.token_bucket import TokenBucket
from kprobe_exporter.web.rendering import CLIENT
from kprobe_exporter.web.responses import line
from kprobe_exporter.web.settings import Rate, WebSettings

if TYPE_CHECKING:
    from kprobe_exporter.web.passwords import Passwords

MAX_BUCKETS = 1024
"""Networks whose rate of requests is known. Of more, those that asked longest ago are forgotten."""

_ASK = {"WWW-Authenticate": 'Basic realm="kprobe_exporter", charset="UTF-8"'}


class Access:
    """ASGI middleware that enforces the web configuration, which ``settings`` returns at each request."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Callable[[], WebSettings],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock
        self._rate: Rate | None = None
        self._buckets: dict[str, TokenBucket] = {}
        self._passwords: Passwords | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        settings = self._settings()
        if not self._within(settings.rate, scope["state"][CLIENT].network):
            refusal: Response | None = line("too many requests", HTTPStatus.TOO_MANY_REQUESTS)
        elif settings.users:
            refusal = await self._refuse(settings, scope)
        else:
            refusal = None
        await (refusal or self._app)(scope, receive, _adding(settings.headers.items(), send))

    def _within(self, rate: Rate | None, network: str) -> bool:
        """Take one of the network's tokens, if one is left. Another rate refills all buckets."""
        if rate != self._rate:
            self._rate = rate
            self._buckets.clear()
        if rate is None:
            return True
        now = self._clock()
        bucket = self._buckets.pop(network, None) or TokenBucket(1 / rate.interval, rate.burst, now)
        while len(self._buckets) >= MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[network] = bucket  # behind those that asked earlier
        return bucket.take(now)

    async def _refuse(self, settings: WebSettings, scope: Scope) -> Response | None:
        """Return None if the client is authenticated, else the response that refuses it."""
        # Imported only here, because most agents have no passwords.
        from kprobe_exporter.web.passwords import Passwords  # noqa: PLC0415

        if self._passwords is None:
            self._passwords = Passwords()
        said = credentials(Headers(scope=scope).get("authorization", ""))
        if said is None:
            return line("authentication required", HTTPStatus.UNAUTHORIZED, _ASK)
        client = scope["state"][CLIENT]
        if await self._passwords.match(settings.users, *said, client.network, client.is_gone):
            return None
        return line("wrong user or password", HTTPStatus.UNAUTHORIZED, _ASK)


def credentials(header: str) -> tuple[bytes, bytes] | None:
    """Return the user name and the password of a basic Authorization header (RFC 7617), or None."""
    scheme, _, coded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _adding(headers: ItemsView[str, str], send: Send) -> Send:
    """Wrap ``send`` to add headers, except those that a response sets itself, such as a stricter policy."""
    if not headers:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = MutableHeaders(scope=message)
            for name, value in headers:
                present.setdefault(name, value)
        await send(message)

    return sending
