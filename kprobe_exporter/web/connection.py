"""uvicorn's HTTP connection, with the bounds of ``Clients`` on the number of connections and their time.

uvicorn has no option for these bounds, and neither has h11. This module alone overrides uvicorn's protocol,
whose methods are not documented, so pyproject.toml names one version of uvicorn.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kprobe_exporter.web.clients import Client, Clients
from kprobe_exporter.web.limits import MAX_BODY_BYTES, MAX_HEADER_BYTES
from kprobe_exporter.web.rendering import CHUNK, CLIENT

MAX_REQUEST_BYTES = MAX_HEADER_BYTES + MAX_BODY_BYTES


class Connection(H11Protocol):
    """One HTTP connection, used only by the thread of the server's event loop.

    By itself, uvicorn waits forever for the rest of a request and for a client to take its response, and
    queues requests that are sent before the previous one was answered (pipelining). Here such requests are
    not read, and the connection closes after the answer, as RFC 9112, section 9.3.2 lets a server do.
    ``peer`` is set before connection_made() if a TLS handshake came first.
    """

    def __init__(self, clients: Clients, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._clients = clients
        self.peer: Client | None = None
        self.pipelines = False
        """Whether the client has sent a request before its previous one was answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.transport.set_write_buffer_limits(high=CHUNK)
        if self.peer is None:
            self.peer = self._clients.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None:
            self._clients.remove(self.peer)
        super().connection_lost(exc)
        self._let_go()

    def _let_go(self) -> None:
        """Undo what would hold the lost connection: uvicorn's idle timer, and circular references.

        uvicorn leaves the timer on if the client reset the connection. With TLS a connection has 100 KB.
        """
        self._unset_keepalive_if_required()
        if self.peer is not None:
            self.peer.talk = None
        if self.cycle is not None:
            self.cycle.on_response = _nothing

    def data_received(self, data: bytes) -> None:
        # With TLS, data may arrive after the server has closed its side, and uvicorn would answer it.
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.DONE:
            self._pipelined()
            return
        super().data_received(data[:MAX_REQUEST_BYTES])
        if len(data) > MAX_REQUEST_BYTES:
            self._pipelined()

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is cycle or self.peer is None:
            return
        self.scope["state"][CLIENT] = self.peer
        # The time for an answer goes on while the client has not taken the previous one.
        if self.peer.talk is None or not self.peer.transport.get_write_buffer_size():
            self.peer.since = self._clients.clock()
        self.peer.talk = self
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            self._pipelined()

    def _pipelined(self) -> None:
        self.pipelines = True
        self.flow.pause_reading()

    def on_response_complete(self) -> None:
        if self.pipelines:
            self.server_state.total_requests += 1
            self.transport.close()
        else:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        # The body of a valid request is malformed, and its response is under way or already sent. uvicorn
        # would send a second response and fail with a traceback.
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def is_answering(self) -> bool:
        """Whether the server owes a response, and does not wait for the client to read what it has sent."""
        return not (self.cycle.response_complete or self.flow.write_paused)


def _nothing() -> None:
    """Take the place of a callback that is no longer wanted."""
