"""The kernel's list of dynamic events: reading it, with the events' groups, and deleting our events."""

import errno
import re
from typing import NamedTuple

from kprobe_exporter.tracefs.files import Tracefs

FILES = ("kprobe_events", "uprobe_events", "dynamic_events")
"""The files that list definitions. ``dynamic_events`` (5.0+) has the lines of the other two and more."""

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
                return "another user of tracefs has it enabled (EBUSY)"
            return f"the kernel answers {errno.errorcode.get(error.errno or 0, error)}"
        return None
    return None


def delete_group(files: Tracefs, group: str, keep: str = "") -> tuple[list[str], list[str]]:
    """Delete every event of a group but ``keep``. Return the deleted names, and a sentence for each other
    that remains.
    """
    deleted, remaining = [], []
    for defined in list_definitions(files):
        if defined.group != group or defined.event == keep:
            continue
        reason = delete(files, group, defined.event)
        if reason is None:
            deleted.append(f"{group}/{defined.event}")
        else:
            remaining.append(f"{group}/{defined.event} could not be deleted: {reason}.")
    return deleted, remaining
