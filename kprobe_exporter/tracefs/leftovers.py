"""What killed traces leave in the kernel: known by its name, and by the lock that nobody holds."""

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
"""Of the instance and the group of one trace; the id of its process follows."""

INSTANCES = "instances"
"""The directory that traces lock while they start and while they clean up."""

ATTEMPTS, PAUSE = 100, 0.02
"""How often, and after how many seconds, the lock is tried: a process that stands still holds up nobody for
longer than that."""


def acquire_for_trace(files: Tracefs) -> Instance:
    """An instance of this process' own. Raises TracefsError.

    Another pid namespace has a process of the same number, whose trace may live: then ours has a
    further name.
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
    """The names of all traces of which there is something, an instance or a definition, alive or not."""
    names = [*files.names(INSTANCES), *(defined.group for defined in list_definitions(files))]
    return sorted({name for name in names if name.startswith(PREFIX)})


def remove_dead_traces(files: Tracefs) -> None:
    """Remove what killed traces left. Never raises: whoever starts has other things to do."""
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
    """No other trace starts or cleans up: what is made and not locked yet looks like a killed one's."""
    lock = None
    with suppress(OSError):  # whoever may not lock cannot make an instance either, and is told so there
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
