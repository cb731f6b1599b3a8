"""What reading costs on machines with more CPUs, at rest and at a million events a second in all."""

import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.recipes import source_recipe
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.model import Config
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.source.reader import TIMER_MS, Pipe
from kprobe_exporter.tracefs.instance import Instance
from tests.bench.probes import TRACEFS, Put, configured, own_instance, put, reading
from tests.bench.progress import say
from tests.bench.table import Table, reached
from tests.bench.throughput import BUFFER_KIB, SMALL_KIB, VALUES
from tests.bench.workload import Workload

TITLE = "Cost by the number of CPUs"
CPUS = (1, 4, 16, 64, 256)
EVENTS = 1_000_000
A_SECOND = 1000 // TIMER_MS
"""Rounds of the reader a second: it looks that often where no buffer is half full before."""

IDLE_ROUNDS = 50 * A_SECOND
ROUNDS = 3
PROBE = """
  - name: {0}
    attach: tracepoint:syscalls:sys_exit_lseek
    fetch: {{return: ret}}
    metrics:
      - counter: {0}_total
        labels: {{{1}errno: {{field: return, decode: errno}}}}
      - {{histogram: {0}_offset, value: return, buckets: [1, 2, 4, 8, 16, 32]}}
"""
CONFIG = "".join(
    ["global: {source: binary}\nprobes:", PROBE.format("seek", ""), PROBE.format("by_cpu", "cpu: cpu, ")]
)

MOST_AT_REST = 1.0
"""Percent of a core."""


@dataclass(frozen=True)
class AsManyCpus:
    """An instance that shows other descriptors for the buffers of its CPUs."""

    instance: Instance
    descriptors: Mapping[int, int]

    def open_raw(self) -> Mapping[int, int]:
        return self.descriptors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.instance, name)


@dataclass(frozen=True)
class Cost:
    """A second of the reader: the reads of buffers, and the part of a core that they and the walk take."""

    reads: float
    percent: float


def table() -> Table:
    rest, busy, labelled = dict[int, Cost](), dict[int, Cost](), dict[int, Cost]()
    config = configured(CONFIG)
    with own_instance(SMALL_KIB) as instance, put(instance, config, binary=True) as [probe, by_cpu]:
        pages = _recorded(instance, probe)
        for cpus in CPUS:
            rest[cpus] = _cheapest(lambda: _rest(instance, probe, config, cpus))  # noqa: B023
            busy[cpus] = _cheapest(lambda: _busy(instance, probe, config, cpus, pages))  # noqa: B023
            labelled[cpus] = _cheapest(lambda: _busy(instance, by_cpu, config, cpus, pages))  # noqa: B023
            say(f"{cpus} CPUs: {rest[cpus].percent:.2f} % at rest, {busy[cpus].percent:.1f} % at work")
    most = rest[CPUS[-1]].percent
    return Table(
        TITLE,
        f"The reader's own work: what it does {A_SECOND} times a second. *At rest* it reads buffers of the"
        " kernel that are empty; for more CPUs than there are here, the same ones several times. *At work*"
        f" {EVENTS:,} recorded events a second come from as many files as there are CPUs, the same in all"
        f" rows. They are counted by error and in two histograms. The best of {ROUNDS}.",
        ("CPUs", "reads/s at rest", "of a core", "reads/s at work", "of a core", "by `cpu` too"),
        tuple(
            (
                f"{cpus}",
                f"{rest[cpus].reads:,.0f}",
                f"{rest[cpus].percent:.2f} %",
                f"{busy[cpus].reads:,.0f}",
                f"{busy[cpus].percent:.1f} %",
                f"{labelled[cpus].percent:.1f} %",
            )
            for cpus in CPUS
        ),
        (
            f"*By `cpu` too*: with that label, each of the {VALUES} values is added up for each CPU.",
            "A read is a system call. At work a full page takes one, and every buffer one more, to see that"
            " it is empty.",
            reached(
                f"at rest no more than {MOST_AT_REST:.0f} % of a core with {CPUS[-1]} CPUs",
                f"{most:.2f} %",
                ok=most <= MOST_AT_REST,
            ),
        ),
    )


