"""``protocol``: the number of a protocol above IP as its name: ``IPPROTO_TCP``."""

from kprobe_exporter.labels._text import number, without_options
from kprobe_exporter.model.values import Value

NAMES = {
    index: f"IPPROTO_{name}"
    for index, name in {
        0: "IP",
        1: "ICMP",
        2: "IGMP",
        4: "IPIP",
        6: "TCP",
        8: "EGP",
        12: "PUP",
        17: "UDP",
        22: "IDP",
        29: "TP",
        33: "DCCP",
        41: "IPV6",
        43: "ROUTING",
        44: "FRAGMENT",
        46: "RSVP",
        47: "GRE",
        50: "ESP",
        51: "AH",
        58: "ICMPV6",
        59: "NONE",
        60: "DSTOPTS",
        92: "MTP",
        94: "BEETPH",
        98: "ENCAP",
        103: "PIM",
        108: "COMP",
        115: "L2TP",
        132: "SCTP",
        135: "MH",
        136: "UDPLITE",
        137: "MPLS",
        143: "ETHERNET",
        144: "AGGFRAG",
        255: "RAW",
        256: "SMC",
        262: "MPTCP",
    }.items()
}
"""include/uapi/linux/in.h and in6.h. After the header of IPv6, 0 is IPPROTO_HOPOPTS. The field
``protocol`` of network devices' tracepoints has Ethernet's numbers (ETH_P_IP) instead."""


def decode(value: Value) -> str | None:
    found = number(value)
    return None if found is None else NAMES.get(found)


decoder = without_options("protocol", decode)
