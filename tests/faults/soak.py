"""The parts of a soak: its probes, the process that fires them, and the observer of the agent.

Some system calls are loud: they come in bursts that overrun the ring buffer. Others are quiet: they are made
when the buffer has room for all. Loud calls are only recorded as single events, one for each hit, so that
missing events are lost events. No other process makes these calls, nor does the agent.
"""

import json
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.agent_process import AgentProcess
from tests.vm.kernels import HIST

BUFFER = "64KiB"
CPU = 0
"""The CPU on which all calls are made."""

LOUD: Mapping[str, Callable[[], object]] = {
    "getppid": os.getppid,
    "sched_getscheduler": lambda: os.sched_getscheduler(0),
    "getsid": lambda: os.getsid(0),
    "getpgid": lambda: os.getpgid(0),
    "getresuid": os.getresuid,
    "getresgid": os.getresgid,
}
BURSTS = (20, 200, 1000)
"""Rounds of all loud calls, in turn; the last one is too much for the buffer while the agent is stopped."""

QUIET_ROUNDS = 20


def probes(libc: str, *, other: bool) -> list[str]:
    """The 50 probes of one of the two configurations, each as YAML."""
    return [*_loud(libc), *_counted(libc), *_quiet(libc), *_changing(libc, other=other), *_in_one(other)]


def text(libc: str, *, other: bool) -> str:
    """A whole configuration."""
    listed = "\n".join(f"  - {probe}" for probe in probes(libc, other=other))
    return f"global: {{buffer_size: {BUFFER}, limit: none}}\nprobes:\n{listed}\n"


RECORDED = tuple(
    [f"k_{name}" for name in LOUD]
    + [f"r_{name}" for name in ("getppid", "sched_getscheduler", "getsid", "getpgid")]
    + [f"t_{name}" for name in ("getppid", "sched_getscheduler", "getsid", "getpgid")]
    + ["u_getppid", "u_sched_getscheduler", "ur_getppid", "f_getresuid", "fe_getresgid"]
)
"""Loud probes, unfiltered and the same in both configurations: each hit is an event."""

COUNTED = tuple([f"c_{name}" for name in LOUD] + ["ct_getppid", "ct_getsid", "cu_sched_getscheduler"])
TABLES = ("table_getppid", "table_getsid", "table_getpgid")
"""Probes that only the kernel counts: in its profile, or in hist triggers if it has them."""


def counted_by_kernel(tracefs: Path) -> tuple[str, ...]:
    """The loud probes whose hits the kernel counts; a tracepoint's are its events without hist triggers."""
    names = (*RECORDED, *COUNTED, *TABLES)
    if (tracefs / HIST).exists():
        return names
    return tuple(name for name in names if not name.startswith(("t_", "ct_", "table_")))


JOINED = ("call_getpriority", "call_umask", "syscall_max", "ucall_getpriority", "pair_mkdirat")
"""Quiet probes, the same in both configurations: each beginning becomes a joined event."""

VICTIMS = ("victim", "another")
"""The probes whose definitions are deleted by hand."""


def _loud(libc: str) -> Iterator[str]:
    for name in LOUD:
        yield _counting(f"k_{name}", f"kprobe:sys_{name}", "cpu")
    for name in ("getppid", "sched_getscheduler", "getsid", "getpgid"):
        yield f'{{name: r_{name}, attach: "kretprobe:sys_{name}", returns: long}}'
        yield _counting(f"t_{name}", f"tracepoint:syscalls:sys_enter_{name}", "comm")
    yield _counting("u_getppid", f"uprobe:{libc}:getppid", "cpu")
    yield _counting("u_sched_getscheduler", f"uprobe:{libc}:sched_getscheduler", "cpu")
    yield f'{{name: ur_getppid, attach: "uretprobe:{libc}:getppid", returns: int}}'
    yield ('{name: f_getresuid, attach: ["fexit:sys_getresuid", "kretprobe:sys_getresuid"], returns: long}')
    yield (
        '{name: fe_getresgid, attach: ["fentry:sys_getresgid", "kprobe:sys_getresgid"],'
        " metrics: [{counter: fe_getresgid_total, labels: [cpu]}]}"
    )


