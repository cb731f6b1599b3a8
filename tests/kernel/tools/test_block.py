"""The tools of disks and files against a load that knows each request, and the kernel's own counts."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kprobe_exporter.trace.run_tool import meminfo
from tests.kernel.tools.harness import Facts, Seen, ToolCase, ext4, parametrized, run_tool, slow_disk
from tests.support.block_devices import completed
from tests.support.trace_process import StartTrace

BYTES = 4096
DISK: list[Path] = []
"""The device under test: the loads are functions without arguments."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    with slow_disk(tmp_path_factory.mktemp("disk")) as found:
        DISK[:] = [found[0]]
        yield found


def requests() -> Facts:
    """Ten writes of 4 KiB and five of 64 KiB, one after the other and none adjacent to another one."""
    [device] = DISK
    before = completed(device)
    sizes = [BYTES] * 10 + [16 * BYTES] * 5
    fd = os.open(device, os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, 16 * BYTES) as block:
        for number, size in enumerate(sizes):
            with memoryview(block) as view:
                assert os.pwritev(fd, [view[:size]], number << 20) == size
    after = completed(device)
    os.close(fd)
    return {"sizes": sizes, "completed": after - before, "latency": 0}


def shown_one_by_one(seen: Seen) -> None:
    """Linux 6.1 lets a kernel's thread issue a request that a scheduler queued: PID may be that one's."""
    rows = [(row["t"], row["sector"], row["bytes"], row["disk"]) for row in seen.rows]
    expected = [("W", number << 11, size) for number, size in enumerate(seen.facts["sizes"])]
    assert rows == [(*row, DISK[0].name) for row in expected]


def queued(seen: Seen) -> None:
    shown_one_by_one(seen)
    assert len(seen.own) == len(seen.rows)
    waits = [row["que_ms"] for row in seen.own]  # in whole microseconds, which a fast disk needs less than
    assert 0 <= min(waits) <= max(waits) < 1000
    assert sum(waits) > 0


def by_process(seen: Seen) -> None:
    own = {"disk": DISK[0].name, "d": "W"}
    assert seen.total("i_o", **own) == len(seen.facts["sizes"])
    assert seen.total("kbytes", **own) == sum(seen.facts["sizes"]) / 1024


def all_counted(seen: Seen) -> None:
    found = seen.histograms(disk=DISK[0].name)
    assert sum(one["count"] for one in found) == seen.facts["completed"] == len(seen.facts["sizes"])


def of_flags(seen: Seen) -> None:
    found = [one for one in seen.histograms() if one["labels"]["flags"].startswith("W")]
    assert sum(one["count"] for one in found) == len(seen.facts["sizes"])


def sizes(seen: Seen) -> None:
    """Other disks may be busy as well."""
    found = [bucket for one in seen.histograms() for bucket in one["buckets"]]
    counts = {le: sum(one["count"] for one in found if one["le"] == le) for le in (4096, 65536)}
    assert (counts[4096] >= 10, counts[65536] >= 5) == (True, True)


DISK_CASES = [
    ToolCase("biosnoop --disk {disk}", requests, shown_one_by_one),
    ToolCase("biosnoop -Q --disk {disk}", requests, queued, ("events/block/block_io_start",)),
    ToolCase("biotop --disk {disk} -i 0.5", requests, by_process),
    ToolCase("biolatency -D", requests, all_counted),
    ToolCase("biolatency -Q -D", requests, all_counted, ("events/block/block_io_start",)),
    ToolCase("biolatency -F --disk {disk}", requests, of_flags),
    ToolCase("bitesize", requests, sizes),
]


@parametrized(DISK_CASES)
def test_a_tool(case: ToolCase, trace: StartTrace, disk: tuple[Path, int]) -> None:
    device, latency = disk
    seen = run_tool(trace, case.command, case.load, disk=device.name)
    case.compare(seen)
    for row in seen.rows if "histograms" not in seen.objects[0] else []:
        if "lat_ms" in row:
            assert row["lat_ms"] >= latency / 1000
    for one in seen.histograms(disk=device.name) if case.command.endswith("-D") else []:
        assert min(bucket["le"] for bucket in one["buckets"]) * 1e6 >= latency


