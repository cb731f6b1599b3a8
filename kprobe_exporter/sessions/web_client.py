"""The client's side of sessions over HTTP."""

import base64
import socket
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import h11

from kprobe_exporter.errors import SessionRefused, one_line
from kprobe_exporter.sessions.client import PIECE, SessionClient
from kprobe_exporter.sessions.protocol import SessionRequest

PATH = "/-/session"

CONNECT_TIME_S = 10.0
"""Seconds until the agent has accepted the connection."""

LONGEST_ERROR = 500
"""Bytes that are shown of another answer than a session."""

END = b"GET /-/healthy HTTP/1.1\r\nHost: -\r\n\r\n"
"""A further request, which ends the session and is not answered."""


class Login(NamedTuple):
    """The agent's address, and a user of its web configuration.

    ``ca`` is the file of the authorities to trust in.
    """

    url: str
    user: str
    password: str
    ca: Path | None = None


class WebSessionClient(SessionClient):
    """A session over HTTPS. A proxy on the way would keep Ctrl-C from the tools."""

    def __init__(self, login: Login, request: SessionRequest) -> None:
        """Connect, and ask. Raises SessionRefused, also for another answer than a session."""
        self._url, self._http = login.url, h11.Connection(h11.CLIENT)
        parts = urlsplit(login.url)
        if parts.scheme != "https" or parts.hostname is None or parts.path not in ("", "/") or parts.query:
            raise SessionRefused(f"--url {login.url}: write https://HOST:PORT of the agent.")
        coded = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        asked = urlencode({"request": request.encoded().decode().strip()})
        headers = {"Host": parts.netloc, "Authorization": f"Basic {coded}", "Connection": "close"}
        head = h11.Request(method="POST", target=f"{PATH}?{asked}", headers=[*headers.items()])
        try:
            context = ssl.create_default_context(cafile=login.ca)
            plain = socket.create_connection((parts.hostname, parts.port or 443), CONNECT_TIME_S)
            super().__init__(context.wrap_socket(plain, server_hostname=parts.hostname))
            for event in (head, h11.EndOfMessage()):
                self._socket.sendall(self._http.send(event) or b"")
            self._socket.settimeout(None)
        except (OSError, h11.LocalProtocolError) as error:
            raise SessionRefused(f"{login.url} cannot be asked: {_meaning(error)}.") from None

    def end(self) -> None:
        """Ask for the end of the session, and for the rest of its output."""
        try:
            self._socket.sendall(END)
        except OSError:  # the agent has closed it
            return

    def _receive(self) -> bytes | None:
        self._http.receive_data(self._read())
        found = b""
        try:
            while isinstance(event := self._http.next_event(), h11.Response | h11.Data):
                if isinstance(event, h11.Response) and event.status_code != 200:
                    self._refuse(event.status_code)
                found += event.data if isinstance(event, h11.Data) else b""
        except h11.RemoteProtocolError:
            return found or None
        return found if event is h11.NEED_DATA or found else None

    def _read(self) -> bytes:
        """Wait for a piece, and return it with what TLS holds besides, of which poll knows nothing."""
        assert isinstance(self._socket, ssl.SSLSocket)
        data = self._socket.recv(PIECE)
        while waiting := self._socket.pending():
            data += self._socket.recv(waiting)
        return data

    def _refuse(self, status: int) -> None:
        said = b""
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            if isinstance(event, h11.Data):
                said += event.data
            else:
                self._http.receive_data(self._read())
        text = one_line(said[:LONGEST_ERROR].decode(errors="replace").strip())
        raise SessionRefused(f"{self._url} answers {status}: {text}")


def _meaning(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): name its authority by --ca-file"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
