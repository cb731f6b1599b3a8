"""The instances of traces: making one, and removing what killed traces left, which no process has locked."""

import logging
import os
from itertools import count

from kprobe_exporter.errors import InstanceBusy, TracefsError
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.ownership import INSTANCES
from kprobe_exporter.tracefs.removal import Removal

log = logging.getLogger(__name__)

PREFIX = "kprobe_exporter_trace_"
"""The prefix of the name of a trace's instance and group; the id of its process follows."""


def acquire_for_trace(files: Tracefs, removal: Removal | None = None) -> Instance:
    """Acquire an instance for this process, which ``removal`` watches at its end. Raises TracefsError.

    A live trace in another pid namespace may have the same process id; then the name gets a number.
    """
    for number in count(1):
        name = f"{PREFIX}{os.getpid()}" + (f"_{number}" if number > 1 else "")
        try:
            return Instance.acquire(files, name, removal)
        except InstanceBusy:
            continue
    raise AssertionError


def traces(files: Tracefs) -> list[str]:
    """Return the names of all traces that have an instance or a definition, alive or not."""
    names = [*files.names(INSTANCES), *(defined.group for defined in list_definitions(files))]
    # The further instances of a trace have its name, and a dot behind it.
    return sorted({name.partition(".")[0] for name in names if name.startswith(PREFIX)})


def remove_dead_traces(files: Tracefs) -> None:
    """Remove what killed traces left. Never raises, because it must not keep the caller from starting."""
    try:
        for name in traces(files):
            try:
                Instance.acquire(files, name).close()
            except InstanceBusy:
                continue
            except TracefsError as error:
                log.warning("%s", error)
    except OSError as error:
        log.warning("what killed traces left cannot be looked for: %s", error)
