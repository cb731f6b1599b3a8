"""Examples of block devices and of the page cache."""

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import READ_EVERY
from tests.kernel.ebpf_exporter.counted import TIMES, Grown, calls, present
from tests.support.agent_process import AgentProcess
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
    assert grown.of(metrics, "block_rq_completions_total", **labels) == counted
    transferred = grown.of(metrics, "block_rq_completed_bytes_total", **labels)
    assert transferred == 512 * (fields[2] + fields[6])


def dirtied() -> int:
    """How many pages have become dirty since the start (/proc/vmstat).

    Each CPU keeps some of its counts to itself until the other file is read (mm/vmstat.c).
    """
    Path("/proc/sys/vm/stat_refresh").read_text()
    table = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(table["nr_dirtied"])


OPERATIONS = {
    "page_cache_add": ("filemap_add_folio", "add_to_page_cache_lru"),
    "page_cache_access": ("folio_mark_accessed", "mark_page_accessed"),
    "page_cache_dirty": ("__folio_mark_dirty", "account_page_dirtied"),
    "buffer_dirty": ("mark_buffer_dirty",),
}
"""The functions of Linux 5.16 and later by probe, each before that of older kernels."""


def test_the_page_cache(agent: AgentProcess, device: Path) -> None:
    """Each page is read for the first time, read again, and then written to in part.

    The counts of a shorter and of a longer time enclose the agent's, which may be READ_EVERY old.
    """
    operations = {probe: present(*names) for probe, names in OPERATIONS.items()}
    with calls(*operations.values()) as made:
        longer = made()
        time.sleep(READ_EVERY)
        grown = Grown(agent)
        shorter, pages = made(), dirtied()
        fd = os.open(device, os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no page is read ahead
        places = [(8 + 4 * number) * PAGE for number in range(TIMES)]
        for _ in range(2):
            for place in places:
                assert len(os.pread(fd, 100, place)) == 100
        for place in places:
            os.pwrite(fd, b"x", place)
        least, pages = made(), dirtied() - pages
        time.sleep(READ_EVERY)
        metrics = agent.scrape()
        most = made()
        os.close(fd)
    assert pages >= TIMES
    for probe, function in operations.items():
        counted = least[function] - shorter[function]
        assert counted >= TIMES, function
        seen = grown.of(metrics, "hits_total", probe=probe)
        assert counted <= seen <= most[function] - longer[function], function
