"""The kernel's own ids of threads, which events have: in a PID namespace they are not those of getpid(2)."""

import re
import threading
from pathlib import Path

from tests.support.private_tracefs import TRACEFS

FIRST = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


def in_the_first_namespace() -> bool:
    """Whether the ids are the same. Where they are not, /proc does not know the kernel's."""
    return Path("/proc/self/ns/pid").stat().st_ino == FIRST


def kernel_tid() -> int:
    """The id of the calling thread in its events: in an event that it writes where it has another one."""
    own = threading.get_native_id()
    if in_the_first_namespace():
        return own
    instance = TRACEFS / "instances" / f"kp_ids_{own}"
    instance.mkdir()
    try:
        (instance / "trace_marker").write_text("here")
        text = (instance / "trace").read_text()
        (found,) = re.findall(r"-(\d+) +\[\d+\].* tracing_mark_write: here$", text, re.MULTILINE)
        return int(found)
    finally:
        instance.rmdir()
