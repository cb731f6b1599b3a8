"""biolatency and runqlat of examples/ agree with bpftrace's tools of these names, and with the kernel.

Both run at once, over the same load. The buckets of bpftrace's `hist()` of microseconds are those of the
examples, except for values on a bound. As Debian 12 ships them, neither tool works on its kernels: the
functions to which biolatency.bt attaches are inlined, and runqlat.bt includes a header of kernel sources.
Besides, runqlat.bt treats the idle tasks of all CPUs as one waiting task, and omits preempted tasks.
"""

import mmap
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import Metrics
from tests.support.block_devices import completed, null_block
from tests.support.bpftrace_process import end, histogram
from tests.support.patience import eventually, patience

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
        "if ($ns)": "if ($ns && cpu == 1)",
    },
}
"""The replacements in each tool's text. Only waits for CPU 1 are compared: see `test_runqlat`."""

TYPES = "#define dev_t unsigned int\n#define sector_t unsigned long\n#define pid_t int\n"
"""What bpftrace otherwise knows from BTF, which it does not read on Linux 5.10."""

END_OF_A_WAIT = 'to: {to: "tracepoint:sched:sched_switch", fetch: {task: next_pid}'
"""In examples/runqlat.yaml."""

PATIENCE = 30

Buckets = Counter[int]
"""Counts by their bucket's lower bound in microseconds: 0, 1, 2, 4, …"""


class Bpftrace:
    """A running tool of bpftrace, which traces as soon as the constructor returns."""

    def __init__(self, name: str, directory: Path) -> None:
        text = (TOOLS / f"{name}.bt").read_text()
        for old, new in MENDED[name].items():
            assert old in text, f"another {name}.bt than Debian 12 has it"
            text = text.replace(old, new)
        program, self._log = directory / f"{name}.bt", directory / f"{name}.log"
        information = subprocess.run(
            ["bpftrace", "--info"], capture_output=True, text=True, check=True
        ).stdout
        program.write_text(text if "btf: yes" in information else TYPES + text)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(["bpftrace", program], stdout=log, stderr=subprocess.STDOUT)
        eventually(lambda: "Hit Ctrl-C" in self.output() or self._process.poll() is not None, PATIENCE)
        assert self._process.poll() is None, self.output()
        self._ask("\n")  # it announces tracing before it has attached, and answers only then

    def output(self) -> str:
        return self._log.read_text()

    def now(self) -> Buckets:
        """Return its counts so far; wait until there are any."""
        return _rows(self._ask(r"@usecs:.*\|\n\n"))

    def end(self) -> Buckets:
        """End the tool if it still runs; return all its counts."""
        end(self._process, patience(PATIENCE))
        assert self._process.returncode == 0, self.output()
        return _rows(self.output())

    def _ask(self, answer: str) -> str:
        """Have the tool print its maps; return its new output once that matches ``answer``."""
        seen = len(self.output())
        self._process.send_signal(signal.SIGUSR1)
        eventually(lambda: re.search(answer, self.output()[seen:], re.DOTALL))
        return self.output()[seen:]


def _rows(text: str) -> Buckets:
    return histogram(text.rpartition("@usecs:")[2])


@pytest.fixture
def bpftrace(tmp_path: Path) -> Iterator[Callable[[str], Bpftrace]]:
    """A function that starts a tool of bpftrace; tools that still run are ended at teardown."""
    with ExitStack() as stack:

        def start(name: str) -> Bpftrace:
            tool = Bpftrace(name, tmp_path)
            stack.callback(tool.end)
            return tool

        yield start


def buckets(metrics: Metrics, name: str, **labels: str) -> Buckets:
    """Return a histogram's counts, not cumulative; its bounds are in seconds."""
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


TIMES = 40
BYTES = 4096
LATENCIES = {40_000: 32_768, 150_000: 131_072}
"""A device's latencies in microseconds, far from both bounds of their bucket, and this bucket."""


def write(device: Path) -> None:
    """Write TIMES blocks, none adjacent to another one, past the page cache.

    Eight are written at a time, so that none begins while others end: a bpftrace program misses events in
    interrupts of another bpftrace program.
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

    The agent's threads have their own CPU, because events in interrupts of them are not recorded. bpftrace
    sees the same requests, except those that begin or end in an interrupt of one of its programs.
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
    # On a busy machine a request may complete late, in a higher bucket, but never too early.
    assert min(ours) == min(LATENCIES.values())
    for bucket in LATENCIES.values():
        assert sum(count for low, count in ours.items() if low >= bucket) >= TIMES
    written = metrics.value("kprobe_block_io_bytes_total", device="nullb0", kind="write")
    assert written == len(LATENCIES) * TIMES * BYTES
    assert metrics.value("kprobe_exporter_events_lost_total", reason="unpaired") == 0


HOGS = 3
SLICES = 400
ROUNDS = 2000
FINEST = 512
"""Microseconds. Under emulation the probes of each tool lengthen a wait by some tens of them, so shorter
waits may be in the next bucket for one of the two."""


class Hog:
    """A process that wants the second CPU for itself."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["taskset", "-c", "1", "sh", "-c", "while :; do :; done"])

    def waited(self) -> tuple[float, int]:
        """The seconds that it waited for its CPU, and how often it had it: fs/proc/base.c."""
        _, waited, slices = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        return int(waited) / 1e9, int(slices)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def ping_pong() -> None:
    """Let two threads wake each other in turn, ROUNDS times."""
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


def test_runqlat(
    start_agent: StartAgent, bpftrace: Callable[[str], Bpftrace], on_cpu: Callable[[int], None]
) -> None:
    """Both show the same distribution, and the waits that the kernel itself accounts for are among them.

    Compared are the waits for CPU 1; the agent and bpftrace run on CPU 0. The agent records no switch from
    one of its own threads, and bpftrace misses what happens on a CPU while one of its programs runs there.
    """
    on_cpu(0)
    tool = bpftrace("runqlat")
    text = example("runqlat")
    assert text.count(END_OF_A_WAIT) == 1
    agent = start_agent(text.replace(END_OF_A_WAIT, f'{END_OF_A_WAIT}, filter: "cpu == 1"'))
    name = "kprobe_run_queue_seconds"
    before = agent.scrape(), tool.now()
    on_cpu(1)
    hogs = [Hog() for _ in range(HOGS)]
    try:
        ping_pong()
        eventually(lambda: all(hog.waited()[1] >= SLICES for hog in hogs), PATIENCE)
        known = sum(hog.waited()[0] for hog in hogs)
    finally:
        for hog in hogs:
            hog.end()
    theirs = tool.now() - before[1]
    begun = before[0].value(f"{name}_sum")
    eventually(lambda: agent.scrape().value(f"{name}_sum") - begun > known, PATIENCE)
    after = agent.scrape()
    ours = buckets(after, name) - buckets(before[0], name)
    show(ours, theirs)
    print(f"waited {after.value(f'{name}_sum') - begun:.3f} s, the hogs {known:.3f} s")
    assert ours.total() == pytest.approx(theirs.total(), rel=0.05)
    assert distance(ours, theirs) < 0.02


def distance(one: Buckets, other: Buckets) -> float:
    """Return the largest difference between the shares of counts at or above a bound, from FINEST on."""

    def share(of: Buckets, bound: int) -> float:
        return sum(count for low, count in of.items() if low >= bound) / of.total()

    return max(abs(share(one, bound) - share(other, bound)) for bound in one | other if bound >= FINEST)
