"""Unix sockets with a path: their files, which no other process' file makes way for, and their peers."""

import errno
import os
import socket
import stat
import struct
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple


class Peer(NamedTuple):
    """The process at the other end, as the kernel noted it when the process connected or listened."""

    pid: int
    uid: int
    gid: int


class _UnixSocket(socket.socket):
    """A Unix socket whose file ends with it, unless another file has its path by then."""

    file: os.stat_result | None = None

    def close(self) -> None:
        if self.file is not None:
            path, file, self.file = Path(self.getsockname()), self.file, None
            with suppress(OSError):
                if os.path.samestat(path.lstat(), file):
                    path.unlink()
        super().close()


def listen_at(path: Path, mode: int, backlog: int) -> socket.socket:
    """Listen on a path, whose file has this mode from its first moment. Raises OSError.

    A socket on which no process listens any more is replaced, and nothing else. The mode is made by the
    umask, which all threads share: call this before others make files.
    """
    with ExitStack() as opened:
        sock = opened.enter_context(_UnixSocket(socket.AF_UNIX))
        if _is_left_over(path):
            path.unlink()
        mask = os.umask(0o777 & ~mode)
        try:
            sock.bind(str(path))
        finally:
            os.umask(mask)
        sock.file = path.lstat()
        sock.listen(backlog)
        opened.pop_all()
    return sock


def meaning(error: OSError, path: Path) -> str:
    """Return why ``listen_at`` failed, as a clause."""
    if error.errno is None:
        return "a path has at most 107 bytes"
    if error.errno == errno.ENOENT:
        return f"the directory {path.parent} does not exist; make it before the start"
    if error.errno == errno.EADDRINUSE:
        return "a process listens there already, or the file is not a socket"
    return error.strerror or str(error)


def peer_of(sock: socket.socket) -> Peer:
    """Return the process at the other end of a connection (SO_PEERCRED of unix(7)). Raises OSError."""
    form = struct.Struct("iII")
    return Peer(*form.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)))


def _is_left_over(path: Path) -> bool:
    """Return whether a path is that of a socket on which no process listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        refused = client.connect_ex(str(path)) == errno.ECONNREFUSED
    return refused and stat.S_ISSOCK(path.lstat().st_mode)  # other files refuse connections too
