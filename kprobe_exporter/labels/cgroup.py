"""``cgroup``: the path, below ``/sys/fs/cgroup``, of the cgroup that a thread was in."""

from kprobe_exporter.labels._text import printable
from kprobe_exporter.model.values import Decoder, Value

LONGEST = 128
"""Bytes of a label's value."""


def decoder(options: object) -> Decoder:
    """Make the decoder, which takes no options. The value is the path as the kernel writes it."""
    if options is not None:
        raise ValueError("the decoder cgroup takes no options: write 'decode: cgroup'")
    return decode


def decode(value: Value) -> str | None:
    """Return the path, or its end if it is too long for a label: the end tells containers apart."""
    if not isinstance(value, bytes):
        return None
    text = printable(value)
    return (
        text if len(text.encode()) <= LONGEST else "…" + text.encode()[3 - LONGEST :].decode(errors="ignore")
    )
