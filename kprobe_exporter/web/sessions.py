"""Sessions over HTTP: their requests, and their messages as the tools write them."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

from kprobe_exporter.errors import name_text
from kprobe_exporter.web.clients import Client
from kprobe_exporter.web.messages import Request, Response, credentials, line

Connect: TypeAlias = Callable[[bytes, str], socket.socket]
"""Sends a request to the agent, with the client's name for its log; returns the connection."""

TURN_S = 1.0
"""Seconds between two looks at the client, while the tools write nothing."""

PIECE = 16 * 1024

DISABLED = "Sessions over HTTP are not enabled: start the agent with --web.enable-sessions."
PLAIN = "sessions over HTTP need TLS and a password: give both in the file of --web.config.file"
ASK = "write the session as one parameter 'request', in JSON: docs/sessions.md has an example"


class SessionRoutes:
    """Answers a request for a session by its messages, until it ends or the client goes.

    A further request on the same connection ends the session, as the end of what a client sends does at the
    agent's socket; that request is not answered. ``connect`` is None if sessions are not served over HTTP.
    """

    def __init__(self, connect: Connect | None) -> None:
        self._connect = connect

    async def session(self, request: Request) -> Response:
        """Ask for a session, for a client that has given a password."""
        if self._connect is None:
            return line(DISABLED, HTTPStatus.FORBIDDEN)
        said, client = credentials(request.headers.get("authorization", "")), request.client
        if not client.is_secure or not client.is_known or said is None:
            return line(PLAIN, HTTPStatus.FORBIDDEN)
        asked = request.parameters("request")
        if len(asked) != 1:
            return line(ASK, HTTPStatus.BAD_REQUEST)
        who = f"web user '{name_text(said[0])}', at {client.network.narrow},"
        connection = self._connect(asked[0].replace("\n", " ").encode(errors="replace"), who)
        headers = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        return Response(b"", headers, stream=partial(_pieces, connection))


async def _pieces(connection: socket.socket, client: Client) -> AsyncGenerator[bytes, None]:
    """Yield what arrives, and b"" after each TURN_S without anything."""
    ended = False
    with connection:
        while True:
            if client.pipelines and not ended:
                ended = True
                connection.shutdown(socket.SHUT_WR)
            await _readable(connection)
            try:
                data = connection.recv(PIECE)
            except BlockingIOError:
                yield b""
                continue
            except OSError:
                return
            if not data:
                return
            yield data


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read, for TURN_S at most."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(ready.wait(), TURN_S)
    finally:
        loop.remove_reader(connection)
