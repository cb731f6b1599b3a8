"""Listening sockets, bound before anything starts so that a bad address is one clear error message."""

import errno
import os
import re
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from kprobe_exporter.errors import StartError, UsageError
from kprobe_exporter.util.unix_socket import listen_at, meaning

_ADDRESS = re.compile(
    r"(?:\[(?P<ipv6>[^]\s]+)]|(?P<host>[^]\[:\s]*)):(?P<port>[0-9]{1,5})"
    r"|unix:/+(?P<path>[^/\0][^\0]*)|fd://(?P<descriptor>[0-9]{1,9})"
)

# The length of the kernel's queue of connections that are not accepted yet.
BACKLOG = 256


def listen(addresses: Iterable[str]) -> list[socket.socket]:
    """Return a listening socket for each address. Raises StartError, and then leaves none open.

    An address is ``[HOST]:PORT``, ``unix:/PATH``, or ``fd://NUMBER`` for a listening socket that this process
    has inherited. A socket without a host, or with ``[::]``, takes IPv4 and IPv6 alike, as in Go's exporters.
    The sockets already listen: two sockets that are only bound can share one port without an error.
    """
    with ExitStack() as opened:
        sockets = [opened.enter_context(_listen(address)) for address in addresses]
        for sock in sockets:
            if sock.family != socket.AF_UNIX:
                # Accepted sockets inherit it. Without it each piece of an answer waits for the client's
                # delayed acknowledgement of the one before, 40 ms.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.pop_all()
    return sockets


def bound_address(sock: socket.socket) -> str:
    """Return where a socket listens, in the form that listen() takes; port 0 has become a real one."""
    bound = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        # The name of an abstract socket begins with NUL, for which systemd writes @.
        return "unix:" + (bound if isinstance(bound, str) else os.fsdecode(bound).replace("\0", "@", 1))
    host, port = bound[:2]
    return f"[{host}]:{port}" if sock.family == socket.AF_INET6 else f"{host}:{port}"


def link(address: str) -> tuple[str, str]:
    """Return the host part of a URL for clients on this machine, and a remark on the address.

    ``address`` is one that ``bound_address`` returned.
    """
    host, _, port = address.rpartition(":")
    if host == "unix":
        return "localhost", f", on {address}"
    if host in ("[::]", "0.0.0.0"):
        return f"localhost:{port}", ", on all addresses"
    return address, ""


def _listen(address: str) -> socket.socket:
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise UsageError(
            f"cannot listen on {address!r}: expected HOST:PORT, [IPV6]:PORT or :PORT, such as :10435, or"
            " unix:/PATH or fd://NUMBER"
        )
    if match["descriptor"]:
        return _inherited(address, int(match["descriptor"]))
    if match["path"]:
        return _listen_unix(Path("/", match["path"]))
    if (port := int(match["port"])) > 65535:
        raise UsageError(f"cannot listen on {address!r}: a port is at most 65535, such as :10435")
    try:
        if match["ipv6"]:
            return _listen_ipv6(match["ipv6"], port)
        if match["host"]:
            return _listen_host(match["host"], port)
        return _listen_everywhere(port)
    except (socket.gaierror, UnicodeError) as error:
        what = "is not an IPv6 address" if match["ipv6"] else "is not known as a host name"
        raise StartError(f"cannot listen on {address}: {match['ipv6'] or match['host']!r} {what}") from error
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {_meaning(error, port)}") from error


def _listen_everywhere(port: int) -> socket.socket:
    try:
        return _listen_ipv6("::", port)
    except OSError as error:
        # There is no IPv6: it is disabled at boot, or no address is assigned (often in a container).
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)


def _listen_ipv6(host: str, port: int) -> socket.socket:
    # A numeric address is resolved as well, for the scope of a link-local one (fe80::1%eth0).
    found = socket.getaddrinfo(host, port, socket.AF_INET6, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    address = found[0][4]
    with ExitStack() as opened:
        sock = opened.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        sock.bind(address)
        sock.listen(BACKLOG)
        opened.pop_all()
    return sock


def _listen_host(host: str, port: int) -> socket.socket:
    """Listen on the first address of the name, IPv4 before IPv6, as Go does."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return socket.create_server(address, family=family, backlog=BACKLOG)


def _listen_unix(path: Path) -> socket.socket:
    """Listen on a path. Its owner and its group may connect, in place of a process that has ended."""
    try:
        return listen_at(path, 0o660, BACKLOG)
    except OSError as error:
        raise StartError(f"cannot listen on unix:{path}: {meaning(error, path)}") from error


def _inherited(address: str, number: int) -> socket.socket:
    """Return a socket of its own for what an inherited descriptor listens on."""
    with ExitStack() as opened:
        try:
            sock = opened.enter_context(socket.socket(fileno=os.dup(number)))
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise StartError(f"cannot listen on {address}: {error.strerror}") from error
        families = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
        if not listens or sock.type != socket.SOCK_STREAM or sock.family not in families:
            raise StartError(f"cannot listen on {address}: this is not a listening TCP or Unix socket")
        opened.pop_all()
    return sock


def _meaning(error: OSError, port: int) -> str:
    meanings = {
        errno.EADDRINUSE: f"the port is in use (`ss -ltnp sport = :{port}` shows by whom); stop that process,"
        " or choose another --web.listen-address",
        errno.EACCES: f"port {port} needs root or CAP_NET_BIND_SERVICE; choose one from 1024 up,"
        " such as :10435",
        errno.EADDRNOTAVAIL: "this machine has no such address; `ip address` lists those it has",
        errno.EAFNOSUPPORT: "this kernel runs without IPv6; give an IPv4 address",
    }
    return meanings.get(error.errno or 0) or error.strerror or str(error)
