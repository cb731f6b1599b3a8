"""How long terminal tools take to start on this machine's kernel, and what a row costs them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import NamedTuple

from tests.bench.checks import Missed
from tests.bench.table import Table, reached

TITLE = "Terminal tools"
TOOLS = ("killsnoop", "tcpstates", "syscount", "runqlat", "biolatency")
FORMS = {"as text": (), "as JSON": ("--json",), "as text, with its container": ("--add", "container")}
ROWS, ROUNDS, LIMIT = 20_000, 5, 1.0
TRACED = b" traced\n"


class Run(NamedTuple):
    """A run of a tool."""

    start: float  # seconds until all probes were enabled
    processor: float  # seconds of the processor until its end
    lines: int


def table() -> Table:
    with tempfile.TemporaryDirectory() as compiled:
        # Installed modules are compiled; those of a checkout may not be.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        runs = {tool: _best(environment, tool) for tool in TOOLS}
        costs = {form: _row(environment, *options) for form, options in FORMS.items()}
    rows = [(tool, f"{run.start:.2f}", f"{run.processor:.2f}", "") for tool, run in runs.items()]
    rows += [(f"killsnoop, a row {form}", "", "", f"{cost * 1e6:.1f}") for form, cost in costs.items()]
    slowest = max(run.start for run in runs.values())
    return Table(
        TITLE,
        "From the start of the process until all probes are enabled, and the processor time of the whole"
        f" process, which ends at once; the least of {ROUNDS} runs each. A row costs the processor time of"
        f" a run with {ROWS:,} rows, less that of one without, divided by their number.",
        ("tool", "start s", "processor s", "a row µs"),
        tuple(rows),
        (reached(f"a start within {LIMIT:g} s", f"{slowest:.2f} s", ok=slowest <= LIMIT),),
    )


def _best(environment: Mapping[str, str], *words: str, rows: int = 0) -> Run:
    _run(environment, *words)  # compiles the modules
    runs = [_run(environment, *words, rows=rows) for _ in range(ROUNDS)]
    return Run(min(one.start for one in runs), min(one.processor for one in runs), runs[0].lines)


def _row(environment: Mapping[str, str], *options: str) -> float:
    own = ("killsnoop", "-p", str(os.getpid()), *options)
    idle, busy = _best(environment, *own), _best(environment, *own, rows=ROWS)
    if busy.lines - idle.lines != ROWS:
        raise Missed(f"of {ROWS:,} rows {busy.lines - idle.lines:,} were written")
    return (busy.processor - idle.processor) / ROWS


def _run(environment: Mapping[str, str], *words: str, rows: int = 0) -> Run:
    command = [sys.executable, "-m", "kprobe_exporter", "tool", *words, "-v"]
    with tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.PIPE)
        assert process.stderr is not None
        said = b"".join(iter(lambda: _until_traced(process), b""))
        start = time.monotonic() - begin
        pid = os.getpid()
        for number in range(rows):
            os.kill(pid, 0)
            if number % 500 == 0:
                time.sleep(0.05)  # the buffer has room for 10,000 of them
        process.send_signal(signal.SIGINT)
        said += process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        if process.returncode or (rows and b"lost" in said):
            raise Missed(said.decode())
        return Run(start, usage.ru_utime + usage.ru_stime, sum(1 for _ in output))


def _until_traced(process: "subprocess.Popen[bytes]") -> bytes:
    """Return the next line, but none behind the one that says that all is enabled."""
    assert process.stderr is not None
    line = process.stderr.readline()
    return b"" if line.endswith(TRACED) else line
