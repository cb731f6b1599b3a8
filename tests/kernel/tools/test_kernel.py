"""The tools of interrupts, functions, memory and locks against known calls and the kernel's own counts."""

import ctypes
import os
import re
import socket
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.tools.harness import Facts, Seen, ToolCase, parametrized, run_tool
from tests.support.trace_process import StartTrace

TIMES = 137
KPROBES = ("kprobe_events",)


def softirqs() -> Counter[str]:
    lines = Path("/proc/softirqs").read_text().splitlines()[1:]
    return Counter({line.split(":")[0].strip(): sum(map(int, line.split(":")[1].split())) for line in lines})


def interrupts() -> Counter[str]:
    """Device interrupts, by the name of their action."""
    found: Counter[str] = Counter()
    for line in Path("/proc/interrupts").read_text().splitlines():
        if match := re.match(r"\s*\d+:((?:\s+\d+)+)\s.*\s(\S+)$", line):
            found[match[2]] += sum(map(int, match[1].split()))
    return found


def packets() -> Facts:
    """Packets over the loopback device, each of which a softirq receives; and reads from a disk."""
    before, interrupted = softirqs(), interrupts()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        for _ in range(500):
            one.sendto(b"x", one.getsockname())
            one.recv(1)
    for path in list(Path("/usr/lib").glob("*"))[:200]:
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.read(4096)
    return {"softirqs": dict(softirqs() - before), "interrupts": dict(interrupts() - interrupted)}


def received(seen: Seen) -> None:
    """The tool runs longer than the load."""
    for name in ("NET_RX",):
        count = seen.total("count", softirq=name)
        assert count >= seen.facts["softirqs"][name]
        assert count <= 1.2 * seen.facts["softirqs"][name] + 20
    assert seen.total("total_usecs", softirq="NET_RX") > 0


def interrupted(seen: Seen) -> None:
    for name, number in seen.facts["interrupts"].items():
        assert seen.total("count", hardirq=name) >= number - 1, name


def softirq_histograms(seen: Seen) -> None:
    [found] = seen.histograms(softirq="NET_RX")
    assert found["count"] >= seen.facts["softirqs"]["NET_RX"]


def parents() -> Facts:
    for _ in range(TIMES):
        os.getppid()
    return {}


def counted(seen: Seen) -> None:
    assert [row["count"] for row in seen.rows] == [TIMES]


def stacks(seen: Seen) -> None:
    assert sum(row["number"] for row in seen.rows) == TIMES


def sleeps() -> Facts:
    libc = ctypes.CDLL(None)
    for _ in range(10):
        libc.usleep(1000)
        libc.usleep(30_000)
    return {}


def latencies(seen: Seen) -> None:
    [found] = seen.histograms()
    assert found["count"] == 20
    assert sum(one["count"] for one in found["buckets"] if one["le"] >= 0.03) >= 10
    assert 0.31 <= found["sum"] < 3


def of_the_function(seen: Seen) -> None:
    [found] = seen.histograms(function="usleep")
    assert found["count"] == 20


def only_long(seen: Seen) -> None:
    rows = [(row["func"], row["rval"], row["arg1"], row["lat_ms"] >= 30) for row in seen.own]
    assert [row for row in rows if row[2] == "0x7530"] == [("usleep", 0, "0x7530", True)] * 10
    assert all(row["lat_ms"] > 20 for row in seen.rows)


def syncs() -> Facts:
    with open("/dev/shm/kprobe_exporter_test", "wb") as file:
        for _ in range(TIMES):
            os.fsync(file.fileno())
    Path("/dev/shm/kprobe_exporter_test").unlink()
    return {}


def functions(seen: Seen) -> None:
    assert seen.total("count", func="vfs_fsync_range") == TIMES


def compaction() -> Facts:
    zones, name = [], ""
    for line in Path("/proc/zoneinfo").read_text().splitlines():
        if match := re.match(r"Node (\d+), zone\s+(\w+)", line):
            name = match[2]
        if (match := re.match(r"\s+present\s+(\d+)", line)) and int(match[1]):
            zones.append(name)
    Path("/proc/sys/vm/compact_memory").write_text("1")
    return {"zones": zones}


def compacted(seen: Seen) -> None:
    assert [(row["zone"], row["order"], row["mode"]) for row in seen.own] == [
        (name, -1, "sync") for name in seen.facts["zones"]
    ]
    assert all(row["lat_ms"] > 0 and row["status"] for row in seen.own)


def stalls() -> int:
    numbers = re.findall(r"^allocstall\w* (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return sum(map(int, numbers))


def pressure() -> Facts:
    """Ask for more huge pages than there is memory: each waits for pages to be reclaimed."""
    before = stalls()
    file = Path("/proc/sys/vm/nr_hugepages")
    own = file.read_text()
    file.write_text("100000")
    file.write_text(own)
    return {"stalls": stalls() - before}


def reclaimed(seen: Seen) -> None:
    assert seen.facts["stalls"] > 0
    assert len(seen.rows) == pytest.approx(seen.facts["stalls"], abs=2)
    assert seen.own
    assert all(row["lat_ms"] >= 0 and row["pages"] >= 0 for row in seen.own)


def pipes() -> Facts:
    reader, writer = os.pipe()
    for _ in range(TIMES):
        os.write(writer, b"x")
        os.read(reader, 1)
    return {}


def locked(seen: Seen) -> None:
    """The kernel's function that writes to a pipe takes the pipe's lock once."""
    [found] = [row for row in seen.rows if row["caller"].endswith("pipe_write")]
    assert found["count"] == pytest.approx(TIMES, abs=3)
    assert 0 < found["total_wait_us"] < found["total_hold_us"] + found["total_wait_us"]
    assert 0 < found["avg_hold_us"] < 10_000


CASES = [
    ToolCase("softirqs -C", packets, received),
    ToolCase("softirqs -d", packets, softirq_histograms),
    ToolCase("hardirqs -C", packets, interrupted),
    ToolCase("funccount c:getppid -p {pid}", parents, counted),
    ToolCase("funccount vfs_fsync* -p {pid}", syncs, functions, KPROBES),
    ToolCase("stackcount t:syscalls:sys_enter_getppid -p {pid}", parents, stacks),
    ToolCase("funclatency c:usleep -p {pid}", sleeps, latencies),
    ToolCase("funclatency c:usleep -u -F -p {pid}", sleeps, of_the_function),
    ToolCase("funcslower c:usleep -m 20 -a", sleeps, only_long),
    ToolCase("compactsnoop", compaction, compacted, KPROBES),
    ToolCase("drsnoop", pressure, reclaimed),
    ToolCase("klockstat -p {pid}", pipes, locked, KPROBES),
]


@parametrized(CASES)
def test_a_tool(case: ToolCase, trace: StartTrace) -> None:
    case.compare(run_tool(trace, case.command, case.load))
