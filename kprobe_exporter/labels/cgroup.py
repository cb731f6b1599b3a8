"""``cgroup``: the path of the cgroup that a thread was in, as below ``/sys/fs/cgroup``."""

from kprobe_exporter.labels._text import printable
from kprobe_exporter.model import Decoder, Value


def decoder(options: object) -> Decoder:
    """Takes no options. The value is the path, as the kernel writes it."""
    if options is not None:
        raise ValueError("the decoder cgroup takes no options: write 'decode: cgroup'")
    return decode


def decode(value: Value) -> str | None:
    return printable(value) if isinstance(value, bytes) else None
