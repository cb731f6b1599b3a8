"""What the web configuration comes to, for the server: TLS, users, headers, the rate of requests."""

import ssl
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple


class Tls(NamedTuple):
    """How connections are secured.

    ``names`` are those of which a client's certificate must have one (`client_allowed_sans`); None:
    whatever the context lets through.
    """

    context: ssl.SSLContext
    names: frozenset[str] | None = None

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client may stay, by ``SSLSocket.getpeercert()`` of the one it has shown."""
        return self.names is None or not self.names.isdisjoint(_alternative_names(certificate or {}))


class Rate(NamedTuple):
    """A token bucket: one request every ``interval`` seconds, and ``burst`` at once."""

    interval: float
    burst: int


class WebSettings(NamedTuple):
    """What holds for every request. ``users``: a name and its bcrypt hash; empty: anybody may ask."""

    tls: Tls | None = None
    users: Mapping[bytes, bytes] = {}
    headers: Mapping[str, str] = {}
    rate: Rate | None = None


def _alternative_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            try:
                # OpenSSL writes an IPv6 address in full; people do not.
                yield str(ip_address(name.strip()))
            except ValueError:
                continue
        elif kind in ("DNS", "email", "URI"):
            yield name
