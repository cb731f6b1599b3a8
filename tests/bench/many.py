"""Starts and stops with up to 1,000 uprobes, and programs of a million symbols, on this machine's kernel."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kprobe_exporter.tracefs.mount import mounted
from kprobe_exporter.tracefs.removal import soft_trigger
from tests.bench.checks import Missed
from tests.bench.firing_guest import append
from tests.bench.start_guest import agent
from tests.bench.table import Table
from tests.support.compiling import compiled
from tests.support.large_elf import COUNT, CPP, C, large_program, name
from tests.support.programs import file_offset

TITLE = "Many uprobes, and large programs"
COMMAND = (sys.executable, "-m", "kprobe_exporter")
SIZES = (1, 50, 200, 1000)
GROUP = "bench_many"
FUNCTION = '__attribute__((noinline)) long f{0}(long n) {{ __asm__(""); return n + {0}; }}\n'
SETTINGS = "global: {tracefs_instance: bench_many_agent}\nprobes:\n"
PROBE = "  - {{name: f{1}, help: Calls, attach: 'uprobe:{0}:f{1}'}}\n"


def table() -> Table:
    with tempfile.TemporaryDirectory() as directory:
        rows = _uprobes(Path(directory))
        notes = _large(Path(directory))
    return Table(
        TITLE,
        "An agent with uprobes on so many functions of one library, counted only. A start lasts from the"
        " start of the process until `/-/ready` answers 200, a stop from SIGTERM to its end. A script does"
        " the kernel's part alone: it writes the same definitions and triggers, one after the other. It"
        " removes the instance with all on, and then the definitions.",
        ("uprobes", "start s", "the kernel's", "stop s", "the kernel's"),
        tuple(rows),
        notes,
    )


def _uprobes(directory: Path) -> list[tuple[str, ...]]:
    source = "".join(map(FUNCTION.format, range(max(SIZES))))
    library = compiled(directory / "many.so", source, "-shared", "-fPIC")
    path, rows = directory / "many.yaml", []
    with mounted(None) as root:
        for size in SIZES:
            path.write_text(SETTINGS + "".join(PROBE.format(library, number) for number in range(size)))
            path.chmod(0o600)
            start, stop = _by_kernel(root, library, size)
            run = agent(path, size)
            rows.append((f"{size:,}", *(f"{seconds:.2f}" for seconds in (run.start, start, run.stop, stop))))
            print(*rows[-1], flush=True)
    return rows


def _by_kernel(root: Path, library: Path, size: int) -> tuple[float, float]:
    """Return the seconds of the definitions and triggers, and of the cheapest removal."""
    instance = root / "instances" / GROUP
    places = [file_offset(str(library), f"f{number}") for number in range(size)]
    began = time.monotonic()
    instance.mkdir()
    for number, place in enumerate(places):
        append(root / "uprobe_events", f"p:{GROUP}/f{number} {library}:{place:#x}")
        append(instance / "events" / GROUP / f"f{number}" / "trigger", soft_trigger(GROUP, f"f{number}"))
    started = time.monotonic()
    if len(on := (instance / "set_event").read_text().split()) != size:
        raise Missed(f"{len(on)} of {size} events are on")
    stopping = time.monotonic()
    instance.rmdir()
    for number in range(size):
        append(root / "uprobe_events", f"-:{GROUP}/f{number}")
    return started - began, time.monotonic() - stopping


def _large(directory: Path) -> tuple[str, ...]:
    """Return what commands on large programs take, each as a process of its own."""
    notes = []
    for language, form in (("C", C), ("C++", CPP)):
        program = large_program(directory / "large", form)
        listed, searched = _listed(program, "*", COUNT), _listed(program, "*012345[5-9]*", 5)
        notes.append(
            f"A program of {COUNT:,} functions of {language} such as `{name(0, form)}`: `list -x` prints all"
            f" in {listed:.1f} s, and five that a pattern matches in {searched:.1f} s."
        )
    began = time.monotonic()
    subprocess.run([*COMMAND, "--version"], check=True, capture_output=True)
    return (*notes, f"A command that does nothing takes {time.monotonic() - began:.1f} s.")


def _listed(program: Path, pattern: str, number: int) -> float:
    command = [*COMMAND, "list", "-x", str(program), pattern]
    began = time.monotonic()
    lines = subprocess.run(command, check=True, capture_output=True).stdout.count(b"\n")
    if lines != number:
        raise Missed(f"{lines} of {number} functions are listed")
    return time.monotonic() - began
