"""``hex``: a number as 0x…, the form of addresses and flags; a negative one as its 64 bits."""

from kprobe_exporter.labels._text import without_options
from kprobe_exporter.model.values import Value


def decode(value: Value) -> str | None:
    return hex(value % (1 << 64)) if isinstance(value, int) else None


decoder = without_options("hex", decode)
