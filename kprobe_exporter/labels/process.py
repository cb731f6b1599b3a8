"""``ppid``, ``parent_comm``, ``exe``, ``argv``, ``uid``, ``age``: facts of the process of a thread's id.

The agent looks the fact up at the event's place in the stream (identity/processes.py). These decoders make it
text.
"""

from collections.abc import Callable

from kprobe_exporter.labels._text import printable, without_options
from kprobe_exporter.model.specs import OF_PROCESS, Decoder
from kprobe_exporter.model.values import Value

SECOND = 10**9


def decode(value: Value) -> str | None:
    """Return a number as it is, and a name or a path without characters that do not print."""
    if isinstance(value, bytes):
        return printable(value)
    return None if value is None else str(value)


def age(value: Value) -> str | None:
    """Return the age in seconds, to the millisecond."""
    return f"{value / SECOND:.3f}" if isinstance(value, int) else None


DECODERS: dict[str, Callable[[object], Decoder]] = {
    name: without_options(name, age if name == "age" else decode) for name in sorted(OF_PROCESS)
}
