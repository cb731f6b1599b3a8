"""Random filters: the kernel accepts those that we accept, and delivers the events that we let pass."""

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import parse_definition
from kprobe_exporter.grammar.evaluate import COMMON_FIELDS, Value, field_type
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import Node
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.kept_settings import SHOWN, parse_filters
from tests.kernel.verdict import takes
from tests.support.conditions import compile_filter
from tests.support.kernel_filters import by_types, refused
from tests.support.kernel_ids import kernel_tid
from tests.support.pipes import drained
from tests.support.system_calls import function
from tests.unit.grammar.generate import LIMITS, WORDS, filter_text, spoil

FILTERS = 400
EVENTS = 8
GROUP = "filters_under_test"
INSTANCE = f"instances/{GROUP}"
COMMS = (*filter(None, WORDS), "kprobe-tester-a")  # the last is as long as a name can be
CPUS = sorted(os.sched_getaffinity(0))
VALUES: list[int] = [*LIMITS, *range(8)]
NUMBERS = [f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)] + ["x32"]


class Event(NamedTuple):
    """An event that always carries the same values, because its arguments are immediate."""

    line: str
    values: Mapping[str, Value]


def constant(random: Random, name: str) -> Event:
    """Return an event of this name with random values."""
    numbers = {kind: number(random, kind) for kind in NUMBERS}
    bits, text = random.randrange(256), random.choice(WORDS)
    arguments = [f"{kind}=\\{value}:{kind}" for kind, value in numbers.items()]
    arguments += [f"bits=\\{bits}:b4@3/8", f'text=\\"{text}"']
    line = f"p:{GROUP}/{name} {function('getppid')} {' '.join(arguments)}"
    return Event(line, {**numbers, "bits": bits >> 3 & 15, "text": text.encode()})


def number(random: Random, kind: str) -> int:
    size, signed = int(kind[1:]), kind[0] == "s"
    lowest = -(1 << size - 1) if signed else 0
    return random.choice([value for value in VALUES if 0 <= value - lowest < 1 << size])


