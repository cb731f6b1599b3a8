"""One deadline for a whole HTTP request: the name's resolution, the handshake, each byte of the answer.

The time-out of requests applies to each operation of a socket. So a collector that sends a byte now and then
would hold a request for ever.
"""

import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from requests import PreparedRequest
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool

from kprobe_exporter.export.otlp.retry import TIMED_OUT, RequestOutcome, root_of

GRACE = 0.2
"""Seconds in which a request ends after its connections were shut down."""


class Connections(HTTPAdapter):
    """The connections of one session, as requests makes them. Any thread may shut them down."""

    def __init__(self) -> None:
        super().__init__()
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()

    def get_connection_with_tls_context(
        self, request: PreparedRequest, *args: Any, **options: Any
    ) -> HTTPConnectionPool:
        pool = super().get_connection_with_tls_context(request, *args, **options)
        connect = type(pool).ConnectionCls

        def remembered(*args: Any, **options: Any) -> Any:
            connection = connect(*args, **options)
            self._made.add(connection)
            return connection

        pool.ConnectionCls = remembered  # type: ignore[assignment]  # the pool only calls it
        return pool

    def shut_down(self) -> None:
        """End what other threads read from these connections, or write to them."""
        for connection in list(self._made):
            if (opened := connection.sock) is not None:
                with suppress(OSError):  # it is closed
                    # SSLSocket.shutdown() would first drop the TLS state that the other thread uses.
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)


class Deadline:
    """Runs one request at a time, in a thread of its own, which is given up when the time is over.

    The thread stays for later requests: the agent looks for its threads ten times a second. It must not take
    the activity of a short-lived one for that of another program. ``is_over`` is True from the end of the
    time until the next request. Only one thread may call ``run``; any may call ``close``.
    """

    def __init__(self, shut_down: Callable[[], None]) -> None:
        self.is_over = False
        self._shut_down = shut_down
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kprobe-otlp-request", daemon=True)
        self._last: _Request | None = None

    def run(self, request: Callable[[], RequestOutcome], seconds: float) -> RequestOutcome:
        """Return the outcome of the request, TIMED_OUT if it has none within this time.

        While a request that was given up has not ended, as one that resolves a name, no other begins.
        """
        if self._last is None:
            self._thread.start()
        elif not self._last.ended.wait(seconds):
            return TIMED_OUT
        self.is_over = False
        self._last = mine = _Request(request)
        self._requests.put(mine)
        if not mine.ended.wait(seconds):
            self.is_over = True
            self._shut_down()
            mine.ended.wait(GRACE)
        return mine.outcome

    def close(self) -> None:
        """End the thread, once its request has ended."""
        self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            request.run()


class _Request:
    """A request, and its outcome once it has ``ended``."""

    def __init__(self, send: Callable[[], RequestOutcome]) -> None:
        self._send = send
        self.ended = threading.Event()
        self.outcome = TIMED_OUT

    def run(self) -> None:
        try:
            self.outcome = self._send()
        except Exception as error:  # any error of a library means that it was not accepted
            self.outcome = RequestOutcome(False, root_of(error))
        finally:
            self.ended.set()
