"""Runs in the guest of `tests.bench.texts`: what a text of a program adds to the system call that has it.

A program calls open(2) and execve(2) for a path that does not exist, while a probe at the entry records a
number or the text. It is C, so that nothing else is in its loop. Writes the nanoseconds of a call in every
round as JSON into the file that it is given.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kprobe_exporter.tracefs.instance import Instance
from tests.bench.checks import Missed, saw_all
from tests.bench.probes import configured, own_instance, put
from tests.bench.rounds import in_rounds

PROGRAM = "texts"
PATH = "/nonexistent/share/locale/en_US.UTF-8/file"
WORDS = ("program", "--option", "value", "/var/lib/program/file")
CALLS, RUNS, ROUNDS = 20_000, 3, 5
BUFFER_KIB = 1024
MAX_OTHERS = 3
"""System calls that the program makes besides those of its loop, while it starts."""

SOURCE = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char path[] = PATH, *words[] = {WORDS, NULL}, *none[] = {NULL};
static volatile int touched;  // the kernel reads only what is in memory

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
    int calls = atoi(argv[2]), executes = !strcmp(argv[1], "execve");
    for (int i = 0; words[i]; i++) touched += path[i] + words[i][0];
    double began = now();
    for (int i = 0; i < calls; i++)
        if (executes) execve(path, words, none); else open(path, O_RDONLY);
    printf("%.1f\n", (now() - began) / calls);
}
"""


class Row(NamedTuple):
    """A row of the table: the system call, what a probe fetches at its entry, and a text of each event."""

    call: str
    fetch: str = ""
    text: str = ""


FILE = 'file: "+0($filename):ustring"'
OPEN, EXECUTE = "open(2)", "execve(2)"
ROWS: Mapping[str, Row] = {
    OPEN: Row("openat"),
    "its flags, by the tracepoint's own event": Row("openat", "flags: flags"),
    "the first 8 bytes of its path, as a number": Row("openat", 'begin: "+u0($filename):u64"'),
    "its path": Row("openat", FILE, f'file="{PATH}"'),
    EXECUTE: Row("execve"),
    "its path, too": Row("execve", FILE, f'file="{PATH}"'),
    f"its argv of {len(WORDS)} words": Row("execve", "argv: {strings: argv, max: 8}", f'"{WORDS[-1]}"'),
}
"""By what is recorded; an empty ``fetch`` is the call without a probe, for the rows after it."""

CONFIG = """
probes:
  - name: entry
    attach: "tracepoint:syscalls:sys_enter_{}"
    fetch: {{{}}}
    metrics: [{{counter: entries_total, labels: [{}]}}]
"""


def built(directory: Path) -> Path:
    """Compile the program."""
    program, code = directory / PROGRAM, directory / f"{PROGRAM}.c"
    words = ", ".join(f'"{word}"' for word in WORDS)
    code.write_text(SOURCE.replace("WORDS", words).replace("PATH", f'"{PATH}"'))
    # Without a dynamic loader, which would open files of its own.
    subprocess.run(["cc", "-O1", "-static", "-o", program, code], check=True)
    return program


def nanoseconds(program: Path, call: str) -> float:
    """Return the nanoseconds of a call in the fastest of some runs."""
    command = [str(program), call, str(CALLS)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(RUNS)]
    return min(float(run.stdout) for run in runs)


def probe(instance: Instance, row: Row) -> AbstractContextManager[object]:
    """Return the context in which the row's probe is enabled."""
    return recorded(instance, row) if row.fetch else nullcontext()


@contextmanager
def recorded(instance: Instance, row: Row) -> Iterator[None]:
    """Enable the probe. Raises Missed on exit unless each call was recorded, with the row's text."""
    config = configured(CONFIG.format(row.call, row.fetch, row.fetch.partition(":")[0]))
    with put(instance, config, binary=True) as [one]:
        before = written(instance)
        one.attached.enable()
        yield
        one.attached.disable()
        saw_all(written(instance) - before, RUNS * CALLS)
        check_text(instance.read("trace").decode(errors="replace"), row.text)
        instance.write("trace", "")


def check_text(trace: str, text: str) -> None:
    """Raise Missed unless the program's events in the kernel's text have ``text``, but for its start's."""
    events = [line for line in trace.splitlines() if line.lstrip().startswith(f"{PROGRAM}-")]
    without = [line for line in events if text not in line]
    if len(without) == len(events) or len(without) > RUNS * MAX_OTHERS:
        raise Missed(f"{len(without):,} of {len(events):,} events lack the text {text}")


def written(instance: Instance) -> int:
    """Return the number of events that all CPUs of the instance have, with those overwritten since."""
    cpus = instance.files.names(f"{instance.path}/per_cpu")
    stats = "".join(instance.read(f"per_cpu/{cpu}/stats").decode() for cpu in cpus)
    return sum(map(int, re.findall(r"^(?:entries|overrun): (\d+)$", stats, re.MULTILINE)))


def main() -> None:
    found: dict[str, list[float]] = {}
    with TemporaryDirectory() as directory, own_instance(BUFFER_KIB) as instance:
        program = built(Path(directory))
        for call in dict.fromkeys(row.call for row in ROWS.values()):
            probes = {name: partial(probe, instance, row) for name, row in ROWS.items() if row.call == call}
            found |= in_rounds(probes, ROUNDS, partial(nanoseconds, program, call))
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
