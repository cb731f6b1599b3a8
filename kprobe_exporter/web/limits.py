"""Limits on the size of a request: an exporter needs no large requests."""

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kprobe_exporter.web.responses import line

MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 1024

# The server would take an unread body for the next request.
_CLOSE = {"Connection": "close"}


class RequestLimits:
    """ASGI middleware that refuses requests that are too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (_refuse(scope) or self._app)(scope, receive, send)


def _refuse(scope: Scope) -> Response | None:
    headers = Headers(scope=scope)
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        return line("the headers are too large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _CLOSE)
    if "transfer-encoding" in headers:
        return line("say how long the body is: Content-Length", HTTPStatus.LENGTH_REQUIRED, _CLOSE)
    # The server has already refused a value that is not a number.
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
        return line("the body is too large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _CLOSE)
    return None
