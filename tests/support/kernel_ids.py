"""The kernel's own thread ids, as events have them; in a PID namespace they differ from getpid(2)'s."""

import re
import threading
import uuid
from pathlib import Path

from tests.support.private_tracefs import TRACEFS

FIRST = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h

HOST_PROC = "KPROBE_EXPORTER_HOST_PROC"
"""The variable with the place of the host's /proc, in a PID namespace that the harness made."""


def in_the_first_namespace() -> bool:
    """Whether getpid(2) and events use the same ids. If not, /proc does not know the kernel's ids."""
    return Path("/proc/self/ns/pid").stat().st_ino == FIRST


def kernel_tid() -> int:
    """The calling thread's id in events. In a PID namespace, the thread writes an event to find it out."""
    own = threading.get_native_id()
    if in_the_first_namespace():
        return own
    instance = TRACEFS / "instances" / f"kp_ids_{uuid.uuid4().hex}"
    instance.mkdir()
    try:
        (instance / "trace_marker").write_text("here")
        text = (instance / "trace").read_text(errors="replace")  # perhaps with another thread's name
        (found,) = re.findall(r"-(\d+) +\[\d+\].* tracing_mark_write: here$", text, re.MULTILINE)
        return int(found)
    finally:
        instance.rmdir()
