"""``tcp_state``: the number of a TCP socket's state as its name: ``TCP_ESTABLISHED``."""

from kprobe_exporter.labels._text import number, numbered, without_options
from kprobe_exporter.model.values import Value

NAMES = numbered(
    """
    TCP_ESTABLISHED TCP_SYN_SENT TCP_SYN_RECV TCP_FIN_WAIT1 TCP_FIN_WAIT2 TCP_TIME_WAIT TCP_CLOSE
    TCP_CLOSE_WAIT TCP_LAST_ACK TCP_LISTEN TCP_CLOSING TCP_NEW_SYN_RECV TCP_BOUND_INACTIVE
    """,
    first=1,
)
"""include/net/tcp_states.h. A tracepoint's own words (``decode: name``) are the same."""


def decode(value: Value) -> str | None:
    found = number(value)
    return None if found is None else NAMES.get(found)


decoder = without_options("tcp_state", decode)
