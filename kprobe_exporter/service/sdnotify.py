"""What systemd is told of the agent: it is ready, it reloads, it stops, it lives (sd_notify(3))."""

import logging
import socket
import time
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Self

log = logging.getLogger(__name__)

SEND_TIME = 2.0
"""Seconds that a message may wait for a manager that is busy or is being executed anew."""

EXTENSION = 60.0
"""Seconds that a start or a reload may take from its latest message on, if that is longer than the limit."""

MAX_STATUS = 200
"""Characters of a status; systemd itself would take 4 KiB with everything else."""


class Systemd:
    """The socket of the service manager that started this process, or nothing where there is none.

    Messages may come from any thread: each is one datagram. Nothing is raised, however it fails: an agent
    whose manager does not listen works all the same. ``close`` may be called twice.

    ``watchdog`` is the time in seconds after which the manager takes silence for a hang; None if never.
    """

    def __init__(
        self,
        address: str | None = None,
        watchdog: float | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.watchdog = watchdog
        self._clock = clock
        self._address = ""
        self._socket: socket.socket | None = None
        if address is None:
            return
        if not address.startswith(("/", "@")) or len(address) < 2:
            log.warning("NOTIFY_SOCKET is neither a path nor an abstract socket: systemd is told nothing")
            return
        self._address = "\0" + address[1:] if address[0] == "@" else address
        try:
            # Kept open: to tell that it lives, a process without a free descriptor needs none.
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(SEND_TIME)
        except OSError as error:
            log.warning("systemd cannot be told anything: %s", error)

    @classmethod
    def of(cls, environment: MutableMapping[str, str], pid: int) -> Self:
        """As ``environment`` has it for the process ``pid``; the variables go, children are not meant."""
        address = environment.pop("NOTIFY_SOCKET", None)
        time_limit = environment.pop("WATCHDOG_USEC", None)
        meant = environment.pop("WATCHDOG_PID", str(pid))
        watchdog = None
        if time_limit is not None and meant == str(pid):
            if time_limit.isascii() and time_limit.isdecimal() and int(time_limit):
                watchdog = int(time_limit) / 1e6
            else:
                log.warning("WATCHDOG_USEC is no number of microseconds: there is no watchdog")
        return cls(address or None, watchdog)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def listens(self) -> bool:
        """Whether there is a manager at all."""
        return self._socket is not None

    def starting(self, status: str) -> None:
        """The start gets on, and may take EXTENSION seconds from now, whatever TimeoutStartSec says."""
        self._send(_status(status), _extension())

    def ready(self, status: str) -> None:
        """The start, or the reload, is over."""
        self._send("READY=1", _status(status))

    def reloading(self, status: str = "reading the configuration again") -> None:
        """A reload begins; ``ready`` ends it, be it that the old configuration stays.

        Type=notify-reload takes only a message with the time, on CLOCK_MONOTONIC, for the answer to its
        signal; others ignore the time.
        """
        self._send("RELOADING=1", f"MONOTONIC_USEC={self._clock() // 1000}", _status(status), _extension())

    def stopping(self, status: str) -> None:
        """The orderly end begins; the watchdog no longer counts."""
        self._send("STOPPING=1", _status(status))

    def status(self, text: str) -> None:
        """What ``systemctl status`` shows."""
        self._send(_status(text))

    def alive(self) -> None:
        """Put off the watchdog."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _send(self, *lines: str) -> None:
        sock = self._socket
        if sock is None:
            return
        try:
            sock.sendto("\n".join(lines).encode(), self._address)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            log.debug("systemd does not listen: %s", error)


def _status(text: str) -> str:
    """One line of what can be printed: a newline would begin another assignment."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:MAX_STATUS])
    return f"STATUS={shown}…" if len(text) > MAX_STATUS else f"STATUS={shown}"


def _extension() -> str:
    return f"EXTEND_TIMEOUT_USEC={EXTENSION * 1e6:.0f}"
