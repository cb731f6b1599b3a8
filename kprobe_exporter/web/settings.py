"""The web configuration as the server uses it: TLS, users, headers, and the limit on the request rate."""

import ssl
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple


class Tls(NamedTuple):
    """How connections are secured.

    A client's certificate must have one of ``names`` (`client_allowed_sans`); if None, the context decides.
    ``curve`` is the only one that the context offers, None if it offers all: a context does not tell it.
    """

    context: ssl.SSLContext
    names: frozenset[str] | None = None
    curve: str | None = None

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client is admitted, given ``SSLSocket.getpeercert()`` of its certificate."""
        return self.names is None or not self.names.isdisjoint(_alternative_names(certificate or {}))


class Rate(NamedTuple):
    """A token bucket: one request every ``interval`` seconds, and ``burst`` at once."""

    interval: float
    burst: int


class WebSettings(NamedTuple):
    """Settings for every request. ``users`` maps names to bcrypt hashes; empty: no password is required."""

    tls: Tls | None = None
    users: Mapping[bytes, bytes] = {}
    headers: Mapping[str, str] = {}
    rate: Rate | None = None


def _alternative_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for kind, name in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            try:
                # OpenSSL writes an IPv6 address in full, and the configuration has its short form.
                yield str(ip_address(name.strip()))
            except ValueError:
                continue
        elif kind in ("DNS", "email", "URI"):
            yield name
