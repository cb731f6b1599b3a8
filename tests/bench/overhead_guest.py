"""Runs in the guest of `tests.bench.overhead`: what each kind of probe adds to a call of one function.

Writes the nanoseconds of every round as JSON into the file that it is given, after those of
`tests.bench.latency_guest`, which it measures in the same boot.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.poller import read_counts
from tests.bench import latency_guest
from tests.bench.bpftrace import bpftrace
from tests.bench.checks import saw_all
from tests.bench.probes import configured, own_instance, put
from tests.bench.rounds import in_rounds

FUNCTION = latency_guest.FUNCTION
WORKLOAD = ("taskset", "-c", "1", "perf", "bench", "-f", "simple", "syscall", "basic", "--loop")
CALLS = 300_000
RUNS = 3
ROUNDS = 5
BUFFER_KIB = 1024

ENTRY = f"probes: [{{name: bench, help: Calls., attach: 'kprobe:{FUNCTION}', aggregate: %s}}]"
RETURN = (
    f"probes: [{{name: bench, help: Calls., attach: 'kretprobe:{FUNCTION}', returns: int, aggregate: %s}}]"
)
TRACED = f"__do_sys_{latency_guest.SYSTEM_CALL}"
"""The same function by the one of its names that ftrace has, and so fprobes take."""
EXIT = RETURN.replace(f"kretprobe:{FUNCTION}", f"fexit:{TRACED}")
RECORDED = f"probes: [{{name: bench, help: Calls., attach: 'kprobe:{FUNCTION}', stack: true, aggregate: %s}}]"
STACKS = f"probes: [{{name: bench, help: Calls., attach: 'kprobe:{FUNCTION}', stacks: {{}}, aggregate: %s}}]"
TRIGGER = "hist:keys=return.log2:vals=return:size=128 if return > 0"

BARE = "kprobe_exporter_bench/bare"
LISTED = Path("/sys/kernel/debug/kprobes/list")

NOTHING = "no probe"
COUNT, BPF_COUNT = "count", "bpftrace count()"
ENTRY_EVENT, BARE_EVENT, RETURN_EVENT = "entry event", "bare event", "return event"
EXIT_EVENT = "fexit event"
KERNEL, ONE_TRIGGER, BPF_HIST = "kernel", "one hist trigger", "bpftrace hist(retval)"
COUNTED_STACKS, RECORDED_STACKS, BPF_STACKS = "counted stacks", "recorded stacks", "bpftrace @[kstack]"


def variants(instance: Instance) -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """How each probe is put in for a while, by name."""
    entry, retval = partial(planned, instance, ENTRY), partial(planned, instance, RETURN)
    return {
        NOTHING: nullcontext,
        COUNT: partial(entry, "auto"),
        BPF_COUNT: partial(beside, f"kprobe:{FUNCTION} {{ @ = count(); }}"),
        ENTRY_EVENT: partial(entry, "events"),
        BARE_EVENT: partial(bare, instance),
        RETURN_EVENT: partial(retval, "events"),
        EXIT_EVENT: partial(planned, instance, EXIT, "events"),
        KERNEL: partial(retval, "kernel"),
        ONE_TRIGGER: partial(retval, "events", TRIGGER),
        BPF_HIST: partial(beside, f"kretprobe:{FUNCTION} {{ @ = hist(retval); }}"),
        COUNTED_STACKS: partial(planned, instance, STACKS, "auto"),
        RECORDED_STACKS: partial(planned, instance, RECORDED, "events"),
        BPF_STACKS: partial(beside, f"kprobe:{FUNCTION} {{ @[kstack] = count(); }}"),
    }


@contextmanager
def planned(instance: Instance, text: str, aggregate: str, trigger: str | None = None) -> Iterator[None]:
    """The probe as the agent plans and installs it, enabled by the agent, or by a trigger of ours instead."""
    with put(instance, configured(text % aggregate)) as [one]:
        probe = one.installed
        triggers = f"events/{probe.system}/{probe.event}/trigger"
        if trigger is None:
            probe.enable()
        else:
            instance.write(triggers, trigger)
        try:
            yield
            saw_all(read_counts(instance, [probe]).hits[probe.spec.probe], RUNS * CALLS)
        finally:
            if trigger is not None:
                instance.write(triggers, f"!{trigger}")


@contextmanager
def bare(instance: Instance) -> Iterator[None]:
    """The least that a kprobe's event is: no field, no filter, no trigger, and written by hand."""
    enable = f"events/{BARE}/enable"
    with ExitStack() as stack:
        instance.files.write("kprobe_events", f"p:{BARE} {FUNCTION}")
        stack.callback(instance.files.write, "kprobe_events", f"-:{BARE}")
        instance.write(enable, "1")
        stack.callback(instance.write, enable, "0")
        yield
        lines = instance.files.read("kprobe_profile").decode().splitlines()
        hits = {name: int(hits) for name, hits, _ in map(str.split, lines)}
        saw_all(hits[BARE.rpartition("/")[2]], RUNS * CALLS)


def absent(instance: Instance) -> dict[str, str]:
    """The probes that this kernel cannot have, each with the reason."""
    reasons: dict[str, str] = {}
    if not instance.counts_tracepoints():
        reason = "it was built without CONFIG_HIST_TRIGGERS"
        reasons |= dict.fromkeys((KERNEL, ONE_TRIGGER, COUNTED_STACKS), reason)
    try:
        with put(instance, configured(EXIT % "events")):
            pass
    except ProbeRefused as error:
        reasons[EXIT_EVENT] = str(error)
    return reasons


def beside(program: str) -> AbstractContextManager[None]:
    """bpftrace with a program on the same function."""
    return bpftrace(program, lambda _: _live(), RUNS * CALLS)


def _live() -> bool:
    lines = LISTED.read_text().splitlines()
    return any("_sys_getppid+" in line and "[DISABLED]" not in line for line in lines)


def nanoseconds() -> float:
    """A call's, the fastest of some runs."""
    return min(_seconds() for _ in range(RUNS)) / CALLS * 1e9


def _seconds() -> float:
    run = subprocess.run([*WORKLOAD, str(CALLS)], check=True, stdout=subprocess.PIPE, text=True)
    return float(run.stdout)


def main() -> None:
    bursts = latency_guest.measure()
    with own_instance(BUFFER_KIB) as instance:
        probes = variants(instance)
        reasons = absent(instance)
        for name in reasons:
            del probes[name]
        nanoseconds()  # the first one reads perf itself
        found = in_rounds(probes, ROUNDS, nanoseconds)
    Path(sys.argv[1]).write_text(json.dumps({"loops": found, "absent": reasons, "bursts": bursts}))


if __name__ == "__main__":
    main()
