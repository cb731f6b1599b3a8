"""Deleting retired definitions while the agent runs, when too many have accumulated: rare, and logged.

The same configuration uses its retired definitions again, so they accumulate only if definitions are always
new. Deleting one wipes the unread ring buffer (see ``Installed.remove``) and takes the kernel some 50 ms. So
recording is off meanwhile, and the buffer is empty. Firings in that time are hits without events. They count
as lost, with the reason ``wiped``, if the kernel's profiles count the probe and it has no filter.
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
from kprobe_exporter.tracefs.profile import PROFILED, profile_counts

log = logging.getLogger(__name__)

MOST_RETIRED = 256
KEPT = 128
"""The KEPT definitions that were retired last stay; one pruning thus serves many new definitions."""


class Wiped(NamedTuple):
    """A lower bound of the lost events, and the interval in which events may have been lost."""

    events: int
    loss: Loss


def prune(instance: Instance, parts: Sequence[Installed], read_out: Callable[[], object]) -> Wiped | None:
    """Delete the oldest retired definitions if there are too many; return None if there are not.

    ``parts`` are the installed events. ``read_out`` reads the whole buffer and the kernel's counts.
    """
    if len(instance.retired) <= MOST_RETIRED:
        return None
    start = time.monotonic_ns()
    instance.write("tracing_on", "0")
    try:
        read_out()
        before = _firings(instance, parts)
        for event in list(instance.retired)[:-KEPT]:
            if (reason := delete(instance.files, instance.group, event)) is None:
                del instance.retired[event]
            else:  # the next pruning tries again
                log.debug("%s/%s could not be deleted: %s", instance.group, event, reason)
        read_out()  # the wipe reset the buffer's own counts
        wiped = max(0, _firings(instance, parts) - before)
    finally:
        instance.write("tracing_on", "1")
    return Wiped(wiped, Loss(0, start, time.monotonic_ns()))


def _firings(instance: Instance, parts: Sequence[Installed]) -> int:
    """Return the hits of all events that would be in the buffer, both halves of calls and pairs."""
    recorded = [part for part in parts if part.profiled and part.records and part.spec.kernel_filter is None]
    total = 0
    for file in PROFILED:
        events = {part.event for part in recorded if part.spec.file == file}
        with suppress(OSError):
            counts = profile_counts(instance.files, instance.group, file) if events else {}
            total += sum(count.hits for event, count in counts.items() if event in events)
    return total