def _cheapest(measure: Callable[[], Cost]) -> Cost:
    return min((measure() for _ in range(ROUNDS)), key=lambda one: one.percent)


def _recorded(instance: Instance, probe: Put) -> Sequence[bytes]:
    """Return the pages of EVENTS events, which the kernel wrote."""
    cpu = max(os.sched_getaffinity(0))
    with Workload(cpu) as workload:
        instance.write(f"per_cpu/cpu{cpu}/buffer_size_kb", str(BUFFER_KIB))
        instance.write("set_event_pid", str(workload.pid))
        workload.burst(1)  # it has started, of which nothing is to be recorded
        probe.attached.enable()
        workload.burst(EVENTS, VALUES)
        instance.write("tracing_on", "0")
    with (TRACEFS / instance.path / f"per_cpu/cpu{cpu}/trace_pipe_raw").open("rb", buffering=0) as pipe:
        os.set_blocking(pipe.fileno(), False)
        return list(iter(lambda: pipe.read(mmap.PAGESIZE) or b"", b""))


def _rest(instance: Instance, probe: Put, config: Config, cpus: int) -> Cost:
    """Read the kernel's buffers, in which there is nothing."""
    here = sorted(os.sched_getaffinity(0))
    files = [f"per_cpu/cpu{here[number % len(here)]}/trace_pipe_raw" for number in range(cpus)]
    opened = [os.open(TRACEFS / instance.path / file, os.O_RDONLY | os.O_NONBLOCK) for file in files]
    with _reader(instance, probe, config, opened) as (pipe, aggregator):
        began = time.process_time()
        for _ in range(IDLE_ROUNDS):
            pipe.empty(last=False)
        seconds = time.process_time() - began
        assert not aggregator.copy().events.get(probe.metrics.probe), "the buffers were not empty"
    return Cost(cpus * A_SECOND, 100 * seconds * A_SECOND / IDLE_ROUNDS)


def _busy(instance: Instance, probe: Put, config: Config, cpus: int, pages: Sequence[bytes]) -> Cost:
    """Read the pages from files in memory, a tenth of them in each round."""
    opened = [os.memfd_create(f"cpu{number}") for number in range(cpus)]
    seconds = 0.0
    with _reader(instance, probe, config, opened) as (pipe, aggregator):
        for number in range(A_SECOND):
            these = _part(pages, number)
            for index, file in enumerate(opened):
                os.ftruncate(file, 0)
                os.pwrite(file, b"".join(these[index::cpus]), 0)
                os.lseek(file, 0, os.SEEK_SET)
            began = time.process_time()
            pipe.empty(last=number == A_SECOND - 1)
            seconds += time.process_time() - began
        counted = aggregator.copy().events[probe.metrics.probe]
        assert counted == EVENTS, f"{counted:,} of {EVENTS:,} events were counted"
    return Cost(len(pages) + cpus * A_SECOND, 100 * seconds)


def _part(pages: Sequence[bytes], number: int) -> Sequence[bytes]:
    first, end = (len(pages) * one // A_SECOND for one in (number, number + 1))
    return pages[first:end]


@contextmanager
def _reader(
    instance: Instance, probe: Put, config: Config, opened: Sequence[int]
) -> Iterator[tuple[Pipe, Aggregator]]:
    """What agent/agent.py wires, on these descriptors, which it closes."""
    layout, settings = probe.installed.layout, config.settings
    aggregator = Aggregator(settings.namespace, SeriesLimits(1000, 20_000), name_of, Cgroups().path)
    aggregator.declare(probe.metrics)
    aggregator.attach(layout)
    shown = cast("Instance", AsManyCpus(instance, dict(enumerate(opened))))
    recipe = source_recipe(layout, probe.metrics, None)
    assert recipe is not None
    with reading(shown, probe, config, recipe, aggregator.consume, BUFFER_KIB) as pipe:
        yield pipe, aggregator