PAGES = 1024
FILE: list[Path] = []


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of ext4 that is not in the page cache."""
    with ext4(tmp_path_factory.mktemp("ext4")) as directory:
        found = directory / "some_file"
        found.write_bytes(bytes(PAGES * mmap.PAGESIZE))
        fd = os.open(found, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        FILE[:] = [found]
        yield found


def reads() -> Facts:
    """Read each page of a file twice, of which none is in the page cache at first."""
    fd = os.open(FILE[0], os.O_RDONLY)
    for _ in range(2):
        for page in range(PAGES):
            os.pread(fd, mmap.PAGESIZE, page * mmap.PAGESIZE)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return {"cached": meminfo()["meminfo_cached"]}


def cached(seen: Seen) -> None:
    """Of two reads of a page, one finds it. Readahead may add some pages behind the file's end."""
    assert seen.total("misses") == pytest.approx(PAGES, rel=0.1)
    assert seen.total("hits") == pytest.approx(PAGES, rel=0.1)
    assert all(row["hitratio"] is None or 0 <= row["hitratio"] <= 100 for row in seen.rows)


def cached_at_least(seen: Seen) -> None:
    """The numbers of all processes."""
    assert seen.total("misses") >= 0.9 * PAGES
    assert seen.total("hits") >= 0.9 * PAGES
    assert seen.rows[-1]["cached_mb"] == pytest.approx(seen.facts["cached"] / (1 << 20), rel=0.2)


TIMES = 37


def file_calls() -> Facts:
    """Open, write, read and sync a file, each so often, and make files."""
    for number in range(TIMES):
        os.mknod(FILE[0].with_name(f"node{number}"), 0o600)
    for _ in range(TIMES):
        fd = os.open(FILE[0], os.O_RDWR)
        os.pwrite(fd, b"x" * 100, 8192)
        os.pread(fd, 200, 16384)
        os.fsync(fd)
        os.close(fd)
    for number in range(TIMES):
        FILE[0].with_name(f"node{number}").unlink()
    return {}


def rates(seen: Seen) -> None:
    """Other processes make calls as well, but none of these two."""
    totals = {
        key: sum(row[key] * row["seconds"] for row in seen.rows) for key in seen.rows[0] if key.endswith("_s")
    }
    assert totals["fsync_s"] == pytest.approx(TIMES, abs=3)
    assert totals["create_s"] == pytest.approx(TIMES, abs=1)
    assert all(totals[key] >= TIMES - 1e-6 for key in ("read_s", "write_s", "open_s"))


def operations(seen: Seen) -> None:
    rows = [(row["t"], row["bytes"], row["off_kb"], row["filename"]) for row in seen.own]
    once = [("O", 0, None), ("W", 100, 8), ("R", 200, 16), ("S", 0, None)]
    assert rows == [(*row, FILE[0].name) for row in once] * TIMES


def only_slow(seen: Seen) -> None:
    assert all(row["lat_ms"] > 1 for row in seen.rows)


def distributed(seen: Seen) -> None:
    found = {one["labels"]["operation"]: one["count"] for one in seen.histograms()}
    assert found == dict.fromkeys(("read", "write", "open", "fsync"), TIMES)


KPROBES = ("kprobe_events",)
FILE_CASES = [
    ToolCase("cachestat -i 0.5 -p {pid}", reads, cached, KPROBES),
    ToolCase("cachestat -i 0.5", reads, cached_at_least, KPROBES),
    ToolCase("vfsstat -i 0.5", file_calls, rates, KPROBES),
    ToolCase("fsslower 0 -p {pid}", file_calls, operations, KPROBES),
    ToolCase("ext4slower 1", file_calls, only_slow, KPROBES),
    ToolCase("fsdist -p {pid}", file_calls, distributed, KPROBES),
]


@parametrized(FILE_CASES)
def test_a_tool_of_files(case: ToolCase, trace: StartTrace, file: Path) -> None:
    case.compare(run_tool(trace, case.command, case.load))


CASES = [*DISK_CASES, *FILE_CASES]