def _counted(libc: str) -> Iterator[str]:
    for name in LOUD:
        yield f'{{name: c_{name}, attach: "kprobe:sys_{name}"}}'
    for name in ("getppid", "getsid"):
        yield f'{{name: ct_{name}, attach: "tracepoint:syscalls:sys_enter_{name}"}}'
    yield f'{{name: cu_sched_getscheduler, attach: "uprobe:{libc}:sched_getscheduler"}}'
    for name in ("getppid", "getsid", "getpgid"):
        yield (
            f'{{name: table_{name}, attach: "tracepoint:syscalls:sys_enter_{name}", aggregate: kernel,'
            f" metrics: [{{counter: table_{name}_total}}]}}"
        )


def _quiet(libc: str) -> Iterator[str]:
    for name in ("getpriority", "umask"):
        yield f'{{name: call_{name}, attach: "call:sys_{name}", returns: int}}'
    yield '{name: syscall_max, attach: "syscall:sched_get_priority_max"}'
    yield f'{{name: ucall_getpriority, attach: "ucall:{libc}:getpriority", returns: int}}'
    first, last = (f"tracepoint:syscalls:sys_{which}_mkdirat" for which in ("enter", "exit"))
    yield f"{{name: pair_mkdirat, attach: {{pair: {{from: '{first}', to: '{last}', key: tid}}}}}}"
    yield (
        '{name: filtered, attach: "kretprobe:sys_mkdirat", returns: int, filter: "return < 0",'
        " metrics: [{counter: filtered_total, labels: {errno: {field: return, decode: errno}}}]}"
    )
    yield '{name: stacks, attach: "kprobe:sys_mkdirat", stack: true, metrics: [{counter: stacks_total}]}'
    yield _counting("names", "kprobe:sys_getpriority", "comm, pid, tid, symbol")


def _changing(libc: str, *, other: bool) -> Iterator[str]:
    """Probes of the same names in both configurations, collected in different ways."""
    fetch = "fetch: {sp: '$stack:u64'}" if other else "fetch: {top: '$stack0:u64'}"
    number = "fetch: {fd: fd}" if other else "fetch: {number: __syscall_nr}"
    fsync, returns = "kprobe:sys_fsync", "int" if other else "long"
    yield _counting("ch_kprobe", fsync, "cpu", fetch)
    yield f'{{name: ch_kretprobe, attach: "kretprobe:sys_fsync", returns: {returns}}}'
    yield f'{{name: ch_call, attach: "call:sys_fsync", returns: {returns}, {fetch}}}'
    yield _counting("ch_tracepoint", "tracepoint:syscalls:sys_enter_fsync", "comm", number)
    yield _counting("ch_uprobe", f"uprobe:{libc}:fsync", "cpu", fetch)
    yield f'{{name: ch_plan, attach: "{fsync}"}}' if other else _counting("ch_plan", fsync, "comm")
    yield _counting("ch_target", f"kprobe:sys_{'umask' if other else 'getpriority'}", "cpu")
    for name in VICTIMS:
        yield _counting(name, "kprobe:sys_umask", "cpu", fetch)


def _in_one(other: bool) -> Iterator[str]:
    """The probes that only one of the configurations has."""
    which = "second" if other else "first"
    yield _counting(f"only_{which}", "kprobe:sys_umask", "cpu")
    yield (
        f'{{name: table_{which}, attach: "tracepoint:syscalls:sys_enter_umask", aggregate: kernel,'
        f" metrics: [{{counter: table_{which}_total, labels: [tid]}}]}}"
    )


def _counting(name: str, attach: str, labels: str, more: str = "") -> str:
    more = f"{more}, " if more else ""
    metric = f"{{counter: {name}_total, labels: [{labels}]}}"
    return f'{{name: {name}, attach: "{attach}", {more}metrics: [{metric}]}}'


