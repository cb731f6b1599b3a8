"""Values are those that the traced program gave, with the width, sign and order that it gave them."""

import ctypes
import errno
import os
import platform
import subprocess
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.compiling import compiled
from tests.support.kernel_ids import kernel_tid
from tests.vm.kernels import HIST

SYS_OPENAT = {"x86_64": 257, "aarch64": 56}[platform.machine()]
LIBC = ctypes.CDLL(None, use_errno=True)
TIMES = 21
DFD = -77
REGISTERS = (DFD % (1 << 32), DFD % (1 << 64))
"""Both hold the int DFD: a program may leave anything in the register's upper half."""
BELOW_4_GIB = (1 << 32) - 100


def openat() -> None:
    for register in REGISTERS:
        for _ in range(TIMES):
            LIBC.syscall(SYS_OPENAT, ctypes.c_uint64(register), b"nonexistent", 0, 0)


@pytest.mark.parametrize("source", ["binary", "text"])
def test_an_int_argument_of_a_system_call(start_agent: StartAgent, source: str) -> None:
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: opened
    attach: tracepoint:syscalls:sys_enter_openat
    fetch: {{dfd: dfd}}
    filter: "common_pid == {kernel_tid()}"
    metrics:
      - counter: opened_total
        labels: {{dfd: dfd, from: {{field: dfd, decode: {{map: {{{DFD}: here}}}}}}}}
      - counter: chosen_total
        where: "dfd == {DFD}"
  - name: filtered
    attach: tracepoint:syscalls:sys_enter_openat
    fetch: {{dfd: dfd}}
    filter: "dfd == {DFD} && common_pid == {kernel_tid()}"
    metrics: [{{counter: filtered_total}}]
""")
    openat()
    metrics = agent.scrape()
    known = [labels for labels in metrics.labels("kprobe_opened_total") if labels["from"] == "here"]
    assert known == [{"dfd": str(DFD), "from": "here"}]
    assert metrics.value("kprobe_opened_total", **known[0]) == 2 * TIMES
    assert metrics.value("kprobe_chosen_total") == 2 * TIMES
    assert metrics.value("kprobe_filtered_total") == 2 * TIMES


@pytest.mark.needs(HIST)
def test_an_int_argument_that_the_kernel_counts_by(start_agent: StartAgent) -> None:
    agent = start_agent(f"""
probes:
  - name: opened
    attach: tracepoint:syscalls:sys_enter_openat
    fetch: {{dfd: dfd}}
    filter: "dfd == {DFD} && common_pid == {kernel_tid()}"
    aggregate: kernel
    metrics: [{{counter: opened_total, labels: [dfd]}}, {{counter: sum_total, value: dfd, where: "dfd < 0"}}]
""")
    openat()
    metrics = agent.scrape()
    assert metrics.labels("kprobe_opened_total") == [{"dfd": str(DFD)}]
    assert metrics.value("kprobe_opened_total", dfd=str(DFD)) == 2 * TIMES
    assert metrics.value("kprobe_exporter_events_lost_total", reason="negative") == 2 * TIMES


@pytest.mark.parametrize("source", ["binary", "text"])
@pytest.mark.parametrize("attach", ["syscall:lseek", "tracepoint:syscalls:sys_enter_lseek"])
def test_a_negative_offset_of_a_system_call(start_agent: StartAgent, source: str, attach: str) -> None:
    """The kernel's own format calls each argument unsigned."""
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: seek
    attach: {attach}
    fetch: {{offset: offset}}
    filter: "offset < 0 && common_pid == {kernel_tid()}"
    metrics:
      - {{counter: seeks_total, labels: [offset]}}
      - {{counter: below_total, where: "offset < -9"}}
      - {{histogram: offsets, value: offset, buckets: [-10, 0]}}
