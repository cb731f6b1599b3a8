"""Runs in the guest of `tests.bench.overhead`: what each kind of probe adds to a call of one function.

Writes the nanoseconds of every round as JSON into the file that it is given, after those of
`tests.bench.latency_guest`, which it measures in the same boot.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.profile import kprobe_counts
from tests.bench.probes import configured, own_instance, put

FUNCTION = "__x64_sys_getppid"
WORKLOAD = ("taskset", "-c", "1", "perf", "bench", "-f", "simple", "syscall", "basic", "--loop")
CALLS = 300_000
RUNS = 3
ROUNDS = 5
BUFFER_KIB = 1024
PATIENCE = 60

ENTRY = f"probes: [{{name: bench, help: Calls., attach: 'kprobe:{FUNCTION}', aggregate: %s}}]"
RETURN = (
    f"probes: [{{name: bench, help: Calls., attach: 'kretprobe:{FUNCTION}', returns: int, aggregate: %s}}]"
)
EXIT = RETURN.replace("kretprobe:", "fexit:")
TRIGGER = "hist:keys=return.log2:vals=return:size=128 if return > 0"

LISTED = Path("/sys/kernel/debug/kprobes/list")
COUNTED = re.compile(r"[:\])][ \t]+(\d+)")
"""A counter, or a row of a histogram, as bpftrace prints them."""

NOTHING = "no probe"
COUNT, BPF_COUNT = "count", "bpftrace count()"
ENTRY_EVENT, RETURN_EVENT = "entry event", "return event"
EXIT_EVENT = "fexit event"
KERNEL, ONE_TRIGGER, BPF_HIST = "kernel", "one hist trigger", "bpftrace hist(retval)"


class Missed(Exception):
    """A probe did not see every call, so what it costs was not measured."""


def variants(instance: Instance) -> Mapping[str, Callable[[], AbstractContextManager[object]]]:
    """How each probe is put in for a while, by name."""
    entry, retval = partial(planned, instance, ENTRY), partial(planned, instance, RETURN)
    return {
        NOTHING: nullcontext,
        COUNT: partial(entry, "auto"),
        BPF_COUNT: partial(bpftrace, f"kprobe:{FUNCTION} {{ @ = count(); }}"),
        ENTRY_EVENT: partial(entry, "events"),
        RETURN_EVENT: partial(retval, "events"),
        EXIT_EVENT: partial(planned, instance, EXIT, "events"),
        KERNEL: partial(retval, "kernel"),
        ONE_TRIGGER: partial(retval, "events", TRIGGER),
        BPF_HIST: partial(bpftrace, f"kretprobe:{FUNCTION} {{ @ = hist(retval); }}"),
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
            counted = probe.hits.read() if probe.hits else None
            _saw_all(counted or kprobe_counts(instance.files, instance.group)[probe.event].hits)
        finally:
            if trigger is not None:
                instance.write(triggers, f"!{trigger}")


def refused(instance: Instance, text: str) -> str | None:
    """Why this kernel cannot have the probe, if it cannot."""
    try:
        with put(instance, configured(text % "events")):
            return None
    except ProbeRefused as error:
        return str(error)


@contextmanager
def bpftrace(
    program: str, live: Callable[[], bool] = lambda: _live(), calls: int = RUNS * CALLS
) -> Iterator[None]:
    """bpftrace with this program, from when its probe is live. Raises Missed if it counts fewer calls."""
    with subprocess.Popen(
        ["bpftrace", "-e", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            limit = time.monotonic() + PATIENCE
            while not live():
                if process.poll() is not None or time.monotonic() > limit:
                    raise Missed(f"bpftrace does not attach: {program}")
                time.sleep(0.05)
            time.sleep(0.2)  # its program comes to the probe right after
            yield
        finally:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=PATIENCE)
    _saw_all(sum(map(int, COUNTED.findall(output))), calls)


def _live() -> bool:
    lines = LISTED.read_text().splitlines()
    return any("_sys_getppid+" in line and "[DISABLED]" not in line for line in lines)


def _saw_all(seen: int, calls: int = RUNS * CALLS) -> None:
    if seen < calls:
        raise Missed(f"of {calls} calls {seen} were seen")


def nanoseconds() -> float:
    """A call's, the fastest of some runs."""
    return min(_seconds() for _ in range(RUNS)) / CALLS * 1e9


def _seconds() -> float:
    run = subprocess.run([*WORKLOAD, str(CALLS)], check=True, stdout=subprocess.PIPE, text=True)
    return float(run.stdout)


def main() -> None:
    found: dict[str, list[float]] = {}
    with own_instance(BUFFER_KIB) as instance:
        nanoseconds()  # the first one reads perf itself
        for number in range(1, ROUNDS + 1):
            for name, probe in variants(instance).items():
                with probe():
                    found.setdefault(name, []).append(nanoseconds())
            latest = ", ".join(f"{name} {figures[-1]:.0f}" for name, figures in found.items())
            print(f"round {number} of {ROUNDS}, ns: {latest}", flush=True)
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
