"""Messages to systemd (sd_notify(3)), and the sockets that systemd passes (sd_listen_fds(3))."""

import logging
import socket
import time
from collections.abc import MutableMapping
from typing import Self

log = logging.getLogger(__name__)

SEND_TIME = 2.0
"""Seconds that a message may wait for a manager that is busy or re-executes itself."""

EXTENSION = 60.0
"""Seconds that a start or a reload may still take after its latest message, even beyond its time limit."""

FIRST_DESCRIPTOR = 3
"""Number of the first socket that systemd passes: SD_LISTEN_FDS_START."""

_EXTENDED = f"EXTEND_TIMEOUT_USEC={EXTENSION * 1e6:.0f}"

MAX_STATUS = 200
"""Characters of a status; systemd itself accepts 4 KiB for a whole message."""


class Systemd:
    """The socket of the service manager that started this process; without a manager, methods do nothing.

    Any thread may send messages: each is one datagram. Failures are not raised, since an agent whose
    manager does not listen works all the same. ``close`` may be called twice.

    ``watchdog`` is the time in seconds after which the manager takes silence for a hang; None if never.
    """

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self.watchdog = watchdog
        self._address = ""
        self._socket: socket.socket | None = None
        if address is None:
            return
        if not address.startswith(("/", "@")) or len(address) < 2:
            log.warning("NOTIFY_SOCKET is neither a path nor an abstract socket: systemd is told nothing")
            return
        self._address = "\0" + address[1:] if address[0] == "@" else address
        try:
            # Kept open, so that WATCHDOG=1 can be sent while the process has no free descriptor.
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(SEND_TIME)
        except OSError as error:
            log.warning("systemd cannot be told anything: %s", error)

    @classmethod
    def of(cls, environment: MutableMapping[str, str], pid: int) -> Self:
        """Take the variables for the process ``pid`` out of ``environment``: they are not for children."""
        address = environment.pop("NOTIFY_SOCKET", None)
        time_limit = environment.pop("WATCHDOG_USEC", None)
        meant = environment.pop("WATCHDOG_PID", str(pid))
        watchdog = None
        if time_limit is not None and meant == str(pid):
            if time_limit.isascii() and time_limit.isdecimal() and int(time_limit):
                watchdog = int(time_limit) / 1e6
            else:
                log.warning("WATCHDOG_USEC is not a number of microseconds: there is no watchdog")
        return cls(address or None, watchdog)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def listens(self) -> bool:
        """Whether there is a service manager."""
        return self._socket is not None

    def starting(self, status: str) -> None:
        """Report progress of the start, which may take EXTENSION more seconds despite TimeoutStartSec."""
        self._send(_status(status), _EXTENDED)

    def ready(self, status: str) -> None:
        """Report that the start, or the reload, is complete."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """Report that a reload begins; ``ready`` ends it, even if the old configuration stays.

        If the unit has Type=notify-reload, systemd accepts only a message with the time on CLOCK_MONOTONIC as
        the answer to its signal; other types ignore the time.
        """
        now = f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"
        self._send("RELOADING=1", now, _status("reading the configuration again"), _EXTENDED)

    def stopping(self, status: str) -> None:
        """Report that the shutdown begins; the watchdog no longer applies."""
        self._send("STOPPING=1", _status(status))

    def status(self, text: str) -> None:
        """Set the text that ``systemctl status`` shows."""
        self._send(_status(text))

    def alive(self) -> None:
        """Restart the watchdog's timer."""
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


def passed_descriptors(environment: MutableMapping[str, str], pid: int) -> range:
    """Return the descriptors of the sockets that the manager passed to the process ``pid``.

    Removes their variables from ``environment``, because they are not for children.
    """
    number, meant = environment.pop("LISTEN_FDS", ""), environment.pop("LISTEN_PID", "")
    environment.pop("LISTEN_FDNAMES", None)
    passed = int(number) if number.isascii() and number.isdecimal() and meant == str(pid) else 0
    return range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + passed)


def _status(text: str) -> str:
    """Format one line of printable characters: a newline would begin another assignment."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:MAX_STATUS])
    return f"STATUS={shown}…" if len(text) > MAX_STATUS else f"STATUS={shown}"
