"""The agent's side of sessions: a socket that root owns, the web server's clients, and the thread of both."""

import logging
import os
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from kprobe_exporter.errors import StartError
from kprobe_exporter.model.snapshot import Family
from kprobe_exporter.sessions.protocol import Limits
from kprobe_exporter.sessions.relay import END_TIME_S, REASONS, Host, Session, Watches
from kprobe_exporter.util.file_access import who_may_change
from kprobe_exporter.util.unix_socket import listen_at, meaning, peer_of

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
"""Connections at once, those without a request among them."""

BACKLOG = 16

TURN_S, IDLE_TURN_S = 0.05, 1.0
"""Seconds between two looks at times and ended tools: with sessions, and without."""

REAP_TIME_S = 5.0
"""Seconds that the end waits for a tool that was killed."""

PAUSE_S = 1.0
"""Seconds for which no connection is accepted after the kernel refused one."""

ACTIVE = "kprobe_exporter_sessions_active"
TOTAL = "kprobe_exporter_sessions_total"
ACTIVE_HELP = "Sessions whose tools run now."
TOTAL_HELP = "Sessions that have ended, by their end, or that were refused."


class SessionServer:
    """Serves sessions at a path, if there is one, and for ``connect`` until ``close``.

    The socket listens once this is made, before other threads are. ``start`` begins a thread of its own,
    which owns all connections and processes. Any thread may call the rest.
    """

    def __init__(self, path: Path | None, limits: Limits, tracefs: Path | None) -> None:
        """Listen. Raises StartError."""
        self._socket = None if path is None else _listen(path)
        if self._socket is not None:
            self._socket.setblocking(False)
        self._connected: deque[tuple[socket.socket, str]] = deque()
        self._clean: Callable[[], None] = lambda: None
        self._watches = Watches()
        self._host = Host(limits, tracefs, self._watches)
        self._sessions: list[Session] = []
        self._closing = self._killing = False
        self._accepts_at = 0.0
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="kprobe-sessions", daemon=True)
        if path is not None:
            log.info("sessions are served at %s, to root", path)

    def start(self, clean: Callable[[], None]) -> None:
        """Serve. ``clean`` removes the instances of killed tools from the kernel."""
        self._clean = clean
        self._thread.start()

    def connect(self, request: bytes, who: str) -> socket.socket:
        """Return a connection of a client that the caller knows, on which a request has been sent.

        ``request`` is a line of the protocol, and ``who`` names the client in the log.
        """
        client, ours = socket.socketpair()
        client.setblocking(False)
        client.send(request + b"\n")  # a new pair has room for it
        self._connected.append((ours, who))
        os.write(self._wake, b"\0")
        return client

    def close(self, gives_up: Callable[[], bool] = lambda: False) -> None:
        """End all sessions, and wait for their tools, which are killed if the caller ``gives_up``."""
        if self._closing:
            return
        self._closing = True
        os.write(self._wake, b"\0")
        end = time.monotonic() + END_TIME_S + REAP_TIME_S
        while self._thread.is_alive() and time.monotonic() < end:
            self._thread.join(TURN_S)
            self._killing = self._killing or gives_up()
        if self._socket is not None:
            self._socket.close()
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._woken)

    def families(self) -> tuple[Family, ...]:
        """Return the metrics about sessions."""
        results = self._host.results
        active = sum(session.active for session in [*self._sessions])
        return (
            Family(ACTIVE, "gauge", ACTIVE_HELP, (), {(): active}),
            Family(TOTAL, "counter", TOTAL_HELP, ("result",), {(each,): results[each] for each in REASONS}),
        )

    def _run(self) -> None:
        self._watches.watch(self._woken, 1, self._drain)
        while not self._closing or self._sessions:
            try:
                self._turn()
            except Exception as error:  # the thread goes on after any error
                log.exception("sessions are ended, because serving them failed: %s", error)
                self._stop()
                time.sleep(TURN_S)
        self._watches.close()

    def _turn(self) -> None:
        """Serve what is ready, and notice what has ended."""
        now = time.monotonic()
        accepts = not self._closing and now >= self._accepts_at
        if self._socket is not None:
            self._watches.watch(
                self._socket.fileno(), 1 if accepts else 0, partial(self._accept, self._socket)
            )
        self._watches.wait(TURN_S if self._sessions else IDLE_TURN_S)
        if self._closing:
            self._stop()
        now = time.monotonic()
        for session in self._sessions:
            session.look(now)
        self._sessions = [session for session in self._sessions if not session.closed]
        if self._host.to_clean:
            self._host.to_clean = False
            self._clean()

    def _stop(self) -> None:
        for session in self._sessions:
            session.stop()
            if self._killing:
                session.kill()

    def _accept(self, listening: socket.socket) -> None:
        """Take a connection, of root or of the agent's own user."""
        try:
            sock, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left
            log.warning("no session can be accepted: %s", error.strerror)
            self._accepts_at = time.monotonic() + PAUSE_S
            return
        try:
            peer = peer_of(sock)
        except OSError:
            sock.close()
            return
        allowed = peer.uid in (0, os.geteuid())
        why = "" if allowed else f"user {peer.uid} may not ask for a session: only root may."
        self._add(sock, f"user {peer.uid}, process {peer.pid},", why)

    def _add(self, sock: socket.socket, who: str, why: str = "") -> None:
        """Begin a session; refuse it if there is a reason, or if there are too many."""
        session = Session(sock, who, self._host)
        self._sessions.append(session)
        if not why and len(self._sessions) > MAX_CONNECTIONS:
            why = f"{MAX_CONNECTIONS} clients are connected: try again later."
        if why:
            session.refuse(why)

    def _drain(self) -> None:
        """Take the connections of the web server."""
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while self._connected:
            self._add(*self._connected.popleft())


def _listen(path: Path) -> socket.socket:
    """Listen on a path in a directory that no other user may write. Raises StartError."""
    option = f"--session.socket {path}"
    try:
        with suppress(FileExistsError):
            path.parent.mkdir(0o700)
        directory = path.parent.resolve()
        if why := next(_unsafe(directory), None):
            raise StartError(f"{option}: {why}")
        return listen_at(directory / path.name, 0o600, BACKLOG)
    except OSError as error:
        raise StartError(f"{option}: {meaning(error, path)}.") from None


def _unsafe(directory: Path) -> Iterator[str]:
    """Yield sentences about other users who could put a socket of their own in the place of ours."""
    if why := who_may_change(directory, "directory"):
        yield f"{why}, or choose another one."
    for above in directory.parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            yield f"every user may replace directories in {above}: choose another one."
