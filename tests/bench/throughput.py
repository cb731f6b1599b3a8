"""Events a second through the whole pipeline, beside other ways to read the same ring buffer."""

import mmap
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.aggregate.recipes import counted_stacks, join_recipe, source_recipe
from kprobe_exporter.aggregate.recorded_stacks import RecordedStacks
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.aggregate.stack_counts import StackCounts
from kprobe_exporter.config.model import Config, Settings
from kprobe_exporter.identity.cgroups import Cgroups
from kprobe_exporter.identity.processes import Processes
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.aggregation import Recipe
from kprobe_exporter.model.joins import Joins
from kprobe_exporter.model.records import Batch
from kprobe_exporter.probing import event_source
from kprobe_exporter.symbols.programs import Programs
from kprobe_exporter.tracefs.instance import Instance
from tests.bench import expression, strings
from tests.bench.probes import TRACEFS, Put, configured, own_instance, put, reading
from tests.bench.progress import say
from tests.bench.table import Table, reached
from tests.bench.workload import Workload

TITLE = "Throughput"
EVENTS = 2_000_000
VALUES = 64
ROUNDS = 3
EVENT_BYTES = 28
BUFFER_KIB = 96 * 1024
STACK_KIB = 512 * 1024
"""A stack takes as much of the buffer as ten events."""
SMALL_KIB = 64

CONFIG = """
global: {source: SOURCE}
probes:
  - name: seek
    attach: tracepoint:syscalls:sys_exit_lseek
    fetch: {return: ret}
    metrics:
      - counter: seeks_total
        labels: {cpu: cpu, errno: {field: return, decode: errno}}
      - histogram: offset
        value: return
        buckets: [1, 2, 4, 8, 16, 32]
"""

MOST_NS = 10
"""Nanoseconds an event that an expression over two fields may cost."""

CALLS = """
global: {source: SOURCE}
probes:
  - name: seek
    attach: syscall:lseek
    metrics:
      - counter: seeks_total
        labels: {cpu: cpu, errno: {field: return, decode: errno}}
"""
"""Each call is two events, and has a duration."""

STACKS = """
global: {source: SOURCE}
probes:
  - name: seek
    attach: tracepoint:syscalls:sys_exit_lseek
    fetch: {return: ret}
    stack: true
    stacks: {weigh: return}
"""
"""Each event is followed by its stack."""

CHAIN = """
global: {source: SOURCE}
probes:
  - name: seek
    attach:
      pair:
        from: {to: "tracepoint:raw_syscalls:sys_enter", fetch: {id: id}, filter: "id == NUMBER"}
        through: {entry: "tracepoint:syscalls:sys_enter_lseek"}
        to: {to: "tracepoint:syscalls:sys_exit_lseek", fetch: {return: ret}}
        key: tid
    metrics:
      - counter: seeks_total
        labels: {cpu: cpu, errno: {field: return, decode: errno}}
      - {histogram: entry_seconds, value: entry}
""".replace("NUMBER", {"x86_64": "8", "aarch64": "62"}[os.uname().machine])
"""The same calls with the time to an event in between: three events each."""

PREVIOUS = """
global: {source: SOURCE}
probes:
  - name: seek
    attach:
      pair:
        from: {to: "tracepoint:syscalls:sys_exit_lseek", fetch: {return: ret}}
        to: {to: "tracepoint:syscalls:sys_exit_lseek", fetch: {return: ret}}
        key: tid
    metrics:
      - counter: seeks_total
        labels: {cpu: cpu, errno: {field: return, decode: errno}}
      - {histogram: before, value: previous_return, buckets: [1, 2, 4, 8, 16, 32]}
"""
"""Each event with the one before it."""

OUTSTANDING = f"{CALLS}    outstanding: {{}}\n"

OF_FACT = "{cpu: cpu, exe: exe, errno:"
"""The labels of the same, and the path of the thread's program."""

OF_CGROUP = "{cpu: cpu, cgroup: {field: tid, decode: cgroup}, errno:"
"""The labels of the same, and the cgroup of the thread."""

# Two fields are cut out and counted by, as perf-tools do.
AWK = "{ count[$2, $NF]++ } END { for (key in count) sum += count[key]; print sum }"

MAX_OTHERS = 10
"""System calls besides lseek, by which the process reads and writes a line: a chain begins with any."""

