"""What a recording costs on this machine's kernel: an event in it, the agent at rest, and a file.

The events are those of the tracepoint of getppid(2), which only the benchmark calls.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.checks import Missed
from tests.bench.running_agent import RunningAgent, running_agent
from tests.bench.table import Table

TITLE = "A recording"
CALLS, EVENTS, ROUNDS = 300_000, 100_000, 5
REST = 5.0
"""Seconds for which the agent has nothing to do."""
LEAST_BYTES = 16
"""Of an event in a buffer: its header, the common fields and the number of the system call."""
FORMATS = ("trace.dat", "perfetto")
PROBE = "probes: [{name: execs, attach: 'tracepoint:sched:sched_process_exec'}]\n"
INSTANCE = "global: {tracefs_instance: kp_bench_recording, buffer_total: 256MiB}\n"
RECORDING = (
    "{{name: bench, probes: ['tracepoint:syscalls:sys_enter_getppid'], window: 10m, buffer_size: 16MiB,"
    " every: 1s, formats: [{}]}}"
)


@contextmanager
def agent(directory: Path, recording: str) -> Iterator[RunningAgent]:
    """Yield an agent with this recording; without one if it is empty."""
    record = f"record: {{directory: {directory}/files, recordings: [{recording}]}}\n" if recording else ""
    with running_agent(directory, f"{INSTANCE}{PROBE}{record}") as running:
        yield running


def table() -> Table:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        with agent(directory, "") as without:
            alone, rest_alone = _call(), _rest(without)
        with agent(directory, RECORDING.format("trace.dat")) as recording:
            recorded, rest = _call(), _rest(recording)
            _content(directory, _record(recording), CALLS)
        files = [(form, *_file(directory, form)) for form in FORMATS]
    event = f"+{(recorded - alone) * 1e9:,.0f}"
    rows = [
        ("getppid(2), not recorded", f"{alone * 1e9:,.0f}", f"{rest_alone * 1e3:.1f}", "", ""),
        ("getppid(2) in a recording", event, f"+{(rest - rest_alone) * 1e3:.1f}", "", ""),
    ]
    rows += [
        (f"{form}: a file of {EVENTS:,} events", "", "", f"{seconds:.2f}", f"{size / 1e6:.1f}")
        for form, seconds, size in files
    ]
    return Table(
        TITLE,
        "An agent with a recording of one tracepoint, and one without. A call is the fastest of"
        f" {ROUNDS} runs of {CALLS:,}. At rest no event comes for {REST:g} s. A file costs the processor"
        " time of the whole agent from the request until its answer.",
        ("what", "ns a call", "at rest: ms a second", "processor s", "MB"),
        tuple(rows),
    )


def _call() -> float:
    return min(_calls(CALLS) for _ in range(ROUNDS)) / CALLS


def _calls(number: int) -> float:
    call = os.getppid
    begin = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - begin


def _rest(running: RunningAgent) -> float:
    """Return the processor's seconds a second."""
    time.sleep(1)  # what its start has left to do
    before, begin = running.processor(), time.monotonic()
    time.sleep(REST)
    return (running.processor() - before) / (time.monotonic() - begin)


def _file(directory: Path, form: str) -> tuple[float, int]:
    """Return the processor's seconds of a file, and its bytes."""
    with agent(directory, RECORDING.format(form)) as running:
        time.sleep(1)
        _calls(EVENTS)
        before = running.processor()
        name = _record(running)
        seconds = running.processor() - before
        content = _content(directory, name, EVENTS)
        if form == "perfetto" and (found := content.count(b"sys_enter_getppid")) < EVENTS:
            raise Missed(f"of {EVENTS:,} events {found:,} are in the file")
        return seconds, len(content)


def _content(directory: Path, name: str, events: int) -> bytes:
    """Return the content of a file. Raises Missed if it is too small for so many events."""
    content = (directory / "files" / name).read_bytes()
    if len(content) < LEAST_BYTES * events:
        raise Missed(f"{len(content):,} bytes are too few for {events:,} events")
    return content


def _record(running: RunningAgent) -> str:
    """Have a recording written; return the name of its file."""
    return running.post("/-/record").rsplit(maxsplit=1)[-1]
