"""``usym``: an address in a program as its function: ``libc.so.6`malloc``, without one as its file."""

from kprobe_exporter.labels._text import printable, without_options
from kprobe_exporter.model.values import Value


def decode(value: Value) -> str | None:
    """Return the text. The place of the address has been looked up where the process is known."""
    return printable(value) if isinstance(value, bytes) else None


decoder = without_options("usym", decode)
