"""Deleting retired definitions while the agent runs, when too many have gathered: rarely, and told.

Each is asked for again by the same configuration, so that they only gather where definitions are always
new. Deleting one wipes the unread ring buffer (see tracefs/retired.py), and takes the kernel some 50 ms.
So recording is off meanwhile, and the buffer is empty. What fires then is counted as a hit, and is in
no event: it is counted as lost, ``wiped``, as far as the kernel's profiles tell, of probes without a filter.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from kprobe_exporter.model.values import Loss
from kprobe_exporter.tracefs.definitions import delete
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed
from kprobe_exporter.tracefs.profile import PROFILES

log = logging.getLogger(__name__)

MOST_RETIRED = 256
KEPT = 128
"""Of those, the ones that were retired last stay: so it happens once for many new definitions."""


class Wiped(NamedTuple):
    """How many events were lost at the least, and when events may have been."""

    events: int
    loss: Loss


def prune(instance: Instance, parts: Sequence[Installed], read_out: Callable[[], object]) -> Wiped | None:
    """Delete the oldest if there are too many; None if there are not.

    ``parts`` are installed; ``read_out`` has the whole buffer read, and the kernel's counts.
    """
    if len(instance.retired) <= MOST_RETIRED:
        return None
    start = time.monotonic_ns()
    instance.write("tracing_on", "0")
    try:
        read_out()
        before = _firings(instance, parts)
        for event in instance.retired.surplus(KEPT):
            if (reason := delete(instance.files, instance.group, event)) is None:
                instance.retired.forget(event)
            else:  # the next time it is tried again
                log.debug("%s/%s could not be deleted: %s", instance.group, event, reason)
        read_out()  # the buffer's own counts began anew
        wiped = max(0, _firings(instance, parts) - before)
    finally:
        instance.write("tracing_on", "1")
    return Wiped(wiped, Loss(0, start, time.monotonic_ns()))


def _firings(instance: Instance, parts: Sequence[Installed]) -> int:
    """Of what would be in the buffer, each event by itself."""
    recorded = [part for part in parts if part.profiled and part.records and part.spec.filter is None]
    total = 0
    for file, read in PROFILES.items():
        events = {part.event for part in recorded if part.spec.file == file}
        with suppress(OSError):
            counts = read(instance.files, instance.group) if events else {}
            total += sum(count.hits for event, count in counts.items() if event in events)
    return total
