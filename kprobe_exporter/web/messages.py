"""HTTP requests and responses, and the exceptions that become responses."""

import asyncio
import base64
import logging
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import h11

from kprobe_exporter.web.clients import Client

log = logging.getLogger("kprobe_exporter.web")

# An absolute target, as a proxy sends it (RFC 9112, 3.2.2).
_ABSOLUTE = re.compile(r"(?i:https?)://([^/?#]+)(/.*)?")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The head of a request. A body is never read: no route needs one."""

    client: Client
    method: str
    path: str  # percent-decoded
    query: str  # as it was sent
    headers: Mapping[str, str]  # by lower-case name; the values of a repeated header are joined by commas
    header_bytes: int  # the size of all names and values

    @classmethod
    def from_event(cls, event: h11.Request, client: Client) -> "Request":
        """Return the request of an event. The host of an absolute target replaces the header."""
        path, _, query = event.target.decode("ascii").partition("?")
        values = defaultdict[str, list[str]](list)
        for name, value in event.headers:
            values[name.decode("latin-1")].append(value.decode("latin-1"))
        if absolute := _ABSOLUTE.fullmatch(path):
            values["host"], path = [absolute[1]], absolute[2] or "/"
        headers = {name: ",".join(sent) for name, sent in values.items()}
        size = sum(len(name) + len(value) for name, value in event.headers)
        return cls(client, event.method.decode("ascii"), unquote(path), query, headers, size)

    def parameters(self, name: str) -> list[str]:
        """Return the values of a parameter of the query."""
        return [value for key, value in parse_qsl(self.query, keep_blank_values=True) if key == name]


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """A body and its headers. Any number of requests may share one."""

    body: bytes
    headers: Mapping[str, str]
    status: int = HTTPStatus.OK
    held: Callable[[Client], AbstractContextManager[object]] = nullcontext
    """Returns the context in which a client takes the body."""
    stream: Callable[[Client], AsyncGenerator[bytes, None]] | None = None
    """Returns the pieces of the body, in place of ``body``. An empty piece says that more may come."""


App = Callable[[Request], Awaitable[Response]]


class HttpError(Exception):
    """Raised in place of a response: a status other than 200, and the line of text that explains it."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


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


def line(text: str, status: int = HTTPStatus.OK, headers: Mapping[str, str] = {}) -> Response:
    """Return a text/plain response; characters that UTF-8 cannot encode become backslash escapes."""
    body = f"{text}\n".encode("utf-8", "backslashreplace")
    return Response(body, {"Content-Type": "text/plain; charset=utf-8", **headers}, status)


async def answered(app: App, request: Request) -> Response:
    """Return the response of ``app``, or one line that says why there is none."""
    try:
        return await app(request)
    except HttpError as error:
        return line(str(error), error.status)
    except asyncio.CancelledError:
        # The server stops and does not wait any longer; the worker's response is discarded.
        return line("the agent stops", HTTPStatus.SERVICE_UNAVAILABLE)
    except Exception as error:
        # %r keeps the message on one line.
        log.error("cannot answer %s: %r", request.path, error, exc_info=log.isEnabledFor(logging.DEBUG))
        return line("something went wrong: see the agent's log", HTTPStatus.INTERNAL_SERVER_ERROR)
