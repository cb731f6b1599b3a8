"""What another program has in tracefs, which the agent must not touch."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kprobe_exporter.tracefs.files import MountedTracefs
from tests.support.system_calls import function

PROBES = """
probes:
  - name: open
    attach: ["kretprobe:do_sys_openat2", "tracepoint:syscalls:sys_exit_openat"]
  - name: getppid
    attach: ["kprobe:sys_getppid", "tracepoint:syscalls:sys_enter_getppid"]
    metrics: [{counter: getppid_total}]
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    fetch: {file: filename}
    metrics: [{counter: execs_total, labels: [file, comm]}]
"""


@contextmanager
def foreign_things(files: MountedTracefs) -> Iterator[None]:
    """Create another tool's instance, with text in its buffer and an enabled probe; assert that both stay."""
    probe = "getppid"
    enable = f"instances/foreign/events/foreign/{probe}/enable"
    with_kprobes = files.exists("kprobe_events")
    with ExitStack() as stack:
        if with_kprobes:
            files.write("kprobe_events", f"p:foreign/{probe} {function('getppid')}")
            stack.callback(files.write, "kprobe_events", f"-:foreign/{probe}")
        files.mkdir("instances/foreign")
        stack.callback(files.rmdir, "instances/foreign")
        if with_kprobes:
            files.write(enable, "1")
            stack.callback(files.write, enable, "0")
            os.getppid()
        files.write("instances/foreign/trace_marker", "foreign words")
        yield
        text = files.read("instances/foreign/trace")
        assert b"foreign words" in text
        if with_kprobes:
            assert f"{probe}: (".encode() in text
            assert files.read(enable) == b"1\n"
