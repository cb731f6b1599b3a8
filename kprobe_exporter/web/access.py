"""Which requests are answered: limits on their size, host name and rate; passwords; headers of responses."""

import base64
import ipaddress
import re
import time
from collections.abc import Callable, Collection, ItemsView, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kprobe_exporter.errors import UsageError
from kprobe_exporter.util.token_bucket import TokenBucket
from kprobe_exporter.web.connection import CLIENT, MAX_BODY_BYTES, MAX_HEADER_BYTES, Client
from kprobe_exporter.web.handshake import Tls
from kprobe_exporter.web.passwords import Passwords
from kprobe_exporter.web.rendering import line

MAX_BUCKETS = 1024
"""Networks whose rate of requests is known. Of more, those that asked longest ago are forgotten."""

NOT_ALLOWED = "the host name that you ask for is not one of --web.allowed-hosts"

_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]+)(/.*)?")

# The server would take an unread body for the next request.
_CLOSE = {"Connection": "close"}

_ASK = {"WWW-Authenticate": 'Basic realm="kprobe_exporter", charset="UTF-8"'}


class Rate(NamedTuple):
    """A token bucket: one request every ``interval`` seconds, and ``burst`` at once."""

    interval: float
    burst: int


class WebSettings(NamedTuple):
    """Settings for every request. ``users`` maps names to bcrypt hashes; empty: no password is required."""

    tls: Tls | None = None
    users: Mapping[bytes, bytes] = {}
    headers: Mapping[str, str] = {}
    rate: Rate | None = None


class Access:
    """ASGI middleware that enforces limits and the web configuration, which ``settings`` returns each time.

    ``allowed_hosts`` are host names; empty, every name is allowed. A web page of another site can reach the
    agent through a browser by letting the site's own name resolve to the agent's address (DNS rebinding); an
    address in place of a name cannot, so addresses and localhost are always allowed. Raises UsageError for
    what is no name of a host.
    """

    def __init__(
        self, app: ASGIApp, settings: Callable[[], WebSettings], allowed_hosts: Collection[str]
    ) -> None:
        for host in allowed_hosts:
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9.])?", host):
                raise UsageError(
                    f"{host!r} is no host name to allow: write the name alone, such as agent.example.com"
                )
        self._app = app
        self._settings = settings
        self._hosts = {host.lower().rstrip(".") for host in allowed_hosts}
        self._rate: Rate | None = None
        self._buckets: dict[str, TokenBucket] = {}
        self._passwords = Passwords()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _to_origin_form(scope)
        headers = Headers(scope=scope)
        refusal = _too_large(headers)
        if refusal is None and self._hosts and not self._allows(headers.get("host", "")):
            refusal = line(NOT_ALLOWED, HTTPStatus.MISDIRECTED_REQUEST)
        if refusal is None:
            settings = self._settings()
            send = _adding(settings.headers.items(), send)
            if not self._within(settings.rate, scope["state"][CLIENT].network.narrow):
                refusal = line("too many requests", HTTPStatus.TOO_MANY_REQUESTS)
            elif settings.users:
                refusal = await self._refuse(settings, headers, scope["state"][CLIENT])
        if refusal is None:
            scope["state"][CLIENT].note_answer()
        await (refusal or self._app)(scope, receive, send)

    def _allows(self, asked: str) -> bool:
        try:
            host = (urlsplit(f"//{asked}").hostname or "").rstrip(".")
            if host not in self._hosts and host != "localhost":
                ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def _within(self, rate: Rate | None, network: str) -> bool:
        """Take one of the network's tokens, if one is left. Another rate refills all buckets."""
        if rate != self._rate:
            self._rate = rate
            self._buckets.clear()
        if rate is None:
            return True
        now = time.monotonic()
        bucket = self._buckets.pop(network, None) or TokenBucket(1 / rate.interval, rate.burst, now)
        while len(self._buckets) >= MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[network] = bucket  # behind those that asked earlier
        return bucket.take(now)

    async def _refuse(self, settings: WebSettings, headers: Headers, client: Client) -> Response | None:
        """Return None if the client is authenticated, else the response that refuses it."""
        said = credentials(headers.get("authorization", ""))
        if said is None:
            return line("authentication required", HTTPStatus.UNAUTHORIZED, _ASK)
        if await self._passwords.match(settings.users, *said, client.network, client.is_gone):
            return None
        return line("wrong user or password", HTTPStatus.UNAUTHORIZED, _ASK)


def _to_origin_form(scope: Scope) -> None:
    """Split an absolute target, as a proxy sends it, into host and path (RFC 9112, 3.2.2).

    The host in the target is used in place of the header.
    """
    if found := _ABSOLUTE.fullmatch(scope["raw_path"]):
        host, path = found[1], found[2] or b"/"
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope.update(raw_path=path, path=unquote(path.decode("ascii")), headers=[(b"host", host), *others])


def credentials(header: str) -> tuple[bytes, bytes] | None:
    """Return the user name and the password of a basic Authorization header (RFC 7617), or None."""
    scheme, _, coded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
    except ValueError:
        return None
    return (name, password) if colon else None


def _too_large(headers: Headers) -> Response | None:
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        return line("the headers are too large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _CLOSE)
    if "transfer-encoding" in headers:
        return line("say how long the body is: Content-Length", HTTPStatus.LENGTH_REQUIRED, _CLOSE)
    # The server has already refused a value that is not a number.
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
        return line("the body is too large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _CLOSE)
    return None


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
