"""Calls and pairs: each entry is joined with its return, and the duration is right."""

import ctypes
import errno
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.joined_calls import BOUNDS, LIBC, SLEEPS, TimeSpec, check, lost, nap, nested_epolls
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.support.system_calls import function

TIMES = 23
CLOCK_NANOSLEEP = {"x86_64": 230, "aarch64": 115}
"""The number of the system call, by machine."""


def sleep_until_interrupted() -> int:
    """Sleep in the same system call until a signal ends it; return the error that the call returns.

    It ends after five minutes without a signal, so that a failure of the test does not stop the suite.
    """
    longest = TimeSpec(300, 0)
    error: int = LIBC.clock_nanosleep(time.CLOCK_MONOTONIC, 0, ctypes.byref(longest), None)
    return error


@contextmanager
def interruptible() -> Iterator[None]:
    """While the context lasts, SIGUSR1 only ends the system call of the thread that receives it."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.needs("kprobe_events")
def test_sleeps_of_eight_threads_at_once(start_agent: StartAgent) -> None:
    agent = start_agent(f"""
probes:
  - name: sleep
    attach: call:hrtimer_nanosleep
    filter: "common_pid != {kernel_tid()}"
    metrics:
      - histogram: sleep_seconds
        value: duration
        labels: [tid]
        buckets: {list(BOUNDS)}
""")

    def sleep(seconds: float) -> tuple[str, list[tuple[float, float]]]:
        return str(kernel_tid()), [nap(seconds) for _ in range(3)]

    with ThreadPoolExecutor(8) as pool:
        barrier = threading.Barrier(8)
        done = list(pool.map(lambda seconds: (barrier.wait(), sleep(seconds))[1], SLEEPS * 2))
    metrics = agent.scrape()
    for tid, naps in done:
        check(metrics, "kprobe_sleep_seconds", naps, tid=tid)
    assert metrics.value("kprobe_exporter_events_total", probe="sleep") >= 24
    assert metrics.value("kprobe_hits_total", probe="sleep") >= 24
    assert lost(agent) == {}
    (info,) = metrics.labels("kprobe_info")
    assert info == {"probe": "sleep", "kind": "call", "target": "call:hrtimer_nanosleep", "plan": "events"}


@pytest.mark.needs("kprobe_events")
def test_what_was_fetched_on_entry_labels_the_return(
    start_agent: StartAgent, other: ThreadPoolExecutor
) -> None:
    agent = start_agent(f"""
probes:
  - name: open
    attach: call:do_sys_openat2
    fetch: {{path: "+0($arg2):ustring"}}
    filter: "common_pid == {other.submit(kernel_tid).result()} && return < 0"
    metrics:
      - counter: failed_total
        labels: {{path: path, errno: {{field: return, decode: errno}}, comm: comm, caller: caller}}
""")

    def fail_and_succeed() -> None:
        for _ in range(TIMES):
            with pytest.raises(FileNotFoundError):
                os.open("/nonexistent/file", os.O_RDONLY)
            os.close(os.open("/dev/null", os.O_RDONLY))

    other.submit(fail_and_succeed).result()
    metrics = agent.scrape()
    (labels,) = metrics.labels("kprobe_failed_total")
    assert (labels["path"], labels["errno"]) == ("/nonexistent/file", "ENOENT")
    opening = function("openat").removesuffix("at")
    assert labels["caller"].startswith((opening, "do_sys_open", "__se_sys_open"))
    assert metrics.value("kprobe_failed_total", **labels) == TIMES
    assert metrics.value("kprobe_exporter_events_total", probe="open") == TIMES
    assert metrics.value("kprobe_return_errors_total", probe="open", errno="ENOENT") == TIMES
    assert metrics.value("kprobe_duration_seconds_count", probe="open") == TIMES
    assert lost(agent) == {}


@pytest.mark.needs("kprobe_events")
def test_a_function_that_calls_itself(start_agent: StartAgent) -> None:
    """Each level of a recursion is a call: adding an epoll set to another searches the sets nested in it."""
    agent = start_agent(f"""
probes:
  - name: loop
    attach: call:ep_loop_check_proc
    filter: "common_pid == {kernel_tid()}"
