"""The HTTP server: uvicorn in a thread of ours, with the patience that it lacks for bad clients."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kprobe_exporter.export.listen import BACKLOG, bound_address

log = logging.getLogger("kprobe_exporter.web")

# Far above the scrapers of one agent, far below the files that a process may open.
MAX_CONNECTIONS = 128
MAX_HEADER_BYTES = 16 * 1024

# Seconds: to send a whole request, from the request to the last byte of the answer taken, and
# between two requests. The last is longer than a scrape interval of a minute.
REQUEST_TIME = 10
ANSWER_TIME = 30
IDLE_TIME = 75

# Seconds that close() leaves to the scrapes under way, and that it waits for the thread after that.
GRACE = 2
STOP_TIME = 2


class WebServer:
    """Serves an ASGI application over sockets that listen already, until close().

    The thread owns the event loop, the sockets and all connections; the callers own nothing of it
    but a flag, so there is no lock. ``on_error`` is called once, in the thread, if it ends in any
    other way than by close(). close() may come from any other thread, at any time, more than once,
    before start() too; scrapes under way get GRACE seconds, then all connections are dropped.
    """

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._sockets = list(sockets)
        self._on_error = on_error
        self.addresses = tuple(map(bound_address, sockets))
        complain = _Complaints()
        _adopt_uvicorn_log(complain)
        self._complain = complain
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=_Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                workers=1,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_keep_alive=IDLE_TIME,
                timeout_graceful_shutdown=GRACE,
                callback_notify=self._drop_overdue,
                timeout_notify=1,
            )
        )
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Clients that connected since the sockets were opened are answered from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop and free the port, within GRACE + STOP_TIME seconds."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(GRACE + STOP_TIME)
            if self._thread.is_alive():
                log.warning("the HTTP server does not stop; going on without it")
        for sock in self._sockets:
            sock.close()

    def _run(self) -> None:
        try:
            # Not uvicorn's run(): it would take uvloop where that happens to be installed.
            asyncio.run(self._serve())
        except BaseException as error:  # uvicorn leaves by SystemExit, too
            self._on_error(error)
        else:
            if not self._server.should_exit:
                self._on_error(RuntimeError("the HTTP server ended on its own"))

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._loop_error)
        await self._server.serve(self._sockets)
        # uvicorn goes without waiting for what it cancelled, or for who does not take his answer.
        state = self._server.server_state
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=STOP_TIME / 4)
        for connection in state.connections:
            connection.transport.abort()
        await asyncio.sleep(0)

    async def _drop_overdue(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in self._server.server_state.connections:
            if isinstance(connection, _Connection) and connection.overdue(now):
                connection.transport.abort()

    def _loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._complain(context["message"], context.get("exception"))


class _Connection(H11Protocol):
    """uvicorn's connection, with an end to every wait for the client and a bound to their number.

    Lives in the server's event loop alone. Uvicorn by itself waits forever for the rest of a
    request and for a client to take its answer.
    """

    _since = 0.0
    """When the connection, or its latest request, began."""
    _asked = False
    """Whether it ever sent a request; ``cycle`` is None until then."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._since = self.loop.time()
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self._asked = True
            self._since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        # Bad bytes in the body of a good request, whose answer is under way or already sent: uvicorn
        # would send a second one and end in a traceback.
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def overdue(self, now: float) -> bool:
        """Whether the client has had its time."""
        if not self._asked:
            limit = REQUEST_TIME
        elif self._waits_for_client() and not self.transport.get_write_buffer_size():
            limit = IDLE_TIME
        else:
            limit = ANSWER_TIME
        return now - self._since > limit

    def _waits_for_client(self) -> bool:
        return not self._asked or self.cycle.response_complete

    def _make_room(self) -> None:
        """Drop who has waited longest, first of those that never asked anything.

        To refuse the newcomer instead would let idle clients lock every scraper out.
        """
        waiting = [
            other
            for other in self.connections
            if isinstance(other, _Connection)
            and other is not self
            and other._waits_for_client()
            and not other.transport.is_closing()
        ]
        victim = min(waiting, key=lambda c: (c._asked, c._since), default=self)
        victim.transport.abort()


class _Complaints:
    """Our log for what clients can provoke at will: each message once a minute at most.

    Owned by the server's thread, which alone calls it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet_until: dict[str, float] = {}

    def __call__(self, message: str, error: BaseException | None = None) -> None:
        now = self._clock()
        if now < self._quiet_until.get(message, now):
            return
        self._quiet_until[message] = now + 60
        text = f"{message}: {error!r}" if error else message
        log.warning("%s", text, exc_info=error if log.isEnabledFor(logging.DEBUG) else None)


class _UvicornLog(logging.Handler):
    """Hands uvicorn's warnings to our log, a line each."""

    def __init__(self, complain: _Complaints) -> None:
        super().__init__(logging.WARNING)
        self._complain = complain

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().strip()
        # Its advice to install a library for WebSockets is not for our users.
        if "WebSocket" not in message:
            self._complain(message, record.exc_info[1] if record.exc_info else None)


def _adopt_uvicorn_log(complain: _Complaints) -> None:
    logger = logging.getLogger("uvicorn")
    logger.handlers = [_UvicornLog(complain)]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
