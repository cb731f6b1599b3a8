"""Clients that leave a server no rest: each connects again as soon as it is dropped."""

import selectors
import socket
import struct
import threading
from contextlib import suppress

from tests.support.web_target import reset

REQUEST = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"


class Churn(threading.Thread):
    """Clients, one of each address, that send a request and connect again once they are dropped."""

    def __init__(self, port: int, addresses: list[str]) -> None:
        super().__init__()
        self._port, self._addresses = port, addresses
        self.connections = 0
        self._over = threading.Event()

    def run(self) -> None:
        with selectors.DefaultSelector() as ready:
            for address in self._addresses:
                self._connect(ready, address)
            while not self._over.is_set():
                for key, mask in ready.select(0.05):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    if mask & selectors.EVENT_WRITE:
                        with suppress(OSError):
                            sock.send(REQUEST)
                        ready.modify(sock, selectors.EVENT_READ, key.data)
                    elif not self._is_open(sock):
                        ready.unregister(sock)
                        sock.close()
                        self._connect(ready, key.data)
            for key in [*ready.get_map().values()]:
                reset(key.fileobj)  # type: ignore[arg-type]

    def _connect(self, ready: selectors.BaseSelector, address: str) -> None:
        wide = ":" in address
        sock = socket.socket(socket.AF_INET6 if wide else socket.AF_INET)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # keeps no port
        sock.bind((address, 0))
        sock.connect_ex(("::1" if wide else "127.0.0.1", self._port))
        ready.register(sock, selectors.EVENT_WRITE, address)
        self.connections += 1

    @staticmethod
    def _is_open(sock: socket.socket) -> bool:
        try:
            return bool(sock.recv(65536))
        except OSError:
            return False

    def __enter__(self) -> "Churn":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
