"""Listening sockets, bound before anything starts so that a bad address is one clear error message."""

import errno
import re
import socket
from collections.abc import Iterable
from contextlib import ExitStack

from kprobe_exporter.errors import StartError, UsageError

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^]\s]+)]|(?P<host>[^]\[:\s]*)):(?P<port>[0-9]{1,5})")

# The length of the kernel's queue of connections that are not accepted yet.
BACKLOG = 256


def listen(addresses: Iterable[str]) -> list[socket.socket]:
    """Return a listening socket for each ``[HOST]:PORT``. Raises StartError, and then leaves none open.

    Without a host, or with ``[::]``, a socket takes IPv4 and IPv6 alike, as in Go's exporters. The sockets
    already listen: two sockets that are only bound can share one port without an error.
    """
    with ExitStack() as opened:
        sockets = [opened.enter_context(_listen(address)) for address in addresses]
        for sock in sockets:
            # Accepted sockets inherit it. Without it each piece of an answer waits for the client's delayed
            # acknowledgement of the one before, 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.pop_all()
    return sockets


def bound_address(sock: socket.socket) -> str:
    """Return where a socket listens, in the form that listen() takes; port 0 has become a real one."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if sock.family == socket.AF_INET6 else f"{host}:{port}"


def link(address: str) -> str:
    """Return an address as a browser on this machine takes it, for one that ``bound_address`` returned."""
    host, _, port = address.rpartition(":")
    return f"localhost:{port}" if host in ("[::]", "0.0.0.0") else address


def _listen(address: str) -> socket.socket:
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise UsageError(
            f"cannot listen on {address!r}: expected HOST:PORT, [IPV6]:PORT or :PORT, such as :10435"
        )
    if (port := int(match["port"])) > 65535:
        raise UsageError(f"cannot listen on {address!r}: a port is at most 65535, such as :10435")
    try:
        if match["ipv6"]:
            return _listen_ipv6(match["ipv6"], port)
        if match["host"]:
            return _listen_host(match["host"], port)
        return _listen_everywhere(port)
    except (socket.gaierror, UnicodeError) as error:
        what = "is no IPv6 address" if match["ipv6"] else "is not known as a host name"
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