SCALE = 2.06e6
"""Events a second that awk does on the machine for which the goals are said."""


@dataclass(frozen=True)
class Full:
    """An instance with all events in the buffer of one CPU, and the probe that they are of."""

    instance: Instance
    cpu: int
    config: Config
    probe: Put

    @property
    def path(self) -> Path:
        return TRACEFS / self.instance.path


ONE_FIELD = "pages in memory, one field as a value"
COMPUTED = "pages in memory, an expression over two fields"
NATIVE = "pages in memory, one field as a value of a native histogram, too"
PATHS, ARGVS = "pages in memory, a path of a program as a label", "pages in memory, an argv of four words"
FLOOR, WALK = "the floor: raw pages, thrown away", "the walk alone: every event seen and counted"
AWK_COUNTS = "cat trace_pipe, then awk"
JOINED = "calls joined, binary: two events each"
BY_CGROUP = "pipeline, binary, by the thread's cgroup, too"
JOINED_BY_CGROUP = "calls joined, binary, by the thread's cgroup, too"
COUNTED_STACKS = "stacks counted, binary: an event and its stack"
BY_FACT = "pipeline, binary, by the program's path, too"
CHAINS = "chains joined, binary: three events each"
PREVIOUS_ONES = "each event with the one before it, binary"
JOINED_OUTSTANDING = "calls joined, binary, and counted while they are outstanding"
STACK_RECORDS = "stacks counted, binary, by records"

Consumer = Callable[[Full], float]
"""Reads all events and tells the seconds that it took."""


def table() -> Table:
    cpus = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, cpus[:1])  # the readers, and what they start
        seconds = _measure(cpus[-1])
    finally:
        os.sched_setaffinity(0, cpus)
    rates = {name: EVENTS / min(times) for name, times in seconds.items()}
    costs = expression.nanoseconds()
    rates |= {ONE_FIELD: 1e9 / costs[expression.ONE_FIELD], COMPUTED: 1e9 / costs[expression.TWO_FIELDS]}
    rates[NATIVE] = 1e9 / costs[expression.NATIVE]
    of_strings = strings.nanoseconds()
    rates |= {PATHS: 1e9 / of_strings[strings.PATH], ARGVS: 1e9 / of_strings[strings.ARGV]}
    more = costs[expression.TWO_FIELDS] - costs[expression.ONE_FIELD]
    text, binary, awk = rates["pipeline, text"], rates["pipeline, binary"], rates[AWK_COUNTS]
    return Table(
        TITLE,
        f"{EVENTS:,} events of a tracepoint (the return of lseek) wait in the ring buffer, none was lost."
        f" How long one core takes to read them all; best of {ROUNDS} rounds, taken in turn.",
        ("", "events/s", "ns per event", "times text"),
        tuple(
            (name, f"{rate:,.0f}", f"{1e9 / rate:,.0f}", f"{rate / text:.2f}")
            for name, rate in sorted(rates.items(), key=lambda item: -item[1])
        ),
        (
            "The pipeline is the agent's, on one thread: read, parse, count by two labels (CPU, errno), and"
            " add to a configured histogram and to that of return values.",
            "*By the thread's cgroup*, *by the program's path*: all are of one thread here; each is looked up"
            " once a round.",
            "*Outstanding*: calls that have begun and not ended, which are counted between two scrapes.",
            "*Stacks counted*: in the walk, as an agent does; *by records*: an object each event and stack,"
            " as where events are exported, too.",
            "The floor copies the pages of trace_pipe_raw and looks at nothing.",
            "Pages in memory are walked and summed into a histogram; that takes no kernel and no aggregator."
            " An argv becomes a record, as where it is exported.",
            "awk (mawk) counts by two fields of each line, the CPU and the value, and that is all.",
            "trace-cmd extracts the pages of the same buffer into a file (`record` would want events of its"
            " own; it takes along what waits in the top-level buffer), then prints that file as text,"
            " without counting anything.",
            reached(
                f"binary: 3 million events/s on a machine on which awk does {SCALE / 1e6:.2f} million",
                f"{binary / awk * SCALE / 1e6:.1f} million, scaled by awk's speed here",
                ok=binary / awk * SCALE >= 3e6,
            ),
            reached("text: at least as fast as awk", f"{text / awk:.2f} times", ok=text >= awk),
            reached(
                f"an expression over two fields at most {MOST_NS} ns an event above one of the fields",
                f"{max(0, more):.1f} ns",
                ok=more <= MOST_NS,
            ),
            reached(
                "5 million calls/s joined and counted",
                f"{rates[JOINED] / 2e6:.1f} million; every call was joined, or counted as unpaired",
                ok=rates[JOINED] >= 10e6,
            ),
            reached(
                "the walk alone within 10 times the floor",
                f"{rates[FLOOR] / rates[WALK]:.1f} times",
                ok=rates[FLOOR] <= 10 * rates[WALK],
            ),
        ),
    )


