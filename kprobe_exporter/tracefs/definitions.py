"""The kernel's list of dynamic events: which there are, whose they are, and how ours are deleted."""

import errno
import re
from typing import NamedTuple

from kprobe_exporter.tracefs.files import Tracefs

FILES = ("kprobe_events", "uprobe_events", "dynamic_events")
"""Where definitions are listed. ``dynamic_events`` (5.0+) holds the other two's lines and more."""

HEAD = re.compile(r"^(?P<verb>[a-z]\d*):(?:(?P<group>[^/\s]+)/)?(?P<event>\S+)")


class Defined(NamedTuple):
    """A dynamic event as the kernel lists it."""

    group: str
    event: str
    line: str


def parse_definitions(text: str) -> list[Defined]:
    """The lines of a definitions file, in the kernel's order; what is no definition is passed over."""
    heads = ((HEAD.match(line), line) for line in text.split("\n"))
    return [Defined(head["group"] or "", head["event"], line) for head, line in heads if head]


def list_definitions(files: Tracefs) -> list[Defined]:
    """All dynamic events of this kernel, each once, in the kernel's order."""
    found: dict[tuple[str, str], Defined] = {}
    for name in reversed(FILES):
        if files.exists(name):
            for defined in parse_definitions(files.read(name).decode(errors="replace")):
                found.setdefault((defined.group, defined.event), defined)
    return list(found.values())


def delete(files: Tracefs, group: str, event: str) -> str | None:
    """Delete one of our events; the reason if it had to stay.

    One that is gone already is as good as deleted. EBUSY is somebody else's use of it (another
    instance, perf): it is told, not forced.
    """
    reason: str | None = None
    for name in ("dynamic_events", "kprobe_events", "uprobe_events"):
        if not files.exists(name):
            continue
        try:
            files.write(name, f"-:{group}/{event}\n")
            return None
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue
            reason = (
                "somebody else has it enabled (EBUSY)"
                if error.errno == errno.EBUSY
                else f"the kernel answers {errno.errorcode.get(error.errno or 0, error)}"
            )
            break
    return reason


def delete_group(files: Tracefs, group: str) -> tuple[list[str], list[str]]:
    """Delete every event of a group: the names that went, and a sentence for each that stayed."""
    gone, stayed = [], []
    for defined in list_definitions(files):
        if defined.group != group:
            continue
        reason = delete(files, group, defined.event)
        if reason is None:
            gone.append(f"{group}/{defined.event}")
        else:
            stayed.append(f"{group}/{defined.event} could not be deleted: {reason}.")
    return gone, stayed
