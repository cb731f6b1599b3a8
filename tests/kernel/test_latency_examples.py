"""biolatency and runqlat of examples/ tell what bpftrace's tools of these names tell, and what is true.

Both run at once, over the same load. A bucket of bpftrace's `hist()` of microseconds is one of theirs, but
for the bound itself. As Debian 12 ships them, neither tool works on its kernels: what biolatency.bt attaches
to is inlined, and runqlat.bt includes a header of kernels' sources. Besides, runqlat.bt takes the idle tasks
of all CPUs for one task that waits, and leaves out tasks that the kernel preempted.
"""

import mmap
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.agent_process import Metrics
from tests.kernel.conftest import StartAgent
from tests.support.patience import eventually

pytestmark = pytest.mark.needs("kprobe_events")

ROOT = Path(__file__).parents[2]
TOOLS = Path("/usr/sbin")

MENDED = {
    "biolatency": {
        "kprobe:blk_account_io_start,\nkprobe:__blk_account_io_start": "tracepoint:block:block_rq_issue",
        "kprobe:blk_account_io_done,\nkprobe:__blk_account_io_done": "tracepoint:block:block_rq_complete",
        "@start[arg0]": "@start[args->dev, args->sector]",
    },
    "runqlat": {
        "#include <linux/sched.h>": "",
        "args->prev_state == TASK_RUNNING": (
            "args->prev_pid != 0 && (args->prev_state == 0 || args->prev_state == 256)"
        ),
        "if ($ns)": 'if ($ns && args->next_comm == "runqlat_hog")',
    },
}
"""What is replaced in each tool's text."""

ROW = re.compile(r"^\[(\d+)([KMG]?)[],].*?(\d+) \|", re.MULTILINE)
PATIENCE = 30

Buckets = Counter[int]
"""How many, by their bucket's lower bound in microseconds: 0, 1, 2, 4, …"""


class Bpftrace:
    """One of bpftrace's tools, which traces by now."""

    def __init__(self, name: str, directory: Path) -> None:
        text = (TOOLS / f"{name}.bt").read_text()
        for old, new in MENDED[name].items():
            assert old in text, f"another {name}.bt than Debian 12 has it"
            text = text.replace(old, new)
        program, self._log = directory / f"{name}.bt", directory / f"{name}.log"
        program.write_text(text)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(["bpftrace", program], stdout=log, stderr=subprocess.STDOUT)
        eventually(lambda: "Hit Ctrl-C" in self.output() or self._process.poll() is not None, PATIENCE)
        assert self._process.poll() is None, self.output()
        self._ask("\n")  # it says that it traces before it is attached, and answers afterwards

    def output(self) -> str:
        return self._log.read_text()

    def now(self) -> Buckets:
        """What it has counted so far, of which there has to be something."""
        return _rows(self._ask(r"@usecs:.*\|\n\n"))

    def end(self) -> Buckets:
        """End it, unless it has; all that it has counted."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            eventually(self._ended, PATIENCE)
        assert self._process.returncode == 0, self.output()
        return _rows(self.output())

    def _ended(self) -> bool:
        """Whether it has; it heeds SIGINT only if a signal comes while it waits for events."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
            return True
        self._process.send_signal(signal.SIGUSR1)
        return False

    def _ask(self, answer: str) -> str:
        """Have it print its maps; what it printed since, once there is such an answer."""
        seen = len(self.output())
        self._process.send_signal(signal.SIGUSR1)
        eventually(lambda: re.search(answer, self.output()[seen:], re.DOTALL))
        return self.output()[seen:]


def _rows(text: str) -> Buckets:
    rows = ROW.findall(text.rpartition("@usecs:")[2])
    return Counter({int(low) << 10 * " KMG".index(unit or " "): int(count) for low, unit, count in rows})


@pytest.fixture
def bpftrace(tmp_path: Path) -> Iterator[Callable[[str], Bpftrace]]:
    """Starts bpftrace's tools, and ends those that still run."""
    with ExitStack() as stack:

        def start(name: str) -> Bpftrace:
            tool = Bpftrace(name, tmp_path)
            stack.callback(tool.end)
            return tool

        yield start


