"""uvicorn's HTTP connection, with the bounds of ``Clients`` on the number of connections and their time.

uvicorn has no option for these bounds, and neither has h11. This module alone overrides uvicorn's protocol,
whose methods are not documented, so pyproject.toml names one version of uvicorn.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kprobe_exporter.web.clients import Client, Clients


class Connection(H11Protocol):
    """One HTTP connection, used only by the thread of the server's event loop.

    By itself, uvicorn waits forever for the rest of a request and for a client to take its response.
    ``peer`` is set before connection_made() if a TLS handshake came first.
    """

    def __init__(self, clients: Clients, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._clients = clients
        self.peer: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if self.peer is None:
            self.peer = self._clients.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None:
            self._clients.remove(self.peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # With TLS, data may arrive after the server has closed its side, and uvicorn would answer it.
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle and self.peer is not None:
            self.peer.talk = self
            self.peer.since = self._clients.clock()

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
