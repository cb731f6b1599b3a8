"""One HTTP connection: h11 parses its requests, an application answers them one after the other.

h11 queues requests that are sent before the previous one was answered (pipelining). Here such requests are
not read, and the connection closes after the answer, as RFC 9112, section 9.3.2 lets a server do.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus

import h11

from kprobe_exporter.web.clients import Client, Clients
from kprobe_exporter.web.messages import App, Request, Response, answered, line

MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 1024
MAX_REQUEST_BYTES = MAX_HEADER_BYTES + MAX_BODY_BYTES

CHUNK = 16 * 1024
"""Bytes of a response that are written at once. The server holds about two chunks for each client."""

INVALID = "Invalid HTTP request received."


class Connection(asyncio.Protocol):
    """One HTTP connection, used only by the thread of the server's event loop.

    ``complain`` is called for messages that clients can provoke at will.
    """

    def __init__(
        self, clients: Clients, app: App, complain: Callable[[str, BaseException | None], None]
    ) -> None:
        self._clients, self._app, self._complain = clients, app, complain
        self._http = h11.Connection(h11.SERVER, MAX_HEADER_BYTES)
        # Keeps the task alive: the event loop holds only a weak reference to it.
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.begin(self._clients.add(transport), transport)

    def begin(self, client: Client, transport: asyncio.BaseTransport) -> None:
        """Serve a client that is registered; ``transport`` is the secured one after a TLS handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._client, self._transport = client, transport
        client.is_secure = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=CHUNK)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.remove(self._client)
        self._client.writable.set()  # a response under way ends

    def pause_writing(self) -> None:
        self._client.writable.clear()

    def resume_writing(self) -> None:
        self._client.writable.set()

    def data_received(self, data: bytes) -> None:
        # With TLS, data may arrive after the server has closed its side.
        if self._transport.is_closing():
            return
        if not self._awaits_data():
            self._stop_reading()
            return
        self._http.receive_data(data[:MAX_REQUEST_BYTES])
        try:
            self._read()
        except h11.RemoteProtocolError:
            self._refuse()
            return
        unread = not self._awaits_data() and self._http.trailing_data[0]
        if unread or len(data) > MAX_REQUEST_BYTES:
            self._stop_reading()

    def _stop_reading(self) -> None:
        self._client.pipelines = True
        self._transport.pause_reading()

    def _awaits_data(self) -> bool:
        """Return whether the client may send: the next request, or the rest of one."""
        return self._http.their_state in (h11.IDLE, h11.SEND_BODY)

    def _read(self) -> None:
        """Begin to answer a request that has arrived, and ignore its body. Raises RemoteProtocolError."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._begin_answer(event)
            elif isinstance(event, h11.EndOfMessage) and self._http.our_state is h11.DONE:
                self._http.start_next_cycle()  # the request was answered before its body arrived
            elif not isinstance(event, h11.Data):
                return

    def _begin_answer(self, event: h11.Request) -> None:
        client = self._client
        # The time for an answer goes on while the client has not taken the previous one.
        if not client.has_asked or client.is_idle:
            client.since = self._clients.clock()
        client.has_asked = client.owed = True
        request = Request.from_event(event, client)
        self._task = asyncio.get_running_loop().create_task(self._answer(request))

    def _refuse(self) -> None:
        self._complain(INVALID, None)
        if self._http.our_state is not h11.IDLE:
            # The body of a valid request is malformed, and its response is under way or already sent.
            self._transport.abort()
            return
        refusal = line(INVALID, HTTPStatus.BAD_REQUEST, {"Connection": "close"})
        for event in _events(refusal, refusal.body):
            self._transport.write(self._http.send(event) or b"")
        self._transport.close()

    async def _answer(self, request: Request) -> None:
        response = await answered(self._app, request)
        try:
            with response.held(self._client):
                if response.stream is not None:
                    await self._send_stream(response, response.stream(self._client))
                else:
                    await self._send(response, b"" if request.method == "HEAD" else response.body)
        except h11.LocalProtocolError as error:  # a bug: a header that HTTP does not allow
            self._complain("cannot send a response", error)
            self._transport.close()
        self._client.owed = False
        if self._client.pipelines or self._clients.closing or self._http.our_state is h11.MUST_CLOSE:
            self._transport.close()
        elif self._http.our_state is self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    async def _send(self, response: Response, body: bytes) -> None:
        """Write a response as fast as the client takes it, until the client is gone."""
        for event in _events(response, body):
            await self._client.writable.wait()
            if self._transport.is_closing():
                return
            self._transport.write(self._http.send(event) or b"")

    async def _send_stream(self, response: Response, stream: AsyncGenerator[bytes, None]) -> None:
        """Write the pieces of a body as they come, until the client is gone. Its time begins at each anew."""
        async with aclosing(stream) as pieces:
            self._transport.write(self._http.send(_head(response, {})) or b"")
            async for data in pieces:
                await self._client.writable.wait()
                if self._transport.is_closing():
                    return
                self._client.since = self._clients.clock()
                if data:
                    self._transport.write(self._http.send(h11.Data(data=data)) or b"")
        self._transport.write(self._http.send(h11.EndOfMessage()) or b"")


def _events(response: Response, body: bytes) -> Iterator[h11.Event]:
    """Yield the head of a response, its body in pieces, and its end."""
    yield _head(response, {"Content-Length": str(len(response.body))})
    for start in range(0, len(body), CHUNK):
        yield h11.Data(data=body[start : start + CHUNK])
    yield h11.EndOfMessage()


def _head(response: Response, length: Mapping[str, str]) -> h11.Response:
    headers = {
        "Date": formatdate(usegmt=True),
        **length,
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    reason = HTTPStatus(response.status).phrase
    return h11.Response(status_code=response.status, reason=reason, headers=[*headers.items()])