class Caller:
    """A thread that fires the events, under a given name and on a given CPU."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.tid = self._thread.submit(kernel_tid).result()

    def call(self, comm: str, cpu: int) -> dict[str, Value]:
        """Fire all events once; return the values of their common fields."""
        self._thread.submit(_call, comm, cpu).result()
        cpus = dict.fromkeys(("cpu", "CPU", "common_cpu"), cpu)
        return {**cpus, **dict.fromkeys(("comm", "COMM"), comm.encode()), "common_pid": self.tid}

    def end(self) -> None:
        self._thread.shutdown()


def _call(comm: str, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    Path("/proc/thread-self/comm").write_text(comm)
    os.getppid()


class Bench:
    """Events that are enabled in an instance for one thread, and this thread."""

    def __init__(self, files: MountedTracefs, events: list[Event], caller: Caller, pipe: int) -> None:
        self.files = files
        self.events = events
        self.caller = caller
        self.pipe = pipe
        fields = parse_definition(events[0].line).args
        self.known = {**COMMON_FIELDS, **{arg.name: field_type(arg) for arg in fields}}

    def apply(self, text: str) -> bool:
        """Set the filter of all events; return whether the kernel accepts it.

        The kernel never refuses the filter of a group, so the filter is first set on one event.
        """
        one, all_of_them = (f"{INSTANCE}/events/{GROUP}/{place}filter" for place in ("ev0/", ""))
        return takes(self.files, one, text) and takes(self.files, all_of_them, text)

    def delivered(self) -> list[int]:
        """Return the numbers of the unread events, sorted."""
        return sorted(int(found) for found in re.findall(rb": ev(\d+): \(", drained(self.pipe)))

    def accepted(self, text: str) -> Node | None:
        """Return the parsed filter; None if our parser or our check of its fields refuses it."""
        try:
            parsed = parse_filter(text)
        except GrammarError:
            return None
        return None if refused(parsed, self.known) else parsed

    def passing(self, parsed: Node, common: Mapping[str, Value]) -> list[int]:
        """Return the numbers of the events that pass by our evaluation."""
        test = compile_filter(by_types(parsed, self.known))
        return [place for place, event in enumerate(self.events) if test({**common, **event.values})]


@pytest.fixture
def bench(files: MountedTracefs, random: Random) -> Iterator[Bench]:
    events = [constant(random, f"ev{place}") for place in range(EVENTS)]
    with ExitStack() as stack:
        caller = Caller()
        stack.callback(caller.end)
        for place, event in enumerate(events):
            files.write("kprobe_events", event.line)
            stack.callback(files.write, "kprobe_events", f"-:{GROUP}/ev{place}")
        files.mkdir(INSTANCE)
        stack.callback(files.rmdir, INSTANCE)
        files.write(f"{INSTANCE}/set_event_pid", str(caller.tid))
        files.write(f"{INSTANCE}/events/{GROUP}/enable", "1")
        stack.callback(files.write, f"{INSTANCE}/events/{GROUP}/enable", "0")
        pipe = files.open_pipe(f"{INSTANCE}/trace_pipe")
        stack.callback(os.close, pipe)
        yield Bench(files, events, caller, pipe)


def reads_past_the_end(bench: Bench) -> bool:
    """Return whether ``[!a]`` also matches the NUL, as in kernels before 6.12 (lib/glob.c)."""
    assert bench.apply("comm ~ 'a[!a]*'")
    bench.caller.call("a", CPUS[0])
    return bool(bench.delivered())


@pytest.mark.needs("kprobe_events")
def test_random_filters(bench: Bench, random: Random) -> None:
    past_the_end = reads_past_the_end(bench)
    problems: list[str] = []
    counts: list[int] = []
    for _ in range(FILTERS):
        text = spoil(random, filter_text(random))
        parsed = bench.accepted(text)
        taken = bench.apply(parsed.render() if parsed and random.random() < 0.5 else text)
        if taken is (parsed is None) and "#" not in text:  # our parser refuses every '#'
            problems.append(f"only {'the kernel takes' if taken else 'we take'} {text}")
        if not (taken and parsed) or (past_the_end and "[!" in text):
            continue
        common = bench.caller.call(random.choice(COMMS), random.choice(CPUS))
        ours, theirs = bench.passing(parsed, common), bench.delivered()
        counts.append(len(theirs))
        if ours != theirs:
            problems.append(f"we let pass {ours}, the kernel {theirs}, with {common}: {text}")
    print(f"{FILTERS} filters, {len(counts)} taken, {sum(counts)} of {len(counts) * EVENTS} events passed")
    assert not problems, "\n".join(problems)
    assert 0.2 < sum(counts) / (len(counts) * EVENTS) < 0.8
    assert len(counts) > FILTERS / 3


@pytest.mark.needs(SHOWN)
def test_all_filters_in_one_file(files: MountedTracefs) -> None:
    """The kernel shows each filter as the event's own file does, whatever the length of the event's name."""
    written = {
        "task/task_rename": 'comm == "x:  y" || pid > 1',
        "sched/sched_process_wait": "pid < 5",
        "syscalls/sys_enter_set_robust_list": "len == 3",
    }
    files.mkdir(INSTANCE)
    try:
        for event, text in written.items():
            files.write(f"{INSTANCE}/events/{event}/filter", text)
        wanted = {event.replace("/", ":"): text for event, text in written.items()}
        assert parse_filters(files.read(f"{INSTANCE}/{SHOWN}").decode()) == wanted
        files.write(f"{INSTANCE}/events/task/task_rename/filter", "0")
        del wanted["task:task_rename"]
        assert parse_filters(files.read(f"{INSTANCE}/{SHOWN}").decode()) == wanted
    finally:
        files.rmdir(INSTANCE)
