"""The instances of traces: making one, and removing what killed traces left, which no process has locked."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from kprobe_exporter.errors import InstanceBusy, TracefsError
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance

log = logging.getLogger(__name__)

PREFIX = "kprobe_exporter_trace_"
"""The prefix of the name of a trace's instance and group; the id of its process follows."""

INSTANCES = "instances"
"""The directory that a trace locks while it starts and while it cleans up."""

ATTEMPTS, PAUSE = 100, 0.02
"""How often the lock is tried, and the seconds between two tries. A process that holds the lock and hangs
delays the caller by 2 s at most."""


def acquire_for_trace(files: Tracefs) -> Instance:
    """Acquire an instance for this process. Raises TracefsError.

    A live trace in another pid namespace may have the same process id; then the name gets a number.
    """
    with _alone(files):
        for number in count(1):
            name = f"{PREFIX}{os.getpid()}" + (f"_{number}" if number > 1 else "")
            try:
                return Instance.acquire(files, name)
            except InstanceBusy:
                continue
    raise AssertionError


def traces(files: Tracefs) -> list[str]:
    """Return the names of all traces that have an instance or a definition, alive or not."""
    names = [*files.names(INSTANCES), *(defined.group for defined in list_definitions(files))]
    return sorted({name for name in names if name.startswith(PREFIX)})


def remove_dead_traces(files: Tracefs) -> None:
    """Remove what killed traces left. Never raises, because it must not keep the caller from starting."""
    try:
        with _alone(files):
            for name in traces(files):
                try:
                    Instance.acquire(files, name).close()
                except InstanceBusy:
                    continue
                except TracefsError as error:
                    log.warning("%s", error)
    except OSError as error:
        log.warning("what killed traces left cannot be looked for: %s", error)


@contextmanager
def _alone(files: Tracefs) -> Iterator[None]:
    """Exclude other traces: an instance that is made but not locked yet looks like a killed trace's."""
    lock = None
    with suppress(OSError):  # without this permission, making an instance fails and gives the reason
        for _ in range(ATTEMPTS):
            lock = files.lock(INSTANCES)
            if lock is not None:
                break
            time.sleep(PAUSE)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)
