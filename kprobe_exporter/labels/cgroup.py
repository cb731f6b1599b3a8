"""``cgroup``: the path, below ``/sys/fs/cgroup``, of the cgroup that a thread was in."""

from kprobe_exporter.labels._text import printable, without_options
from kprobe_exporter.model.values import Value

LONGEST = 128  # bytes of a label's value


def decode(value: Value) -> str | None:
    """Return the path, or its end if it is too long for a label: the end tells containers apart."""
    if not isinstance(value, bytes):
        return None
    text = printable(value).encode()
    return (text if len(text) <= LONGEST else "…".encode() + text[3 - LONGEST :]).decode(errors="ignore")


decoder = without_options("cgroup", decode)
