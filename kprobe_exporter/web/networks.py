"""The networks of clients, and which of them were answered lately."""

import ipaddress
from collections import Counter
from typing import NamedTuple

LOOPBACK = "loopback"
UNIX = "unix"  # all clients of Unix sockets

# Networks for which places are kept, in all and of one wide network, and the seconds for which a network is
# remembered: longer than scrape intervals.
MAX_KNOWN = 16
MAX_KNOWN_OF_WIDE = 4
KNOWN_TIME = 300


class Network(NamedTuple):
    """A client's network. One client may have many addresses, so that one limit alone does not hold it."""

    wide: str
    """Loopback, the first 24 bits of an IPv4 address, or the first 48 bits of an IPv6 address.

    A user of the machine has all addresses of loopback, and a site has at least a /48 (RFC 6177).
    """

    narrow: str
    """An IPv4 address, or the first 64 bits of an IPv6 address, which a subscriber has at least."""


def network(host: str) -> Network:
    """Return the network of an address; a text that is not an address stands for itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return Network(host, host)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    wide, narrow = (24, 32) if isinstance(address, ipaddress.IPv4Address) else (48, 64)
    return Network(LOOPBACK if address.is_loopback else _prefix(address, wide), _prefix(address, narrow))


def _prefix(address: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int) -> str:
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False)).removesuffix("/32")


class KnownNetworks:
    """The networks that were answered lately. A newcomer does not displace them while they go on asking."""

    def __init__(self) -> None:
        self._answered: dict[Network, float] = {}

    def __contains__(self, network: Network) -> bool:
        return network in self._answered

    def add(self, network: Network, now: float) -> None:
        """Remember that a network was answered, if there is a place for it."""
        if network not in self._answered:
            self._answered = {one: at for one, at in self._answered.items() if now - at <= KNOWN_TIME}
            of_wide = Counter(one.wide for one in self._answered)[network.wide]
            if len(self._answered) >= MAX_KNOWN or of_wide >= MAX_KNOWN_OF_WIDE:
                return
        self._answered[network] = now
