"""The socket of a service manager, and what a service tells it."""

import socket

from kprobe_exporter.service.sdnotify import EXTENSION

EXTENDED = f"EXTEND_TIMEOUT_USEC={int(EXTENSION * 1e6)}"


class Manager:
    """systemd's end of the socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(5)

    def heard(self) -> list[str]:
        """Return the assignments of the next message."""
        return self.socket.recv(65536).decode().split("\n")

    def heard_nothing(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(1)
        except BlockingIOError:
            return True
        return False