def _measure(cpu: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in CONSUMERS}
    with Workload(cpu) as workload:
        for number in range(1, ROUNDS + 1):
            for name, (source, consumer, text) in CONSUMERS.items():
                seconds[name].append(_once(cpu, workload, text.replace("SOURCE", source), consumer))
                say(f"round {number} of {ROUNDS}, {name}: {seconds[name][-1]:.2f} s")
    return seconds


def _once(cpu: int, workload: Workload, text: str, consumer: Consumer) -> float:
    """In an instance of its own: trace-cmd removes the one that it extracts from."""
    config = configured(text)
    binary = config.settings.source == "binary"
    with own_instance(SMALL_KIB) as instance, put(instance, config, binary=binary) as probes:
        records = len(probes[0].attached.parts) + probes[0].installed.layout.stack
        size = STACK_KIB if probes[0].installed.layout.stack else BUFFER_KIB
        instance.write(f"per_cpu/cpu{cpu}/buffer_size_kb", str(size))
        instance.write("set_event_pid", str(workload.pid))
        probes[0].attached.enable()
        calls = EVENTS // records
        workload.burst(calls, VALUES)
        instance.write("tracing_on", "0")
        lines = instance.read(f"per_cpu/cpu{cpu}/stats").decode().splitlines()
        stats = dict(line.split(": ", 1) for line in lines)
        entries, lost = int(stats["entries"]), int(stats["overrun"]) + int(stats["dropped events"])
        assert (entries - calls * records in range(MAX_OTHERS), lost) == (True, 0), stats
        return consumer(Full(instance, cpu, config, probes[0]))


def _pipeline(full: Full) -> float:
    """What agent/agent.py wires, on the calling thread."""
    settings, probe = full.config.settings, full.probe
    layout, residual_filter = probe.installed.layout, probe.installed.spec.residual_filter
    aggregator = _aggregator(settings)
    aggregator.declare(probe.metrics)
    aggregator.attach(layout, residual_filter=residual_filter)
    seconds = _emptied(full, source_recipe(layout, probe.metrics, residual_filter), aggregator.consume)
    _check(aggregator.copy().events["seek"])
    return seconds


def _calls(full: Full) -> float:
    """The same for calls, pairs and chains, which the walk joins."""
    settings, attached = full.config.settings, full.probe.attached
    join, metrics = attached.joined, full.probe.metrics
    assert join is not None
    made = join_recipe(join, metrics, attached.residual_filter)
    assert made is not None
    pairing = Pairing([join])
    aggregator = _aggregator(settings)
    aggregator.declare(metrics)
    aggregator.attach(join.layout, joined=True)

    def deliver(batch: Batch) -> None:
        aggregator.consume(pairing.pair(batch))

    seconds = _emptied(full, None, deliver, Joins({join.layout.layout_id: made}))
    numbers = aggregator.copy()
    assert pairing.open == 0, "the halves were delivered instead of joined"
    records, first = len(attached.parts), len(attached.parts) == 1  # which has none before it
    joined = records * (numbers.events["seek"] + first) + numbers.lost.get("unpaired", 0)
    more = joined - EVENTS // records * records  # in a chain, by other system calls
    assert more in range(MAX_OTHERS), f"{joined:,} of {EVENTS:,} events were joined"
    return seconds


