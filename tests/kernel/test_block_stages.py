"""A chain times the stages of reads through two delaying devices: each takes at least its delay."""

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.delayed_disks import SLACK, delayed, device_number, disk
from tests.vm.kernels import EPROBES

pytestmark = [pytest.mark.needs("kprobe_events"), pytest.mark.needs(EPROBES)]

READS = 10
FIRST, SECOND = 0.040, 0.150

CONFIG = """
probes:
  - name: read
    attach:
      pair:
        from: {{to: "tracepoint:block:block_bio_queue", filter: 'dev == {outer} && comm == "{comm}"'}}
        through: {{inner: {{to: "tracepoint:block:block_bio_queue", filter: dev == {inner}}}}}
        to: {{to: "tracepoint:block:block_bio_complete", filter: dev == {outer}}}
        key: sector
    let: {{rest: duration - inner}}
    metrics:
      - {{histogram: first_seconds, value: inner, buckets: [0.01, 0.02, 0.03, 0.036, 0.04, 0.1]}}
      - {{histogram: second_seconds, value: rest, scale: 1e-9, buckets: [0.05, 0.1, 0.13, 0.146, 0.15]}}
      - {{counter: late_total, where: inner >= {first} && rest >= {second}}}
"""


@pytest.fixture
def devices() -> Iterator[tuple[str, str]]:
    """Yield the outer device, and the inner one below it."""
    with (
        disk() as below,
        delayed("stages-inner", below, SECOND) as inner,
        delayed("stages-outer", inner, FIRST) as outer,
    ):
        yield outer, inner


def test_stages_of_reads(start_agent: StartAgent, devices: tuple[str, str]) -> None:
    outer, inner = devices
    delays = {"first": f"{FIRST - SLACK:.3f}s", "second": f"{SECOND - SLACK:.3f}s"}
    comm = Path("/proc/thread-self/comm").read_text().strip()
    agent = start_agent(
        CONFIG.format(outer=device_number(outer), inner=device_number(inner), comm=comm, **delays)
    )
    page, took = mmap.mmap(-1, mmap.PAGESIZE), 0.0
    file = os.open(outer, os.O_RDONLY | os.O_DIRECT)
    for turn in range(READS):
        begun = time.monotonic()
        os.preadv(file, [page], turn * mmap.PAGESIZE)
        took += time.monotonic() - begun
    os.close(file)
    shown = agent.scrape_until(lambda metrics: metrics.value("kprobe_second_seconds_count") >= READS)
    assert shown.value("kprobe_second_seconds_count") == READS
    buckets = [line for line in agent.get("/metrics").splitlines() if "_seconds_bucket" in line]
    # Ticks that come late lengthen the first stage, and shorten the second one by as much.
    assert shown.value("kprobe_late_total") > READS / 2, "\n".join(buckets)
    first, second = (shown.value(f"kprobe_{name}_seconds_sum") for name in ("first", "second"))
    assert first >= READS * (FIRST - SLACK)
    assert READS * (FIRST + SECOND - SLACK) <= first + second <= took
