"""The client's side of sessions: asks an agent at its socket, and yields what its tools write."""

import errno
import json
import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from kprobe_exporter.errors import SessionRefused
from kprobe_exporter.sessions.protocol import SessionRequest
from kprobe_exporter.util.unix_socket import peer_of

PIECE = 65536

Message: TypeAlias = dict[str, Any]
"""A line of the protocol."""


class SessionClient:
    """A connection to an agent, on which the request has been sent. Use it as a context."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = b""

    @classmethod
    def at(cls, path: Path, request: SessionRequest) -> "SessionClient":
        """Ask the agent that listens at a path.

        Raises SessionRefused if no agent of root, or of this user, listens there.
        """
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(path))
            with suppress(BrokenPipeError, ConnectionResetError):  # the agent may have refused already
                sock.sendall(request.encoded())
            owner = peer_of(sock).uid
        except OSError as error:
            sock.close()
            raise SessionRefused(_why(path, error)) from None
        if owner not in (0, os.geteuid()):
            sock.close()
            raise SessionRefused(f"{path} belongs to a process of user {owner}, which is not the agent.")
        return cls(sock)

    @property
    def descriptor(self) -> int:
        """The descriptor of the connection, for poll."""
        return self._socket.fileno()

    def __enter__(self) -> "SessionClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def end(self) -> None:
        """Ask for the end of the session, and for the rest of its output."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the agent has closed it
            return

    def has_some(self, seconds: float) -> bool:
        """Wait for a part of the answer, or for its end; return False if there is none within the time."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def messages(self) -> Iterator[Message] | None:
        """Wait for a piece of the answer, and return the messages in it; None once the agent has closed.

        Raises SessionRefused if the agent refuses the request.
        """
        try:
            data = self._receive()
        except OSError:
            data = None
        if data is None:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return map(_parsed, lines)

    def _receive(self) -> bytes | None:
        """Wait for a piece of the answer, and return it; None at its end. Raises OSError."""
        return self._socket.recv(PIECE) or None


def _parsed(line: bytes) -> Message:
    found = json.loads(line)
    assert isinstance(found, dict)
    if (why := found.get("refused")) is not None:
        raise SessionRefused(f"the agent refuses the session: {why}")
    return found


def _why(path: Path, error: OSError) -> str:
    if error.errno == errno.EACCES:
        return f"only root may ask an agent for a session, and open {path}: use sudo."
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return (
            f"no agent serves sessions at {path}: start it with --session.socket {path}, or name its socket"
            " by --socket."
        )
    if error.errno is None:
        return f"{path} cannot be a socket: a path has at most 107 bytes."
    return f"{path} cannot be connected to: {error.strerror}."
