"""What the agent counted since a moment, and what the kernel counted itself in its own files."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kprobe_exporter.tracefs.files import MountedTracefs
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.patience import eventually
from tests.support.private_tracefs import TRACEFS

DIRECTORY = Path(__file__).parents[3] / "examples/ebpf_exporter"

TIMES = 23

OWN = "kp_counted"
"""The group and the instance of `calls`."""


class Grown:
    """Calling it returns by how much a sample grew, summed over all label sets that have these labels."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self._before = agent.scrape()

    def __call__(self, name: str, **labels: str) -> float:
        return self.of(self.agent.scrape(), name, **labels)

    def of(self, metrics: Metrics, name: str, **labels: str) -> float:
        name = f"kprobe_{name}"
        return metrics.total(name, **labels) - self._before.total(name, **labels)

    def until(self, least: float, name: str, **labels: str) -> float:
        """Return the growth once it is at least this: sums of the kernel are read at most once a moment."""
        seen = [0.0]

        def enough() -> bool:
            seen.append(self(name, **labels))
            return seen[-1] >= least

        try:
            eventually(enough, 5)
        except AssertionError:
            raise AssertionError(f"{name}{labels} grew by {seen[-1]}, not by {least}") from None
        return seen[-1]


def network(file: str, group: str, *names: str) -> int:
    """Return the sum of counters of /proc/net: ``netstat`` and ``snmp`` have a line of names for a group."""
    lines = [line.split() for line in Path("/proc/net", file).read_text().splitlines()]
    (titles, values) = [words[1:] for words in lines if words[0] == f"{group}:"]
    table = dict(zip(titles, map(int, values), strict=True))
    return sum(table[name] for name in names)


def network6(*names: str) -> int:
    """Return the sum of counters of /proc/net/snmp6."""
    lines = [line.split() for line in Path("/proc/net/snmp6").read_text().splitlines()]
    table = {words[0]: int(words[1]) for words in lines}
    return sum(table[name] for name in names)


def present(*functions: str) -> str:
    """The first of these functions that this kernel has: it was renamed once."""
    found = {line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines()}
    return next(name for name in functions if name in found)


@contextmanager
def calls(*functions: str) -> Iterator[Callable[[], Counter[str]]]:
    """Count calls of functions by kprobes of the test's own; yield a function that returns them so far."""
    with ExitStack() as undo:
        files = MountedTracefs(TRACEFS)
        for name in functions:
            _append("kprobe_events", f"p:{OWN}/{OWN}_{name} {name}")
            undo.callback(_append, "kprobe_events", f"-:{OWN}/{OWN}_{name}")
        files.mkdir(f"instances/{OWN}")
        undo.callback(files.rmdir, f"instances/{OWN}")
        for name in functions:
            enable = f"instances/{OWN}/events/{OWN}/{OWN}_{name}/enable"
            files.write(enable, "1")
            undo.callback(files.write, enable, "0")
        yield lambda: _hits(files)


def at_rest(made: Callable[[], Counter[str]], function: str) -> int:
    """Return how often a function was called, once it is called no more: the last call may come later."""
    before = -1
    while before != (times := made()[function]):
        before = times
        time.sleep(0.3)
    return times


def keep_on(cpu: int, pid: int) -> None:
    """Have all threads of a process run on this CPU only."""
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), {cpu})


def _hits(files: MountedTracefs) -> Counter[str]:
    rows = (line.split() for line in files.read("kprobe_profile").decode().splitlines())
    prefix = f"{OWN}_"
    return Counter({row[0].removeprefix(prefix): int(row[1]) for row in rows if row[0].startswith(prefix)})


@contextmanager
def firings(system: str, event: str) -> Iterator[Callable[[], int]]:
    """Count a tracepoint by a hist trigger of the test's own, its sum returned by what this yields.

    Without hist triggers it is recorded, and counted by what the ring buffers tell of their events.
    """
    with ExitStack() as undo:
        files = MountedTracefs(TRACEFS)
        own = TRACEFS / f"instances/{OWN}"
        files.mkdir(f"instances/{OWN}")
        undo.callback(files.rmdir, f"instances/{OWN}")
        where = f"instances/{OWN}/events/{system}/{event}"
        if (TRACEFS / where / "hist").exists():
            files.write(f"{where}/trigger", "hist:keys=common_cpu")
            undo.callback(files.write, f"{where}/trigger", "!hist:keys=common_cpu")
            yield lambda: _total(files.read(f"{where}/hist").decode())
        else:
            files.write(f"{where}/enable", "1")
            undo.callback(files.write, f"{where}/enable", "0")
            yield lambda: sum(map(_recorded, own.glob("per_cpu/cpu*/stats")))


def _total(text: str) -> int:
    return int(text.rpartition("Hits:")[2].split()[0])


def _recorded(stats: Path) -> int:
    """All events of a CPU: those that are there, and those that were overwritten or not taken."""
    table = dict(line.split(": ") for line in stats.read_text().splitlines())
    return sum(int(table[name]) for name in ("entries", "overrun", "commit overrun", "dropped events"))


def _append(path: str, line: str) -> None:
    """Add a definition; the file must not be truncated, which would delete all others."""
    fd = os.open(TRACEFS / path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
