"""Limits on a request: its size, as an exporter needs no large ones, and the host name that it asks for."""

import ipaddress
import re
from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kprobe_exporter.errors import UsageError
from kprobe_exporter.web.responses import line

MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 1024

NOT_ALLOWED = "the host name that you ask for is not one of --web.allowed-hosts"

# The server would take an unread body for the next request.
_CLOSE = {"Connection": "close"}


def check_allowed_hosts(hosts: Collection[str]) -> None:
    """Raise UsageError, with one sentence, unless these are names of hosts."""
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9.])?", host):
            raise UsageError(
                f"{host!r} is no host name to allow: write the name alone, such as agent.example.com"
            )


class RequestLimits:
    """ASGI middleware that refuses requests that are too large, or for a host that is not allowed.

    ``allowed_hosts`` are host names; empty, every name is allowed. A web page of another site can reach the
    agent through a browser by letting the site's own name resolve to the agent's address (DNS rebinding); an
    address in place of a name cannot, so addresses and localhost are always allowed.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = {host.lower().rstrip(".") for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = _too_large(headers)
        if refusal is None and self._hosts and not self._allows(headers.get("host", "")):
            refusal = line(NOT_ALLOWED, HTTPStatus.MISDIRECTED_REQUEST)
        await (refusal or self._app)(scope, receive, send)

    def _allows(self, asked: str) -> bool:
        try:
            host = (urlsplit(f"//{asked}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return host in self._hosts or host == "localhost" or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _too_large(headers: Headers) -> Response | None:
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        return line("the headers are too large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _CLOSE)
    if "transfer-encoding" in headers:
        return line("say how long the body is: Content-Length", HTTPStatus.LENGTH_REQUIRED, _CLOSE)
    # The server has already refused a value that is not a number.
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
        return line("the body is too large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _CLOSE)
    return None
