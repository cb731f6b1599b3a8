"""Runs in the guest of `tests.bench.usdt`: what a probe by USDT adds to a garbage collection of Python.

Writes the nanoseconds of a collection in every round as JSON into the file that it is given.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.poller import read_counts
from tests.bench.bpftrace import LIVE, SAYS_SO, bpftrace
from tests.bench.checks import saw_all
from tests.bench.probes import configured, own_instance, put
from tests.bench.rounds import in_rounds

PYTHON = "/usr/bin/python3.11"
"""Debian's, which is built with its probes."""
PROBE = "gc__start"
CALLS = 50_000
RUNS = 3
ROUNDS = 5
BUFFER_KIB = 1024

COLLECT = """
import gc, sys, time
gc.disable()
collect, calls = gc.collect, int(sys.argv[1])
began = time.perf_counter()
for _ in range(calls):
    collect(0)
print(time.perf_counter() - began)
"""

COUNTED = f"probes: [{{name: bench, help: Starts., attach: 'usdt:{PYTHON}:python:{PROBE}'}}]"
EVENTS = f"""
probes:
  - name: bench
    attach: usdt:{PYTHON}:python:{PROBE}
    fetch: {{generation: $arg1}}
    metrics: [{{counter: bench_total, labels: [generation]}}]
"""

NOTHING = "no probe"
COUNT, EVENT = "count", "event"
BPF_COUNT, BPF_EVENT = "bpftrace count()", "bpftrace by argument"


def variants(instance: Instance) -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """How each probe is put in for a while, by name."""
    return {
        NOTHING: nullcontext,
        COUNT: partial(planned, instance, COUNTED),
        EVENT: partial(planned, instance, EVENTS),
        BPF_COUNT: partial(beside, "@ = count();"),
        BPF_EVENT: partial(beside, "@[arg0] = count();"),
    }


@contextmanager
def planned(instance: Instance, text: str) -> Iterator[None]:
    """The probe as the agent plans, installs and enables it."""
    with put(instance, configured(text)) as [one]:
        probe = one.installed
        probe.enable()
        yield
        saw_all(read_counts(instance, [probe]).hits[probe.spec.probe], RUNS * CALLS)


def beside(action: str) -> AbstractContextManager[None]:
    """bpftrace with a program on the same probe. Its own counter of `SAYS_SO` is one more that it prints."""
    program = f"usdt:{PYTHON}:python:{PROBE} {{ {action} }} {SAYS_SO}"
    return bpftrace(program, lambda printed: LIVE in printed.splitlines(), RUNS * CALLS + 1)


def nanoseconds() -> float:
    """A collection's, the fastest of some runs."""
    return min(_seconds() for _ in range(RUNS)) / CALLS * 1e9


def _seconds() -> float:
    command = ["taskset", "-c", "1", PYTHON, "-Ic", COLLECT, str(CALLS)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    with own_instance(BUFFER_KIB) as instance:
        found = in_rounds(variants(instance), ROUNDS, nanoseconds)
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
