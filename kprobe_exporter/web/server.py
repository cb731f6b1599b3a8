"""The HTTP server: uvicorn in a thread of its own, with the time limits for clients that uvicorn lacks."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from kprobe_exporter.web.connection import IDLE_TIME, MAX_HEADER_BYTES, Clients, Connection
from kprobe_exporter.web.handshake import Door, Tls
from kprobe_exporter.web.listen import BACKLOG, bound_address

log = logging.getLogger("kprobe_exporter.web")

# Seconds that close() gives to scrapes under way, and that it then waits for the thread.
GRACE = 2
STOP_TIME = 2

# asyncio logs these repeatedly when a client sends many requests and leaves before all are answered.
LEFT = ("SSL connection is closed", "socket.send() raised exception.")

# How many connections asyncio accepts before it reads from those that it has. With many more, a client would
# be dropped for later ones before its request is read, though the request has arrived.
ACCEPTED_AT_ONCE = 16

# How many messages are held back at a time: a message of asyncio may contain an address that varies.
MAX_QUIET = 64


class WebServer:
    """Serves an ASGI application over sockets that listen already, until close().

    The thread owns the event loop, the sockets and all connections. Callers share only a flag with it, so
    there is no lock. ``on_error`` is called once, in the thread, if the server ends other than by close().
    close() may be called by any other thread, at any time, more than once, and before start(). Scrapes
    under way get GRACE seconds, then all connections are dropped. ``tls`` is called for each connection and
    returns its TLS settings, or None for plain HTTP.
    """

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        on_error: Callable[[BaseException], None],
        tls: Callable[[], Tls | None] = lambda: None,
    ) -> None:
        self._sockets = list(sockets)
        self._on_error = on_error
        self._tls = tls
        self._clients = Clients()
        self.addresses = tuple(map(bound_address, sockets))
        self._complain = _Complaints()
        uvicorns, asyncios = logging.getLogger("uvicorn"), logging.getLogger("asyncio")
        uvicorns.handlers = asyncios.handlers = [self._complain]
        asyncios.filters = [lambda record: record.getMessage() not in LEFT]
        uvicorns.setLevel(logging.WARNING)
        uvicorns.propagate = False
        self._server = _Server(
            uvicorn.Config(
                app,
                http=self._protocol,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                interface="asgi3",
                workers=1,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=ACCEPTED_AT_ONCE,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_keep_alive=IDLE_TIME,
                timeout_graceful_shutdown=GRACE,
                callback_notify=self._clients.drop_overdue,
                timeout_notify=1,
            ),
            self._clients,
        )
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Start serving. Clients that connected since the sockets were opened are served as well."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the ports, within GRACE + STOP_TIME seconds."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(GRACE + STOP_TIME)
            if self._thread.is_alive():
                log.warning("the HTTP server does not stop; going on without it")
        for sock in self._sockets:
            sock.close()

    def _run(self) -> None:
        try:
            # uvicorn's run() is not used: it would use uvloop wherever that is installed.
            asyncio.run(self._serve())
        except BaseException as error:  # uvicorn may also raise SystemExit
            self._on_error(error)
        else:
            if not self._server.should_exit:
                self._on_error(RuntimeError("the HTTP server ended on its own"))

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self._complain(context["message"], context.get("exception"))
        )
        await self._server.serve(self._sockets)
        # uvicorn does not wait for tasks that it cancelled, nor for clients that do not take their response.
        state = self._server.server_state
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=STOP_TIME / 4)
        self._clients.drop()
        await asyncio.sleep(0)

    def _protocol(self, **of_uvicorn: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection; uvicorn calls this once for each."""
        connection = Connection(self._clients, **of_uvicorn)
        tls = self._tls()
        return Door(tls, self._clients, connection, self._complain) if tls else connection


class _Server(uvicorn.Server):
    """uvicorn's server, with a long queue of connections, and a shutdown that waits for no silent client."""

    def __init__(self, config: uvicorn.Config, clients: Clients) -> None:
        super().__init__(config)
        self._clients = clients

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(BACKLOG)  # asyncio has made the kernel's queue as short as its own

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._clients.drop(lambda client: client.talk is None)
        await super().shutdown(sockets)


class _Complaints(logging.Handler):
    """Logs messages that clients can provoke at will, each at most once a minute, as one line.

    As a handler it does so with the warnings of uvicorn and asyncio. Only the server's thread calls it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._quiet_until: dict[str, float] = {}

    def __call__(self, message: str, error: BaseException | None = None) -> None:
        now = self._clock()
        if now < self._quiet_until.get(message, now):
            return
        if len(self._quiet_until) >= MAX_QUIET:
            self._quiet_until.clear()
        self._quiet_until[message] = now + 60
        text = f"{message}: {error!r}" if error else message
        log.warning("%s", text, exc_info=error if log.isEnabledFor(logging.DEBUG) else None)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().strip()
        # uvicorn's advice to install a library for WebSockets does not concern our users.
        if "WebSocket" not in message:
            self(message, record.exc_info[1] if record.exc_info else None)
