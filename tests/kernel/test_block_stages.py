"""A chain times the stages of reads through two delaying devices: each takes at least its delay."""

import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.patience import eventually
from tests.vm.kernels import EPROBES

pytestmark = [pytest.mark.needs("kprobe_events"), pytest.mark.needs(EPROBES)]

READS = 10
FIRST, SECOND = 0.040, 0.150
SLACK = 0.02
"""Seconds by which a delay may be shorter: it is counted in ticks, and a busy emulated machine makes up for
several late ones at once."""

WITHOUT_UDEV = {**os.environ, "DM_DISABLE_UDEV": "1"}

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


@contextmanager
def delayed(name: str, below: str, seconds: float) -> Iterator[str]:
    """Yield a device that passes each request on to the one below it after a delay."""
    status = Path(below).stat()
    block = Path(f"/sys/dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
    sectors = (block / "size").read_text().strip()
    table = f"0 {sectors} delay {below} 0 {1000 * seconds:.0f}"
    subprocess.run(["dmsetup", "create", name, "--table", table], check=True, env=WITHOUT_UDEV)
    try:
        yield f"/dev/mapper/{name}"
    finally:
        eventually(partial(succeeds, "dmsetup", "remove", name))


def succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, env=WITHOUT_UDEV).returncode == 0


@pytest.fixture
def devices() -> Iterator[tuple[str, str]]:
    """Yield the outer device, and the inner one below it."""
    with ExitStack() as stack:
        for module, *options in (("null_blk", "nr_devices=1", "gb=1"), ("dm_delay",)):
            subprocess.run(["modprobe", module, *options], check=True)
            stack.callback(eventually, partial(succeeds, "modprobe", "-qr", module))
        inner = stack.enter_context(delayed("stages-inner", "/dev/nullb0", SECOND))
        yield stack.enter_context(delayed("stages-outer", inner, FIRST)), inner


def number(device: str) -> int:
    """Return a device's number as the kernel has it in its tracepoints (MKDEV of include/linux/kdev_t.h)."""
    found = Path(device).stat().st_rdev
    return os.major(found) << 20 | os.minor(found)


def test_stages_of_reads(start_agent: StartAgent, devices: tuple[str, str]) -> None:
    outer, inner = devices
    delays = {"first": f"{FIRST - SLACK:.3f}s", "second": f"{SECOND - SLACK:.3f}s"}
    comm = Path("/proc/thread-self/comm").read_text().strip()
    agent = start_agent(CONFIG.format(outer=number(outer), inner=number(inner), comm=comm, **delays))
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