def buckets(metrics: Metrics, name: str, **labels: str) -> Buckets:
    """A histogram's counts, not cumulated; its bounds are in seconds."""
    every = (one for one in metrics.labels(f"{name}_bucket") if labels.items() <= one.items())
    rows = sorted((float(one["le"]), metrics.value(f"{name}_bucket", **one)) for one in every)
    counts, below, low = Counter[int](), 0.0, 0
    for bound, count in rows:
        counts[low] = int(count - below)
        below, low = count, round(bound * 1e6) if bound < float("inf") else 0
    return +counts


def show(ours: Buckets, theirs: Buckets) -> None:
    print("from µs   agent  bpftrace")
    for low in sorted(ours | theirs):
        print(f"{low:7}  {ours[low]:6}  {theirs[low]:8}")


def example(name: str) -> str:
    return (ROOT / f"examples/{name}.yaml").read_text()


@pytest.fixture
def on_cpu() -> Iterator[Callable[[int], None]]:
    """Binds this thread, and what it starts from now on, to a CPU; in the end it is free again."""
    free = os.sched_getaffinity(0)
    yield lambda cpu: os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, free)


TIMES = 40
BYTES = 4096
LATENCIES = {40_000: 32_768, 150_000: 131_072}
"""Microseconds that a device takes, far from both bounds, and the bucket that they belong to."""


@contextmanager
def null_block(latency: int) -> Iterator[Path]:
    """A device that does nothing, so many microseconds long."""
    options = ["nr_devices=1", "gb=1", "queue_mode=2", "irqmode=2", f"completion_nsec={latency * 1000}"]
    options.append("submit_queues=2")  # a queue for each CPU, on which its interrupts come
    subprocess.run(["modprobe", "null_blk", *options], check=True)
    try:
        yield Path("/dev/nullb0")
    finally:
        eventually(lambda: subprocess.run(["modprobe", "-r", "null_blk"], check=False).returncode == 0)


def write(device: Path) -> None:
    """So many blocks, none beside another one, past the page cache.

    Eight at a time, so that none is begun while others end: a program of bpftrace's misses what happens
    in an interrupt of another one.
    """
    fd = os.open(device, os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, BYTES) as block, ThreadPoolExecutor(8) as pool:
        for some in range(0, TIMES, 8):
            places = [2 * number * BYTES for number in range(some, some + 8)]
            assert list(pool.map(lambda place: os.pwritev(fd, [block], place), places)) == [BYTES] * 8
    os.close(fd)


def test_biolatency(
    start_agent: StartAgent, bpftrace: Callable[[str], Bpftrace], on_cpu: Callable[[int], None]
) -> None:
    """The agent sees every request that the kernel counts, the search for partitions included.

    The agent's threads have a CPU of their own: what interrupts them is not seen. bpftrace sees the same, but
    for a request that begins or ends in an interrupt of one of its programs.
    """
    tool = bpftrace("biolatency")
    on_cpu(0)
    agent = start_agent(example("biolatency"))
    metrics, counted = agent.scrape(), 0
    on_cpu(1)
    for latency in LATENCIES:
        with null_block(latency) as device:
            write(device)
            metrics = agent.scrape()
            counted += completed(device)
    ours, theirs = buckets(metrics, "kprobe_block_io_seconds", device="nullb0"), tool.end()
    show(ours, theirs)
    assert ours.total() == counted
    assert all(theirs[low] <= ours[low] for low in theirs)
    assert theirs.total() >= 0.9 * ours.total()
    # On a busy machine a request may be told late, in a bucket of longer ones, and never too early.
    assert min(ours) == min(LATENCIES.values())
    for bucket in LATENCIES.values():
        assert sum(count for low, count in ours.items() if low >= bucket) >= TIMES
    written = metrics.value("kprobe_block_io_bytes_total", device="nullb0", kind="write")
    assert written == len(LATENCIES) * TIMES * BYTES
    assert metrics.value("kprobe_exporter_events_lost_total", reason="unpaired") == 0


def completed(device: Path) -> int:
    """The reads and writes that the kernel has completed (Documentation/block/stat.rst)."""
    fields = Path(f"/sys/block/{device.name}/stat").read_text().split()
    return int(fields[0]) + int(fields[4])


HOGS = 3
SLICES = 400
ROUNDS = 2000
FINEST = 64
"""Microseconds: shorter waits may be in the next bucket for one of the two."""

FEW = 4 * HOGS
"""Slices: those in which a hog takes its name, and is stopped."""

HOG = "runqlat_hog"
"""The hogs' name in events."""

