"""``ip``: an IPv4 or IPv6 address in its usual notation: ``127.0.0.1``, ``fe80::1``."""

import sys
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Literal

from kprobe_exporter.labels._text import NUMBER, array, unsigned
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

LONGEST = 45  # characters of an address as text: INET6_ADDRSTRLEN

Order = Literal["little", "big"]


def decoder(options: object) -> Decoder:
    """Make a decoder of a 32-bit number, an array (4 or 16 bytes, or words), or the text of an address.

    A number is taken as read from memory, where addresses are in network order: on x86, 0x0100007f is
    127.0.0.1. For ``decode: {ip: host}``, the number is in host order, after ntohl(): 0x7f000001. An IPv4
    address that is mapped into IPv6 (::ffff:127.0.0.1) is shown as IPv4. Four elements are bytes unless one
    does not fit, and two elements have 16 bits unless one does not fit: all 0 is 0.0.0.0.
    """
    if options not in (None, "host"):
        raise ValueError(
            "the decoder ip takes no option but host: write 'decode: ip', or {ip: host} for host order"
        )
    order: Order = "big" if options == "host" else sys.byteorder

    def decode(value: Value) -> str | None:
        if isinstance(value, bytes) and not NUMBER.fullmatch(value):
            return _of_array(array(value), order) if value.startswith(b"{") else _of_text(value)
        number = unsigned(value, 32)
        return None if number is None else _show(number.to_bytes(4, order))

    return decode


def _of_text(text: bytes) -> str | None:
    if len(text) > LONGEST or b"%" in text or not text.isascii():
        return None
    try:
        return _show(text.decode())
    except ValueError:
        return None


def _of_array(elements: Sequence[int] | None, order: Order) -> str | None:
    """Decode with the first element size that gives 4 or 16 bytes in total and that all elements fit."""
    for size in (1, 2, 4, 8):
        if elements is not None and len(elements) * size in (4, 16):
            words = [unsigned(element, 8 * size) for element in elements]
            fitting = [word.to_bytes(size, order) for word in words if word is not None]
            if len(fitting) == len(words):
                return _show(b"".join(fitting))
    return None


def _show(written: str | bytes) -> str:
    address = ip_address(written)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
