"""The kernel's list of dynamic events: reading it, with the events' groups, and deleting our events."""

import errno
import re
import time
from typing import NamedTuple

from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.removal import Removal

FILES = ("kprobe_events", "uprobe_events", "dynamic_events")
"""The files that list definitions. ``dynamic_events`` (5.0+) has the lines of the other two and more."""

SYNTHETIC = "synthetic"
"""The system of all synthetic events."""

BUSY = "another user of tracefs has it enabled (EBUSY)"

ATTEMPTS, PAUSE = 10, 0.05
"""How often the deletion of a busy event is tried, and the seconds between two tries."""

HEAD = re.compile(r"^(?P<verb>[a-z]\d*):(?:(?P<group>[^/\s]+)/)?(?P<event>\S+)")


class Defined(NamedTuple):
    """A dynamic event as the kernel lists it."""

    group: str
    event: str
    line: str


def parse_definitions(text: str) -> list[Defined]:
    """Return a file's definitions in the kernel's order; lines that are not definitions are skipped."""
    heads = ((HEAD.match(line), line) for line in text.split("\n"))
    return [Defined(head["group"] or "", head["event"], line) for head, line in heads if head]


def list_definitions(files: Tracefs) -> list[Defined]:
    """Return all dynamic events of this kernel, each once, in the kernel's order."""
    found: dict[tuple[str, str], Defined] = {}
    for name in reversed(FILES):
        if files.exists(name):
            for defined in parse_definitions(files.read(name).decode(errors="replace")):
                found.setdefault((defined.group, defined.event), defined)
    return list(found.values())


def delete(files: Tracefs, group: str, event: str) -> str | None:
    """Delete one of our events. Return None, or the reason why it remains.

    An event that no longer exists counts as deleted. EBUSY means that another user (an instance, perf)
    has it enabled: this is reported, and the deletion is not forced.
    """
    for name in ("dynamic_events", "kprobe_events", "uprobe_events"):
        if not files.exists(name):
            continue
        try:
            files.write(name, f"-:{group}/{event}\n")
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue
            if error.errno == errno.EBUSY:
                return BUSY
            return f"the kernel answers {errno.errorcode.get(error.errno or 0, error)}"
        return None
    return None


def synthetic_prefix(group: str) -> str:
    """Return the beginning of the names of a group's synthetic events, which all are in one system.

    Names of groups have no capital letters, so no other group's name can begin so.
    """
    return f"{group}_PAIR_"


def delete_synthetic(files: Tracefs, group: str) -> list[str]:
    """Delete the synthetic events of a group. Return a sentence for each that remains."""
    prefix = synthetic_prefix(group)
    listed = [one.event for one in list_definitions(files) if one.group == SYNTHETIC]
    reasons = {event: delete_soon(files, SYNTHETIC, event) for event in listed if event.startswith(prefix)}
    return [
        f"{SYNTHETIC}/{event} could not be deleted: {reason}."
        for event, reason in reasons.items()
        if reason is not None
    ]


def delete_soon(files: Tracefs, group: str, event: str) -> str | None:
    """Delete an event as ``delete`` does; wait for triggers that were just removed (see ``delete_group``)."""
    reason = delete(files, group, event)
    for _ in range(ATTEMPTS):
        if reason != BUSY:
            break
        time.sleep(PAUSE)
        reason = delete(files, group, event)
    return reason


def delete_group(
    files: Tracefs, group: str, keep: str = "", removal: Removal | None = None
) -> tuple[int, list[str]]:
    """Delete every event of a group but ``keep``. Return how many were deleted, and a sentence for each that
    remains. Raises RemovalStopped.

    Linux 7.0 and later free a trigger about 0.1 s after its removal, and until then refuse to delete its
    event (event_enable_trigger_parse() of kernel/trace/trace_events_trigger.c). So the deletion is tried
    again.
    """
    events = [one.event for one in list_definitions(files) if one.group == group and one.event != keep]
    reasons: dict[str, str] = {}
    for event in (removal or Removal()).each(events, "deleting definitions"):
        if (reason := delete(files, group, event)) is not None:
            reasons[event] = reason
    for _ in range(ATTEMPTS):
        if BUSY not in reasons.values():
            break
        time.sleep(PAUSE)
        again = {event: delete(files, group, event) for event in reasons}
        reasons = {event: reason for event, reason in again.items() if reason is not None}
    remaining = [f"{group}/{event} could not be deleted: {reason}." for event, reason in reasons.items()]
    return len(events) - len(remaining), remaining