HOGS_ALONE = f"""
  - name: hogs
    attach:
      pair:
        from:
          - to: tracepoint:sched:sched_switch
            fetch: {{task: prev_pid}}
            filter: "prev_comm == '{HOG}' && (prev_state == 0 || prev_state == 256)"
        to: {{to: "tracepoint:sched:sched_switch", fetch: {{task: next_pid}}, filter: "next_comm == '{HOG}'"}}
        key: task
    metrics:
      - {{histogram: hogs_seconds, value: duration, buckets: {{exp2: {{min: 1e-6, count: 24}}}}}}
"""
"""A probe beside the example's, of the tasks for which the kernel's own account of waits is read."""


class Hog:
    """A process that wants the second CPU for itself."""

    def __init__(self) -> None:
        # What it waited before it had its name is not for the probe: the shell reads its own account then.
        script = f"echo {HOG} >/proc/$$/comm; read -r ran waited slices </proc/$$/schedstat"
        script += "; echo $waited $slices; while :; do :; done"
        self._process = subprocess.Popen(
            ["taskset", "-c", "1", "sh", "-c", script], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        waited, slices = self._process.stdout.readline().split()
        self._before = int(waited) / 1e9, int(slices)

    def waited(self) -> tuple[float, int]:
        """The seconds that it waited for its CPU, and how often it had it: fs/proc/base.c."""
        _, waited, slices = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        return int(waited) / 1e9 - self._before[0], int(slices) - self._before[1]

    def stop(self) -> tuple[float, int]:
        """What it waited until it is stopped, which it waits for as well."""
        self._process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self._process.pid}/stat")
        eventually(lambda: state.read_text().rpartition(") ")[2].startswith("T"), PATIENCE)
        return self.waited()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def ping_pong() -> None:
    """A thread that wakes another one, which wakes it."""
    (read, answer), (reply, ask) = os.pipe(), os.pipe()

    def pong() -> None:
        while ball := os.read(reply, 1):
            os.write(answer, ball)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(pong)
        for _ in range(ROUNDS):
            os.write(ask, b"x")
            os.read(read, 1)
        os.close(ask)
    for fd in (read, answer, reply):
        os.close(fd)


def test_runqlat(start_agent: StartAgent, bpftrace: Callable[[str], Bpftrace]) -> None:
    """Of the hogs all three tell the same: the agent, bpftrace, and the kernel's account of each task.

    Of other tasks they do not: the agent leaves out those that its own threads wake. How many these are
    depends on the machine.
    """
    tool = bpftrace("runqlat")
    agent = start_agent(example("runqlat") + HOGS_ALONE)
    with ExitStack() as stack:
        hogs = [Hog() for _ in range(HOGS)]
        for hog in hogs:
            stack.callback(hog.end)
        ping_pong()
        eventually(lambda: all(hog.waited()[1] >= SLICES for hog in hogs), PATIENCE)
        known = [hog.stop() for hog in hogs]
        theirs = tool.now()
    waits, slices = sum(waited for waited, _ in known), sum(slices for _, slices in known)
    # The agent has had little of the CPU, and catches up now.
    eventually(lambda: agent.scrape().value("kprobe_hogs_seconds_count") >= slices - FEW, PATIENCE)
    after = agent.scrape()
    ours, of_all = buckets(after, "kprobe_hogs_seconds"), buckets(after, "kprobe_run_queue_seconds")
    waited = after.value("kprobe_hogs_seconds_sum")
    show(ours, theirs)
    print(f"the hogs waited {waited:.3f} s; by the kernel's account {waits:.3f} s in {slices} slices")
    assert after.value("kprobe_exporter_events_lost_total", reason="overrun") == 0
    assert ours.total() == pytest.approx(slices, abs=FEW)
    assert waited == pytest.approx(waits, rel=0.02)
    assert ours.total() == pytest.approx(theirs.total(), rel=0.01)
    assert distance(ours, theirs) < 0.03
    # The example has their waits and those of the two threads that woke each other.
    assert of_all.total() >= ours.total() + ROUNDS
    assert after.value("kprobe_run_queue_seconds_sum") > waited


def distance(one: Buckets, other: Buckets) -> float:
    """The largest difference between their shares of what is not below a bound."""

    def share(of: Buckets, bound: int) -> float:
        return sum(count for low, count in of.items() if low >= bound) / of.total()

    return max(abs(share(one, bound) - share(other, bound)) for bound in one | other if bound >= FINEST)