def _stacks(full: Full, *, walked: bool = True) -> float:
    """Count the stacks, in the walk or by a record each."""
    attached, metrics = full.probe.attached, full.probe.metrics
    counts = StackCounts("seek", "return", VALUES, SeriesLimits(1, 1))
    recorded, aggregator = RecordedStacks(ProgramStacks(Programs)), _aggregator(full.config.settings)
    recorded.add(attached.layout, None, counts, None)
    aggregator.declare(metrics)
    aggregator.attach(attached.layout)
    made = source_recipe(attached.layout, metrics, None, counted_stacks("return")) if walked else None
    assert made or not walked

    def deliver(batch: Batch) -> None:
        recorded.take(batch)
        aggregator.consume(batch)

    seconds = _emptied(full, made, deliver)
    profile = counts.profile()
    _check(2 * sum(weight.hits for weight in profile.stacks.values()))
    assert profile.lost == 0
    assert aggregator.copy().events["seek"] == EVENTS // 2
    return seconds


def _aggregator(settings: Settings) -> Aggregator:
    limits = SeriesLimits(settings.max_series, settings.max_series_total)
    return Aggregator(settings.namespace, limits, name_of, Cgroups().path, fact=Processes().fact)


def _walk(full: Full) -> float:
    """From page to record, each counted, and no more."""
    arrived: list[int] = []
    seconds = _emptied(full, Recipe(()), lambda batch: arrived.extend(batch.arrived.values()))
    _check(sum(arrived))
    return seconds


def _emptied(
    full: Full, wanted: Recipe | None, deliver: Callable[[Batch], None], joins: Joins = event_source.NO_JOINS
) -> float:
    with reading(full.instance, full.probe, full.config, wanted, deliver, BUFFER_KIB, joins) as pipe:
        began = time.perf_counter()
        pipe.empty(last=True)
        return time.perf_counter() - began


def _floor(full: Full) -> float:
    page = bytearray(65536)
    with (full.path / f"per_cpu/cpu{full.cpu}/trace_pipe_raw").open("rb", buffering=0) as pipe:
        os.set_blocking(pipe.fileno(), False)
        began = time.perf_counter()
        pages = 0
        while pipe.readinto(page):
            pages += 1
        seconds = time.perf_counter() - began
    assert pages * mmap.PAGESIZE >= EVENTS * EVENT_BYTES, f"only {pages} pages were read"
    return seconds


def _awk(full: Full) -> float:
    seconds, output = _shell(f"cat {full.path}/trace_pipe | awk '{AWK}'")
    _check(int(output))
    return seconds


def _trace_cmd(full: Full) -> float:
    with TemporaryDirectory() as directory:
        extract = f"trace-cmd extract -B {full.instance.name} -o trace.dat >&2"
        seconds, output = _shell(f"cd {directory} && {extract} && trace-cmd report -i trace.dat | tail -n 1")
    assert "lseek" in output, output
    return seconds


def _shell(command: str) -> tuple[float, str]:
    began = time.perf_counter()
    run = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
    return time.perf_counter() - began, run.stdout


def _check(found: int) -> None:
    assert found == EVENTS, f"{found:,} of {EVENTS:,} events were counted"


# By name: the source that the probe is configured with, what reads, and the configuration.
CONSUMERS: Mapping[str, tuple[str, Consumer, str]] = {
    "pipeline, text": ("text", _pipeline, CONFIG),
    "pipeline, binary": ("binary", _pipeline, CONFIG),
    JOINED: ("binary", _calls, CALLS),
    BY_CGROUP: ("binary", _pipeline, CONFIG.replace("{cpu: cpu, errno:", OF_CGROUP)),
    JOINED_BY_CGROUP: ("binary", _calls, CALLS.replace("{cpu: cpu, errno:", OF_CGROUP)),
    BY_FACT: ("binary", _pipeline, CONFIG.replace("{cpu: cpu, errno:", OF_FACT)),
    CHAINS: ("binary", _calls, CHAIN),
    PREVIOUS_ONES: ("binary", _calls, PREVIOUS),
    JOINED_OUTSTANDING: ("binary", _calls, OUTSTANDING),
    COUNTED_STACKS: ("binary", _stacks, STACKS),
    STACK_RECORDS: ("binary", partial(_stacks, walked=False), STACKS),
    WALK: ("binary", _walk, CONFIG),
    FLOOR: ("binary", _floor, CONFIG),
    AWK_COUNTS: ("text", _awk, CONFIG),
    "trace-cmd extract, then report": ("text", _trace_cmd, CONFIG),
}
