"""An agent that is killed at drawn moments leaves only whole files, and nothing that the next one keeps.

A run draws a few moments; `--kills 30` draws more.
"""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace  # type: ignore[import-untyped]

from kprobe_exporter.recording.directory import NAME, PART
from tests.kernel.conftest import StartAgent
from tests.support.patience import patience
from tests.support.trace_cmd import report

pytestmark = pytest.mark.skipif(
    shutil.which("trace-cmd") is None and not os.environ.get("CI"),
    reason="no trace-cmd: `make test` installs it",
)

INSTANCE = "killed_under_test"
NAPS = '{name: naps, attach: "syscall:clock_nanosleep"}'
OPENS = "tracepoint:syscalls:sys_enter_openat"

START, CUT = 1.5, 0.6
"""Seconds from the start of an agent, and from a signal, within which it is killed."""


def configuration(directory: Path) -> str:
    one = f'name: slow, probes: [naps, "{OPENS}"], formats: [trace.dat, perfetto], every: 1s, marks: true'
    return (
        f"global: {{tracefs_instance: {INSTANCE}}}\nprobes: [{NAPS}]\n"
        f"record: {{directory: {directory}, recordings: [{{{one}}}]}}\n"
    )


def buffers(tracefs: Path) -> list[str]:
    """The instances of the recording."""
    return sorted(path.name for path in (tracefs / "instances").glob(f"{INSTANCE}.slow.*"))


def check_files(directory: Path, checked: set[str]) -> None:
    """Read each finished file back that was not checked before."""
    names = {name for name in os.listdir(directory) if not PART.fullmatch(name)}
    for name in names - checked:
        assert NAME.fullmatch(name)
        if name.endswith(".dat"):
            assert report(directory / name), name
        else:
            Trace().ParseFromString((directory / name).read_bytes())
    checked |= names


def test_killed_at_drawn_moments(
    start_agent: StartAgent, tmp_path: Path, tracefs: Path, pytestconfig: pytest.Config
) -> None:
    directory, seed = tmp_path / "files", time.time_ns()
    print(f"the seed of the moments is {seed}")
    draw, cuts = random.Random(seed), 0
    checked: set[str] = set()
    for number in range(pytestconfig.getoption("--kills")):
        in_a_cut = number % 2 == 0
        agent = start_agent(configuration(directory), serving=in_a_cut)
        if in_a_cut:
            assert buffers(tracefs) == [f"{INSTANCE}.slow.a", f"{INSTANCE}.slow.b"]
            assert not any(PART.fullmatch(name) for name in os.listdir(directory))
            for _ in range(10_000):  # events, so that the files take a while
                (tmp_path / "config0.yaml").read_bytes()
            agent.signal(signal.SIGUSR1)
            cuts += 1
        time.sleep(draw.uniform(0, patience(CUT if in_a_cut else START)))
        agent.end(signal.SIGKILL)
        # Programs can still write marks, whichever buffer had them.
        (tracefs / "trace_marker").write_text("B|1|mark\n")
        if directory.exists():
            check_files(directory, checked)
    start_agent(f"global: {{tracefs_instance: {INSTANCE}}}\nprobes: [{NAPS}]\n")
    assert buffers(tracefs) == []
    start_agent(configuration(directory).replace(INSTANCE, f"{INSTANCE}_2"))
    assert not any(PART.fullmatch(name) for name in os.listdir(directory))
    check_files(directory, checked)
    assert len(checked) <= 2 * cuts
