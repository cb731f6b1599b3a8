"""``port``: a port in network order, as read from memory: on x86, 0x901f is 8080."""

import sys

from kprobe_exporter.labels._text import array, unsigned, without_options
from kprobe_exporter.model.values import Value


def decode(value: Value) -> str | None:
    """Decode a 16-bit number or an array of 2 bytes.

    A port in host order, as the tracepoint inet_sock_set_state has it, needs no decoder.
    """
    if isinstance(value, bytes) and value.startswith(b"{"):
        elements = [unsigned(element, 8) for element in array(value) or ()]
        high, low = elements if len(elements) == 2 else (None, None)
        return None if high is None or low is None else str(high << 8 | low)
    number = unsigned(value, 16)
    return None if number is None else str(int.from_bytes(number.to_bytes(2, sys.byteorder), "big"))


decoder = without_options("port", decode)
