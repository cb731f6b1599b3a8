"""What the benchmarks share: the machine they run on, a private instance, a workload, the agent's pieces."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.mount import mounted


def conditions() -> str:
    """Kernel, processor and date, for the line above a table."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(names, platform.machine())
    cpus = len(os.sched_getaffinity(0))
    kernel, python = f"Linux {platform.release()}", f"Python {platform.python_version()}"
    return f"{kernel}, {processor}, {cpus} CPUs, {python}, {datetime.now(UTC):%Y-%m-%d}."


@contextmanager
def instance(name: str, buffer_kib: int) -> Iterator[Instance]:
    """A tracefs instance of its own, not recording yet, removed at the end."""
    with mounted(None) as root, Instance.acquire(MountedTracefs(root), name) as made:
        made.set_up(buffer_kib, record_tgid=False)
        made.write("tracing_on", "0")
        yield made
