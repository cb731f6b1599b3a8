"""The HTTP server: an event loop in a thread of its own, its sockets, and its end."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from kprobe_exporter.web.clients import Clients
from kprobe_exporter.web.connection import Connection
from kprobe_exporter.web.handshake import Door, Tls
from kprobe_exporter.web.listen import BACKLOG, bound_address
from kprobe_exporter.web.messages import App

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
    """Serves an application over sockets that listen already, until close().

    The thread owns the event loop, the sockets and all connections. Callers share only a flag with it, so
    there is no lock. ``on_error`` is called once, in the thread, if the server ends other than by close().
    close() may be called by any other thread, at any time, more than once, and before start(). Scrapes
    under way get GRACE seconds, then all connections are dropped. ``tls`` is called for each connection and
    returns its TLS settings, or None for plain HTTP.
    """

    def __init__(
        self,
        app: App,
        sockets: Sequence[socket.socket],
        on_error: Callable[[BaseException], None],
        tls: Callable[[], Tls | None] = lambda: None,
    ) -> None:
        self._app, self._sockets, self._on_error, self._tls = app, list(sockets), on_error, tls
        self._clients = Clients()
        self.addresses = tuple(map(bound_address, sockets))
        self._complain = _Complaints()
        asyncios = logging.getLogger("asyncio")
        asyncios.handlers = [self._complain]
        asyncios.filters = [lambda record: record.getMessage() not in LEFT]
        self._closing = False
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Start serving. Clients that connected since the sockets were opened are served as well."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the ports, within GRACE + STOP_TIME seconds."""
        self._closing = True
        with suppress(RuntimeError):  # the event loop has ended
            self._wake()
        if self._thread.ident is not None:
            self._thread.join(GRACE + STOP_TIME)
            if self._thread.is_alive():
                log.warning("the HTTP server does not stop; going on without it")
        for sock in self._sockets:
            sock.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._on_error(error)

    async def _serve(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(
            lambda _, context: self._complain(context["message"], context.get("exception"))
        )
        self._wake = partial(loop.call_soon_threadsafe, woken.set)
        listening = []
        for sock in self._sockets:
            listening.append(await loop.create_server(self._protocol, sock=sock, backlog=ACCEPTED_AT_ONCE))
            sock.listen(BACKLOG)  # asyncio has made the kernel's queue as short as its own
        while not self._closing:
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), 1)
            self._clients.drop_overdue()
        for server in listening:
            server.close()
        await self._end()

    def _protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        connection = Connection(self._clients, self._app, self._complain)
        tls = self._tls()
        return Door(tls, self._clients, connection, self._complain) if tls else connection

    async def _end(self) -> None:
        """Drop all connections, those that are owed a response after GRACE seconds at most."""
        self._clients.closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                while len(self._clients) or _other_tasks():
                    self._clients.drop(lambda client: client.is_idle or not client.has_asked)
                    await asyncio.sleep(0.05)
        if late := _other_tasks():
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=STOP_TIME / 4)
        self._clients.drop()
        await asyncio.sleep(0)


def _other_tasks() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


class _Complaints(logging.Handler):
    """Logs messages that clients can provoke at will, each at most once a minute, as one line.

    As a handler it does so with the warnings of asyncio. Only the server's thread calls it.
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
        self(record.getMessage().strip(), record.exc_info[1] if record.exc_info else None)
