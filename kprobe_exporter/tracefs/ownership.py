"""Whose an instance and a group of events are: the marker of ours, and what a refused name holds."""

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kprobe_exporter.errors import InstanceBusy, NotMounted, TracefsError
from kprobe_exporter.tracefs.definitions import list_definitions
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.refusal import cannot_make

MARKER = "made_by_kprobe_exporter"
"""An event in each group that we make. It marks the group, and the instance of the same name, as ours."""

NEVER_CALLED = "kernel_halt"
"""A function of every kernel (kernel/reboot.c) that runs only when the machine halts."""

MFD_NOEXEC_SEAL = 0x8
"""Since 6.3; the sysctl vm.memfd_noexec may require it (mm/memfd.c). Older kernels answer EINVAL."""

MOST_NAMED = 10

OF_THREADS = ".threads"
"""The end of the name of an agent's second instance. The marker shows that this one is ours, too: no agent
can have its own instance there, because configured names have no dot."""

OF_PAIRS = ".pairs"
"""The end of the name of an agent's instance in which the kernel joins events."""

FURTHER = re.compile(r"\.threads|\.pairs|\.[a-z_][a-z0-9_]{0,39}\.[ab]")
"""The ends of the names of an agent's further instances: of threads, of pairs, and the two of a recording."""

INSTANCES = "instances"
"""The directory that a process locks while it makes or removes an instance and its marker."""

OWN_FILES = Path("/proc/self/fd")
"""The directory through which the kernel finds a file in memory."""

ATTEMPTS, PAUSE = 100, 0.02
"""How often the lock is tried, and the seconds between two tries. A process that holds the lock and hangs
delays the caller by 2 s at most."""


def mark(files: Tracefs, group: str) -> None:
    """Define the marker, which is never enabled and costs nothing. Raises TracefsError.

    It is a uprobe in an empty file in memory, which no process maps and which keeps no mount busy. Kernels
    without uprobes get a kprobe. Kernels without either have no groups, and get no marker.
    """
    try:
        if files.exists("uprobe_events"):
            memory = _empty_file()
            try:
                files.write("uprobe_events", f"p:{group}/{MARKER} {OWN_FILES}/{memory}:0x0\n")
            finally:
                os.close(memory)
        elif files.exists("kprobe_events"):
            files.write("kprobe_events", f"p:{group}/{MARKER} {NEVER_CALLED}\n")
    except OSError as error:
        if error.errno == errno.ENOENT and not OWN_FILES.exists():
            raise NotMounted(
                f"{OWN_FILES} is not there: mount /proc with 'mount -t proc proc /proc'."
            ) from None
        raise TracefsError(cannot_make(f"the marker {group}/{MARKER}", error)) from None


def _empty_file() -> int:
    try:
        return os.memfd_create(MARKER, os.MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(MARKER, os.MFD_CLOEXEC)


def is_marked(files: Tracefs, name: str) -> bool:
    """Return whether we made this group, and with it the instance of this name."""
    return any((one.group, one.event) == (name, MARKER) for one in list_definitions(files))


def contents(files: Tracefs, name: str) -> list[str]:
    """Return what exists under a name: the instances, and the events of the group."""
    there = [f"{INSTANCES}/{each}" for each in instances_of(files, name)]
    return there + [f"{d.group}/{d.event}" for d in list_definitions(files) if d.group == name]


def instances_of(files: Tracefs, name: str) -> list[str]:
    """Return the instance of this name, and the further ones of its agent."""
    try:
        names = files.names(INSTANCES)
    except OSError:
        return []
    further = [one for one in names if one.startswith(name) and FURTHER.fullmatch(one, len(name))]
    return [name] * (name in names) + further


def refusal(files: Tracefs, name: str) -> str | None:
    """Return a sentence if something exists under this name that we did not make, else None."""
    if is_marked(files, name) or not (found := contents(files, name)):
        return None
    with suppress(OSError):
        enabled = files.read(f"{INSTANCES}/{name}/set_event").decode(errors="replace").split()
        found += [f"{event} enabled" for event in enabled]
    more = len(found) - MOST_NAMED
    named = ", ".join(found[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return (
        f"'{name}' in tracefs is not marked as made by kprobe_exporter, and is left alone; it holds {named}: "
        "use another name (global.tracefs_instance), or remove these by hand if no program uses them."
    )


def is_live(files: Tracefs, name: str) -> bool:
    """Return whether a process holds the lock of the instance of this name.

    The only test is to take the lock; an agent that starts in these microseconds would find it taken.
    """
    try:
        lock = files.lock(f"{INSTANCES}/{name}")
    except OSError:
        return False
    if lock is None:
        return True
    os.close(lock)
    return False


def refuse_foreign(files: Tracefs, name: str) -> None:
    """Raise InstanceBusy or TracefsError if this name, which is not marked as ours, is in use."""
    if (sentence := refusal(files, name)) is not None:
        raise busy(name) if is_live(files, name) else TracefsError(sentence)


def busy(name: str) -> InstanceBusy:
    """Return the error of a name that another live agent holds."""
    return InstanceBusy(
        f"another live agent holds the tracefs instance '{name}': stop it, or give this one another name "
        "(global.tracefs_instance)."
    )


@contextmanager
def alone(files: Tracefs) -> Iterator[None]:
    """Exclude other agents and traces: an instance made but not locked yet looks like a killed agent's."""
    lock = None
    with suppress(OSError):  # without this permission, making an instance fails and gives the reason
        for _ in range(ATTEMPTS):
            if (lock := files.lock(INSTANCES)) is not None:
                break
            time.sleep(PAUSE)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)