""")
    file = os.memfd_create("sought")
    os.ftruncate(file, 100)
    for offset in (-10, -1, 0):
        for _ in range(TIMES):
            os.lseek(file, offset, os.SEEK_END)
    os.close(file)
    metrics = agent.scrape()
    assert metrics.value("kprobe_seeks_total", offset="-10") == TIMES
    assert metrics.value("kprobe_seeks_total", offset="-1") == TIMES
    assert metrics.value("kprobe_below_total") == TIMES
    assert metrics.value("kprobe_offsets_sum") == -11 * TIMES
    assert metrics.value("kprobe_offsets_bucket", le="-10.0") == TIMES


def lseek() -> None:
    for _ in range(TIMES):
        assert LIBC.lseek64(-1, ctypes.c_int64(0), 0) == -1
    file = os.memfd_create("sought")
    for _ in range(TIMES):
        assert os.lseek(file, BELOW_4_GIB, os.SEEK_SET) == BELOW_4_GIB
    os.close(file)


@pytest.mark.parametrize("source", ["binary", "text"])
def test_the_long_of_a_system_call_is_whole(start_agent: StartAgent, source: str) -> None:
    """An offset just below 4 GiB is no error."""
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: seek
    attach: syscall:lseek
    filter: "common_pid == {kernel_tid()}"
    metrics:
      - {{counter: seeks_total, labels: [return]}}
      - {{counter: outcomes_total, labels: {{errno: {{field: return, decode: errno}}}}}}
""")
    lseek()
    metrics = agent.scrape()
    assert metrics.value("kprobe_seeks_total", **{"return": str(-errno.EBADF)}) == TIMES
    assert metrics.value("kprobe_seeks_total", **{"return": str(BELOW_4_GIB)}) == TIMES
    assert metrics.value("kprobe_outcomes_total", errno="EBADF") == TIMES
    assert {one["errno"] for one in metrics.labels("kprobe_outcomes_total")} == {"EBADF", "ok"}
    assert metrics.value("kprobe_return_errors_total", probe="seek", errno="EBADF") == TIMES
    assert [one["errno"] for one in metrics.labels("kprobe_return_errors_total")] == ["EBADF"]


SIZES = """
__attribute__((noinline)) long size(long of) { __asm__(""); return of; }
int main(void) {
    for (int number = 0; number < 21; number++)
        if (size((1L << 32) - 22) == 1 || size(-22) == 1 || size(64) == 1) return 1;
    return 0;
}
"""


@pytest.mark.needs("uprobe_events")
@pytest.mark.parametrize(("declared", "errors"), [(", returns: long", 1), ("", 2)])
def test_a_long_of_a_program(start_agent: StartAgent, tmp_path: Path, declared: str, errors: int) -> None:
    """Without a declared type 4294967274 is taken for -22 of an int."""
    program = compiled(tmp_path / "program", SIZES)
    agent = start_agent(f"""
global: {{native_histograms: true}}
probes:
  - name: size
    attach: "uretprobe:{program}:size"{declared.replace(", ", chr(10) + "    ")}
    metrics: [{{histogram: sizes, value: return, buckets: [-1, 100]}}]
""")
    subprocess.run([program], check=True)
    metrics = agent.scrape()
    assert metrics.value("kprobe_return_errors_total", probe="size", errno="-22") == errors * TIMES
    assert metrics.value("kprobe_return_value_count", probe="size") == (3 - errors) * TIMES
    assert metrics.value("kprobe_sizes_bucket", le="-1.0") == errors * TIMES


@pytest.mark.parametrize("source", ["binary", "text"])
def test_another_return_type_of_a_system_call(start_agent: StartAgent, source: str) -> None:
    """It is a part of the long, also where the kernel cannot filter by it."""
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: seek
    attach: tracepoint:syscalls:sys_exit_lseek
    fetch: {{return: ret}}
    returns: u32
    filter: "return > 4000000000 && common_pid == {kernel_tid()}"
    metrics: [{{counter: seeks_total, labels: [return]}}]
""")
    lseek()
    metrics = agent.scrape()
    assert metrics.value("kprobe_seeks_total", **{"return": str(-errno.EBADF % (1 << 32))}) == TIMES
    assert metrics.value("kprobe_seeks_total", **{"return": str(BELOW_4_GIB)}) == TIMES