class Load:
    """A child process that fires the probes on request, on one CPU."""

    def __init__(self) -> None:
        told, self._tell = os.pipe()
        self._answer, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.sched_setaffinity(0, {CPU})
                _obey(told, answer)
            finally:
                os._exit(0)
        os.close(told)
        os.close(answer)

    def burst(self, rounds: int) -> None:
        """Request this many rounds of the loud calls."""
        os.write(self._tell, rounds.to_bytes(4))

    def quiet(self) -> None:
        """Request the quiet calls."""
        os.write(self._tell, bytes(4))

    def done(self) -> int:
        """Wait until the request is done; return the rounds of loud calls so far."""
        return int.from_bytes(os.read(self._answer, 8))

    def close(self) -> None:
        os.write(self._tell, b"end")  # a close would not do: agents forked later hold the pipe as well
        os.close(self._tell)
        os.waitpid(self.pid, 0)
        os.close(self._answer)


def _obey(told: int, answer: int) -> None:
    calls, sum_of_rounds = tuple(LOUD.values()), 0
    _, write = os.pipe()
    while (order := os.read(told, 4)) != b"end":
        rounds = int.from_bytes(order)
        for _ in range(rounds):
            for call in calls:
                call()
        sum_of_rounds += rounds
        if not rounds:
            for _ in range(QUIET_ROUNDS):
                _quiet_calls(write)
                time.sleep(0.02)
        os.write(answer, sum_of_rounds.to_bytes(8))


def _quiet_calls(pipe: int) -> None:
    os.getpriority(os.PRIO_PROCESS, 0)
    os.umask(0o022)
    os.sched_get_priority_max(os.SCHED_FIFO)
    with suppress(OSError):
        os.mkdir("/proc", dir_fd=pipe)  # mkdirat(2): not every machine has mkdir(2)
    with suppress(OSError):
        os.fsync(pipe)


@dataclass
class Eye:
    """Scrapes once a second; records counters that fall, resident memory, and the number of definitions."""

    agent: AgentProcess
    begun: float = field(default_factory=time.monotonic)
    fell: list[str] = field(default_factory=list)
    resident: list[tuple[float, int]] = field(default_factory=list)
    """Pairs of the seconds since the beginning, and bytes."""
    times: list[float] = field(default_factory=list)
    """Seconds that each scrape took."""
    most_definitions: int = 0

    @contextmanager
    def open(self, definitions: Callable[[], int]) -> Iterator[None]:
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done, definitions))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def mean_resident(self, start: float, end: float) -> float:
        """Mean of the resident bytes between these seconds."""
        found = [size for when, size in self.resident if start <= when <= end]
        return sum(found) / len(found)

    def _watch(self, done: threading.Event, definitions: Callable[[], int]) -> None:
        last: dict[str, float] = {}
        while not done.wait(1):
            start = time.monotonic()
            counters = dict(_counters(self.agent.get().splitlines()))
            self.times.append(time.monotonic() - start)
            self.fell += [
                f"{name}: {last[name]} to {value}"
                for name, value in counters.items()
                if value < last.get(name, 0)
            ]
            last = counters
            self.resident.append((start - self.begun, resident(self.agent.pid)))
            self.most_definitions = max(self.most_definitions, definitions())


def _counters(lines: Iterable[str]) -> Iterator[tuple[str, float]]:
    """The values of a scrape that must never fall. A full parser would take longer than a second here."""
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.partition("{")[0].endswith(("_total", "_count", "_bucket")) and not name.startswith("#"):
            yield name, float(value)


def resident(pid: int) -> int:
    """Bytes of a process' resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


def descriptors(pid: int) -> tuple[str, ...]:
    """The target of each open descriptor, without the numbers of sockets and pipes."""
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(re.sub(r"\[\d+\]", "", str(path.readlink())))
    return tuple(sorted(links))


def threads(pid: int) -> tuple[str, ...]:
    """The names of a process' threads; one may end meanwhile."""
    names = []
    for path in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            names.append((path / "comm").read_text().strip())
    return tuple(sorted(names))


def dump(path: Path | None, figures: Mapping[str, object]) -> None:
    if path is not None:
        path.write_text(json.dumps(figures))
