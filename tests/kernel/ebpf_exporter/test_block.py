"""Examples of block devices and of the page cache."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.ebpf_exporter.counted import TIMES, Grown
from tests.support.block_devices import completed, null_block, statistics

pytestmark = pytest.mark.needs("kprobe_events")

EXAMPLES = ("biolatency", "cachestat", "complex-value")

PAGE = mmap.PAGESIZE
LATENCY = 2000
"""Microseconds that the device takes for each request."""


@pytest.fixture
def device() -> Iterator[Path]:
    with null_block(LATENCY) as device:
        yield device


def test_requests_and_their_bytes(grown: Grown, device: Path) -> None:
    """The kernel's own statistics of the device count the same, the search for partitions included."""
    fd = os.open(device, os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, PAGE) as page:
        for number in range(TIMES):
            os.pwritev(fd, [page], 2 * number * PAGE)
    os.close(fd)
    metrics, counted = grown.agent.scrape(), completed(device)
    fields = statistics(device)
    labels = {"device": device.name}
    assert grown.of(metrics, "bio_latency_seconds_count", operation="write", **labels) == TIMES
    assert grown.of(metrics, "bio_latency_seconds_sum", operation="write", **labels) >= TIMES * LATENCY / 1e6
    assert grown.of(metrics, "bio_latency_seconds_bucket", le="0.001024", **labels) == 0
    assert grown.of(metrics, "bio_latency_seconds_count", **labels) == counted
    assert (
        sum(metrics.total("kprobe_block_rq_completions_total", device=one) for one in names(device))
        == counted
    )
    transferred = sum(
        metrics.total("kprobe_block_rq_completed_bytes_total", device=one) for one in names(device)
    )
    assert transferred == 512 * (fields[2] + fields[6])


def names(device: Path) -> list[str]:
    number = device.stat().st_rdev
    return [f"{os.major(number)}:{os.minor(number)}"]


def dirtied() -> int:
    """How many pages have become dirty since the start (/proc/vmstat)."""
    table = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(table["nr_dirtied"])


def test_the_page_cache(grown: Grown, device: Path) -> None:
    """Each page is read for the first time, read again, and then written to in part."""
    before = dirtied()
    fd = os.open(device, os.O_RDWR)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no page is read ahead
    places = [(8 + 4 * number) * PAGE for number in range(TIMES)]
    for _ in range(2):
        for place in places:
            assert len(os.pread(fd, 100, place)) == 100
    read = grown.agent.scrape()
    for place in places:
        os.pwrite(fd, b"x", place)
    written, dirty = grown.agent.scrape(), dirtied() - before
    os.close(fd)
    assert TIMES <= grown.of(read, "hits_total", probe="page_cache_add") <= 2 * TIMES
    assert 2 * TIMES <= grown.of(read, "hits_total", probe="page_cache_access") <= 4 * TIMES
    assert TIMES <= dirty < 2 * TIMES
    assert TIMES <= grown.of(written, "hits_total", probe="page_cache_dirty") <= dirty + TIMES // 2
    assert TIMES <= grown.of(written, "hits_total", probe="buffer_dirty") <= 2 * TIMES
