"""Streams of events that real kernels wrote, and a configuration for them."""

from pathlib import Path

from tests.e2e.conftest import FIXTURES

CONFIG = """
probes:
  - name: cap_open
    attach: kprobe:do_sys_openat2
    fetch: {dfd: "$arg1:s32", path: "+0($arg2):ustring"}
    metrics:
      - counter: opens_total
        help: Opens by who and what.
        labels: [comm, path, dfd]
  - name: cap_open_ret
    attach: kretprobe:do_sys_openat2
    returns: void
    fetch: {ret: "$retval:s64"}
    metrics:
      - counter: open_results_total
        help: Results of opens.
        labels: {errno: {field: ret, decode: errno}, comm: comm, caller: caller}
      - histogram: opened_fd
        help: Descriptors that opens gave.
        value: ret
        buckets: [-1, 4, 8, 16]
  - name: cap_exit_openat
    attach: tracepoint:syscalls:sys_exit_openat
    fetch: {ret: ret}
    metrics:
      - gauge: last_open_result
        help: The last result of openat.
        value: ret
        labels: {tid: tid}
"""


STREAMS = {"cap_open": "kprobe.txt", "cap_open_ret": "kretprobe.txt"}


def streams(kernel: str) -> dict[str, Path]:
    return {event: FIXTURES / kernel / "trace_pipe" / file for event, file in STREAMS.items()}
