"""uvicorn's HTTP connection, as one of a bounded number of clients with a bounded patience for each."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kprobe_exporter.web.clients import Client, Clients


class Connection(H11Protocol):
    """Lives in the server's event loop alone.

    Uvicorn by itself waits forever for the rest of a request and for a client to take its answer.
    ``peer`` is set beforehand where a TLS handshake came before.
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
        # With TLS, there may be more after our end of the talk, and uvicorn would answer it.
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle and self.peer is not None:
            self.peer.talk = self
            self.peer.since = self._clients.clock()

    def send_400_response(self, msg: str) -> None:
        # Bad bytes in the body of a good request, whose answer is under way or already sent: uvicorn
        # would send a second one and end in a traceback.
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def is_answering(self) -> bool:
        """Whether the client waits for us, and not we for the client to ask or to take its answer."""
        return not (self.cycle.response_complete or self.flow.write_paused)
