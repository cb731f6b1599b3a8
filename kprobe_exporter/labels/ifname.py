"""``ifname``: the index of a network interface as its name: ``eth0``; ``none`` for 0."""

import os
import socket
import time
from collections.abc import Callable

from kprobe_exporter.labels._text import number, printable, without_options
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

FRESH = 10.0  # seconds for which an answer is kept, since interfaces come, go and are renamed
MOST_CACHED = 4096
HIGHEST = 2**31 - 1  # an index is a positive C int


def name_of(index: int) -> bytes:
    """Return the interface's name in this process's network namespace. Raises OSError if it has none."""
    return os.fsencode(socket.if_indextoname(index))


def decoder(
    options: object, look_up: Callable[[int], bytes] = name_of, clock: Callable[[], float] = time.monotonic
) -> Decoder:
    """Make the decoder, which takes no options. Names are those of the agent's network namespace.

    Each namespace numbers its interfaces itself, so an event of another namespace gets the name that the
    index has here, or no name. 0 means no interface, as in a socket that is bound to none.
    """
    cache: dict[int, tuple[float, str | None]] = {}

    def decode(value: Value) -> str | None:
        index = number(value)
        if index == 0:
            return "none"
        if index is None or not 0 < index <= HIGHEST:
            return None
        now = clock()
        until, name = cache.get(index, (now, None))
        if until <= now:
            try:
                name = printable(look_up(index))
            except OSError:
                name = None
            if len(cache) >= MOST_CACHED:
                cache.clear()
            cache[index] = now + FRESH, name
        return name

    return without_options("ifname", decode)(options)
