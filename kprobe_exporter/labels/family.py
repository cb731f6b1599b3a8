"""``family``: the number of a socket's address family as its name: ``AF_INET6``."""

from kprobe_exporter.labels._text import number, numbered, without_options
from kprobe_exporter.model.values import Value

NAMES = {
    index: f"AF_{name}"
    for index, name in numbered(
        """
        UNSPEC UNIX INET AX25 IPX APPLETALK NETROM BRIDGE ATMPVC X25 INET6 ROSE DECnet NETBEUI SECURITY KEY
        NETLINK PACKET ASH ECONET ATMSVC RDS SNA IRDA PPPOX WANPIPE LLC IB MPLS CAN TIPC BLUETOOTH IUCV RXRPC
        ISDN PHONET IEEE802154 CAIF ALG NFC VSOCK KCM QIPCRTR SMC XDP MCTP
        """
    ).items()
}
"""include/linux/socket.h; 1 is AF_LOCAL, too, and 16 AF_ROUTE."""


def decode(value: Value) -> str | None:
    found = number(value)
    return None if found is None else NAMES.get(found)


decoder = without_options("family", decode)
