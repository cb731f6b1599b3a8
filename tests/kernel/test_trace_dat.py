"""`trace --trace-dat` writes recordings that trace-cmd reads: the load's own record is the oracle."""

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.kernel.workload import Child
from tests.support.trace_cmd import report
from tests.support.trace_process import traces

pytestmark = pytest.mark.skipif(
    shutil.which("trace-cmd") is None and not os.environ.get("CI"),
    reason="no trace-cmd: `make test` installs it",
)

FLAGS = [os.O_CLOEXEC | more for more in (0, os.O_NONBLOCK, os.O_DIRECTORY, os.O_NOFOLLOW)]
TIMES = 1500
"""Opens of the load: their events fill several pages of the ring buffer."""


def opens() -> None:
    for number in range(TIMES):
        try:
            os.close(os.open("/", FLAGS[number % len(FLAGS)]))
        except OSError as error:  # "/" is a directory, and every kind of open succeeds
            raise SystemExit(1) from error


def record(directory: Path, child: Child, *definition: str) -> Path:
    """Record the events of the child while it works, until Ctrl-C."""
    file = directory / "out.dat"
    with traces(directory) as start:
        trace = start("--trace-dat", str(file), "-p", str(child.pid), *definition)
        trace.wait_for(b"Recording ")
        child.work()
        child.close()
        trace.signal(signal.SIGINT)
        assert trace.wait() == 0, trace.errors
        assert not trace.instance.exists()
    return file


@pytest.mark.needs("initial_pid_namespace")
def test_each_event_is_there_with_its_values(tmp_path: Path) -> None:
    child = Child(opens)
    pid = child.pid
    file = record(tmp_path, child, "syscalls:sys_enter_openat")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []
    lines = [line for line in report(file) if "sys_enter_openat:" in line]
    flags = [int(found[1], 0) for line in lines if (found := re.search(r"flags: (\w+)", line))]
    assert flags[:TIMES] == [FLAGS[number % len(FLAGS)] for number in range(TIMES)]
    assert {line.split()[0].rpartition("-")[2] for line in lines} == {str(pid)}
    times = [float(line.split()[2].rstrip(":")) for line in lines]
    assert times == sorted(times)


@pytest.mark.needs("kprobe_events")
def test_a_kprobe_with_stacks(tmp_path: Path) -> None:
    child = Child(opens)
    file = record(tmp_path, child, "-s", "p:mine do_sys_openat2 dfd=%di:s32")
    lines = report(file)
    assert sum("dfd=-100" in line for line in lines) == TIMES
    assert sum("kernel_stack:" in line for line in lines) == TIMES
    assert sum("do_sys_openat2" in line for line in lines) >= TIMES


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """The directory goes while the trace runs."""
    directory = tmp_path / "gone"
    directory.mkdir()
    with traces(tmp_path) as start:
        trace = start("--trace-dat", str(directory / "out.dat"), "sched:sched_process_exec")
        trace.wait_for(b"Recording ")
        directory.rmdir()
        trace.signal(signal.SIGINT)
        assert trace.wait() == 1
        assert "out.dat cannot be written: No such file or directory." in trace.errors
        assert not trace.instance.exists()
