"""Which requests are answered: limits on their size, host name and rate; passwords; headers of responses."""

import ipaddress
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from kprobe_exporter.errors import UsageError
from kprobe_exporter.util.token_bucket import TokenBucket
from kprobe_exporter.web.connection import MAX_BODY_BYTES, MAX_HEADER_BYTES
from kprobe_exporter.web.handshake import Tls
from kprobe_exporter.web.messages import App, Request, Response, answered, credentials, line
from kprobe_exporter.web.passwords import Passwords

MAX_BUCKETS = 1024
"""Networks whose rate of requests is known. Beyond that, those that asked longest ago are forgotten."""

NOT_ALLOWED = "the host name that you ask for is not one of --web.allowed-hosts"

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
    """Passes requests on to ``app``, within limits and as the web configuration in ``settings`` asks.

    ``allowed_hosts`` are host names; empty, every name is allowed. A web page of another site can reach the
    agent through a browser, if the site's own name resolves to the agent's address (DNS rebinding); an
    address in place of a name cannot, so addresses and localhost are always allowed. Raises UsageError for a
    text that is not a name of a host.
    """

    def __init__(self, app: App, settings: Callable[[], WebSettings], allowed_hosts: Collection[str]) -> None:
        for host in allowed_hosts:
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9.])?", host):
                raise UsageError(
                    f"{host!r} is not a host name to allow: write the name alone, such as agent.example.com"
                )
        self._app = app
        self._settings = settings
        self._hosts = {host.lower().rstrip(".") for host in allowed_hosts}
        self._rate: Rate | None = None
        self._buckets: dict[str, TokenBucket] = {}
        self._passwords = Passwords()

    async def __call__(self, request: Request) -> Response:
        if (refusal := _too_large(request)) is not None:
            return refusal
        if self._hosts and not self._allows(request.headers.get("host", "")):
            return line(NOT_ALLOWED, HTTPStatus.MISDIRECTED_REQUEST)
        settings = self._settings()
        response = await answered(partial(self._answer, settings), request)
        # The response's own headers stay, such as a stricter policy.
        return replace(response, headers={**settings.headers, **response.headers})

    async def _answer(self, settings: WebSettings, request: Request) -> Response:
        if not self._within(settings.rate, request.client.network.narrow):
            return line("too many requests", HTTPStatus.TOO_MANY_REQUESTS)
        if settings.users and (refusal := await self._refuse(settings, request)) is not None:
            return refusal
        request.client.is_known = bool(settings.users)
        request.client.note_answer()
        return await self._app(request)

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

    async def _refuse(self, settings: WebSettings, request: Request) -> Response | None:
        """Return None if the client is authenticated, else the response that refuses it."""
        said, client = credentials(request.headers.get("authorization", "")), request.client
        if said is None:
            return line("authentication required", HTTPStatus.UNAUTHORIZED, _ASK)
        if await self._passwords.match(settings.users, *said, client.network, client.is_gone):
            return None
        return line("wrong user or password", HTTPStatus.UNAUTHORIZED, _ASK)


def _too_large(request: Request) -> Response | None:
    if request.header_bytes > MAX_HEADER_BYTES:
        return line("the headers are too large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _CLOSE)
    if "transfer-encoding" in request.headers:
        return line("say how long the body is: Content-Length", HTTPStatus.LENGTH_REQUIRED, _CLOSE)
    # The server has already refused a value that is not a number.
    if int(request.headers.get("content-length", "0")) > MAX_BODY_BYTES:
        return line("the body is too large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _CLOSE)
    return None
