"""What one firing takes: runs on this machine, and in the guests of `tests.bench.firing`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median

from kprobe_exporter.tracefs.mount import mounted
from tests.bench.checks import saw_all
from tests.support.programs import file_offset
from tests.support.system_calls import function

PROGRAM = Path("build/bench/firing")
"""Calls its own function, and getppid(2), as often as it is told, and says how long one call of each took."""

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

__attribute__((noinline)) int function(int x) { __asm__ volatile(""); return x + 1; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
    int calls = atoi(argv[1]);
    volatile int sum = 0;
    double began = now();
    for (int i = 0; i < calls; i++) sum = function(sum);
    double between = now();
    for (int i = 0; i < calls; i++) syscall(SYS_getppid);
    printf("%.1f %.1f\n", (between - began) / calls, (now() - between) / calls);
}
"""

NOTHING, TRACEPOINT, UPROBE, URETPROBE, KPROBE, KRETPROBE = (
    "nothing",
    "tracepoint",
    "uprobe",
    "uretprobe",
    "kprobe",
    "kretprobe",
)
ROUNDS = 5
CALLS = 50_000
REPEATS = 3
WRITTEN = re.compile(r"^(?:entries|overrun): (\d+)$", re.MULTILINE)
NAME = f"bench_{os.getpid()}"


def measure() -> dict[str, float]:
    """Nanoseconds that an event in the ring buffer adds to a call, by kind; what the kernel has of them."""
    with mounted(None) as root:
        place = f"{PROGRAM.resolve()}:{file_offset(str(PROGRAM.resolve()), 'function'):#x}"
        kinds = {
            TRACEPOINT: ("", "", "syscalls/sys_exit_getppid"),
            UPROBE: ("uprobe_events", f"p:{NAME}/e {place}", f"{NAME}/e"),
            URETPROBE: ("uprobe_events", f"r:{NAME}/e {place} v=$retval", f"{NAME}/e"),
            KPROBE: ("kprobe_events", f"p:{NAME}/e {function('getppid')}", f"{NAME}/e"),
            KRETPROBE: ("kprobe_events", f"r:{NAME}/e {function('getppid')} v=$retval", f"{NAME}/e"),
        }
        there = {kind: way for kind, way in kinds.items() if not way[0] or (root / way[0]).exists()}
        rounds = []
        instance = root / "instances" / NAME
        instance.mkdir()
        try:
            for _ in range(ROUNDS):
                base = calls()
                rounds.append({kind: added(base, kind, root, instance, *way) for kind, way in there.items()})
        finally:
            instance.rmdir()
    return {kind: median(each[kind] for each in rounds) for kind in there}


def added(
    base: tuple[float, float], kind: str, root: Path, instance: Path, file: str, line: str, event: str
) -> float:
    """What one kind of probe adds to the call that it is on."""
    with defined(root / file, line, f"-:{NAME}/e") if file else nullcontext():
        enable = instance / "events" / event / "enable"
        enable.write_text("1")
        before = recorded(instance)
        try:
            found = calls()
        finally:
            enable.write_text("0")
        # Before the definition is deleted: that empties the buffer, and its statistics.
        saw_all(recorded(instance) - before, REPEATS * CALLS)
    of = 0 if kind in (UPROBE, URETPROBE) else 1
    return found[of] - base[of]


def recorded(instance: Path) -> int:
    """The events that all CPUs of the instance wrote so far, those included that were overwritten since."""
    stats = "".join(file.read_text() for file in instance.glob("per_cpu/cpu*/stats"))
    return sum(map(int, WRITTEN.findall(stats)))


@contextmanager
def defined(file: Path, line: str, end: str) -> Iterator[None]:
    append(file, line)
    try:
        yield
    finally:
        append(file, end)


def append(file: Path, line: str) -> None:
    """Add a line; Python's own mode "a" seeks, which a definitions file does not take."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def calls() -> tuple[float, float]:
    """Nanoseconds of a call of the function, and of getppid(2): the fastest of some runs."""
    runs = [
        subprocess.run([PROGRAM, str(CALLS)], check=True, capture_output=True, text=True)
        for _ in range(REPEATS)
    ]
    times = [tuple(map(float, run.stdout.split())) for run in runs]
    return min(each[0] for each in times), min(each[1] for each in times)


def main(result: str) -> None:
    found: Mapping[str, float] = measure()
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