""")
    depth = 4
    with nested_epolls(depth):
        metrics = agent.scrape()
    assert metrics.value("kprobe_duration_seconds_count", probe="loop") == sum(range(1, depth))
    assert metrics.value("kprobe_hits_total", probe="loop") == sum(range(1, depth))
    assert lost(agent) == {}


def test_a_system_call(start_agent: StartAgent, other: ThreadPoolExecutor) -> None:
    agent = start_agent(f"""
probes:
  - name: sleep
    attach: syscall:clock_nanosleep
    fetch: {{clock: which_clock}}
    filter: "tid == {other.submit(kernel_tid).result()}"
    metrics:
      - histogram: sleep_seconds
        value: duration
        labels: {{clock: {{field: clock, decode: {{map: {{1: monotonic}}}}}}, symbol: symbol}}
        buckets: {list(BOUNDS)}
""")
    naps = list(other.map(nap, SLEEPS[:2] * 3))
    metrics = agent.scrape()
    check(metrics, "kprobe_sleep_seconds", naps, clock="monotonic", symbol="clock_nanosleep")
    assert metrics.value("kprobe_return_value_count", probe="sleep") == 6
    assert metrics.value("kprobe_exporter_events_total", probe="sleep") == 6
    eventually(lambda: agent.scrape().value("kprobe_hits_total", probe="sleep") >= 6)
    assert [info["kind"] for info in metrics.labels("kprobe_info")] == ["syscall"]


def test_no_call_spans_an_interruption_of_recording(
    start_agent: StartAgent, other: ThreadPoolExecutor, tracefs: Path
) -> None:
    """A call during which recording stopped is unpaired, as another may have begun; the next is measured."""
    tid = other.submit(kernel_tid).result()
    agent = start_agent(f"""
probes:
  - name: sleep
    attach: syscall:clock_nanosleep
    filter: common_pid == {tid}  # by the kernel: sleeps of other processes are interrupted as well
""")
    recording = tracefs / "instances/kprobe_exporter/tracing_on"
    thread, own = (other.submit(it).result() for it in (threading.get_ident, threading.get_native_id))
    with interruptible():
        asleep = other.submit(sleep_until_interrupted)
        # wchan tells it as well, but not on Linux 5.10, where it is always 0.
        current = Path(f"/proc/self/task/{own}/syscall")
        eventually(lambda: current.read_text().startswith(f"{CLOCK_NANOSLEEP[platform.machine()]} "))
        agent.scrape()  # it has read the beginning
        recording.write_text("0")
        eventually(lambda: recording.read_text() == "1\n")
        signal.pthread_kill(thread, signal.SIGUSR1)
        assert asleep.result() == errno.EINTR
    naps = [other.submit(nap, SLEEPS[0]).result()]
    eventually(lambda: agent.scrape().value("kprobe_duration_seconds_count", probe="sleep") == 1)
    assert lost(agent) == {"unpaired": 1}
    total = agent.scrape().value("kprobe_duration_seconds_sum", probe="sleep")
    assert naps[0][0] <= total <= naps[0][1]


def test_a_pair(start_agent: StartAgent, other: ThreadPoolExecutor) -> None:
    agent = start_agent(f"""
probes:
  - name: nap
    attach:
      pair:
        from: {{to: "tracepoint:syscalls:sys_enter_clock_nanosleep", fetch: {{clock: which_clock}}}}
        to: {{to: "tracepoint:syscalls:sys_exit_clock_nanosleep", fetch: {{return: ret}}}}
        key: tid
    filter: "tid == {other.submit(kernel_tid).result()}"
    duration_buckets: {list(BOUNDS)}
""")
    naps = list(other.map(nap, SLEEPS[:2] * 3))
    metrics = agent.scrape()
    check(metrics, "kprobe_duration_seconds", naps, probe="nap")
    assert metrics.value("kprobe_return_value_count", probe="nap") == 6
    (info,) = metrics.labels("kprobe_info")
    assert info["target"] == (
        "tracepoint:syscalls:sys_enter_clock_nanosleep -> tracepoint:syscalls:sys_exit_clock_nanosleep"
    )
