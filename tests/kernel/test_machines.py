"""The agent on machines of other shapes: CPUs that are offline, one CPU or many, settings that hosts have.

`tests/vm/machines.py` has the machines; the settings are tried on each of them.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from kprobe_exporter.cli import main
from kprobe_exporter.tracefs.ownership import MARKER
from tests.conftest import has
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.mounts import mounted
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace, TraceProcess

TIMES = 23
SWITCHES = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/online"))
"""By which a CPU is brought online and taken offline; CPU 0 has none, and the machine "single" no other."""
CONFIG = """
global: {source: %s}
probes:
  - name: open
    attach: "tracepoint:syscalls:sys_exit_openat"
    fetch: {return: ret}
    filter: "return == -21"
    metrics: [{counter: open_errors_total, help: h, labels: {errno: {field: return, decode: errno}}}]
"""
CLONE_NEWNS = 0x00020000
LIBC = ctypes.CDLL(None, use_errno=True)

pytestmark = pytest.mark.skipif(
    "KPROBE_EXPORTER_VM" not in os.environ, reason="not on a machine that is used on"
)


def fail_to_open(times: int = TIMES) -> None:
    """Open a directory for writing so often, in turn on each CPU that is online."""
    allowed = os.sched_getaffinity(0)
    try:
        for _, cpu in zip(range(times), cycle(sorted(allowed)), strict=False):
            os.sched_setaffinity(0, {cpu})
            with pytest.raises(IsADirectoryError):
                os.open("/", os.O_WRONLY)
    finally:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def failed(agent: AgentProcess) -> float:
    return agent.scrape().total("kprobe_open_errors_total", errno="EISDIR")


def assert_counts_and_ends(agent: AgentProcess) -> None:
    """The packaged configuration counts TIMES of TIMES, and the agent then ends by itself."""
    before = failed(agent)
    fail_to_open()
    assert failed(agent) - before == TIMES
    metrics = agent.scrape()
    down = [one["probe"] for one in metrics.labels("kprobe_up") if not metrics.value("kprobe_up", **one)]
    assert not has("kprobe_events") or not down, agent.output()
    assert metrics.total("kprobe_exporter_events_lost_total") == 0
    assert agent.end() == 0
    assert "Traceback" not in agent.output()


def test_packaged_configuration(start_agent: StartAgent) -> None:
    assert_counts_and_ends(start_agent(None))


@pytest.mark.parametrize("source", ["auto", "text"])
def test_hotplug_during_load(start_agent: StartAgent, source: str) -> None:
    """CPUs come online, some for the first time since the boot, and go offline: each event is counted."""
    agent = start_agent(CONFIG % source)
    before = [switch.read_text() for switch in SWITCHES]
    rounds = 0
    try:
        for switch in SWITCHES[:4]:
            for state in ("1", "0", "1"):
                switch.write_text(state)
                os.sched_setaffinity(0, range(os.cpu_count() or 1))
                fail_to_open()
                rounds += 1
                assert failed(agent) == rounds * TIMES
    finally:
        for switch, state in zip(SWITCHES, before, strict=True):
            switch.write_text(state)
    assert agent.scrape().total("kprobe_exporter_events_lost_total") == 0
    assert agent.end() == 0


def enabled(traced: TraceProcess) -> bool:
    """Whether its event is: an eprobe, or the tracepoint's own where the kernel has no eprobes."""
    events = traced.instance / "events"
    files = [events / "syscalls/sys_exit_openat/enable", *events.glob(f"{traced.instance.name}/*/enable")]
    return any(
        file.read_text().startswith("1") for file in files if file.parent.name != MARKER and file.exists()
    )


def test_traces(trace: StartTrace) -> None:
    """The terminal reads the same buffers."""
    traced = trace("--json", "tracepoint:syscalls:sys_exit_openat", "ret == -21")
    eventually(lambda: enabled(traced))
    fail_to_open()
    assert traced.end() == 0
    found = [json.loads(line) for line in traced.output.splitlines() if line.startswith(b"{")]
    assert len(found) == TIMES


@contextmanager
def written(path: Path, text: str) -> Iterator[None]:
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


def sysctl(name: str, value: int) -> Callable[[], ExitStack]:
    def setting() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(written(Path("/proc/sys/kernel", name), str(value)))
        return stack

    return setting


def hidden(path: str) -> Callable[[], ExitStack]:
    """Hide a file or directory of the kernel."""

    def setting() -> ExitStack:
        stack = ExitStack()
        if Path(path).is_dir():
            stack.enter_context(mounted(Path(path), "-t", "tmpfs"))
        elif Path(path).exists():
            stack.enter_context(mounted(Path(path), "--bind", source="/dev/null"))
        return stack

    return setting


def cgroups(hybrid: bool) -> Callable[[], ExitStack]:
    """Mount cgroup v1, with an empty v2 beside it if ``hybrid``, where systemd does."""

    def setting() -> ExitStack:
        stack = ExitStack()
        root = stack.enter_context(mounted(Path("/sys/fs/cgroup"), "-t", "tmpfs"))
        for name, options in (("freezer", ("-t", "cgroup", "-o", "freezer")), ("unified", ("-t", "cgroup2"))):
            if name == "freezer" or hybrid:
                (root / name).mkdir()
                stack.enter_context(mounted(root / name, *options))
        return stack

    return setting


SETTINGS = {
    "few process ids": sysctl("pid_max", 1024),
    "4 million process ids": sysctl("pid_max", 4194304),
    "kptr_restrict": sysctl("kptr_restrict", 2),
    "no kallsyms": hidden("/proc/kallsyms"),
    "no BTF": hidden("/sys/kernel/btf"),
    "cgroup v1": cgroups(hybrid=False),
    "hybrid cgroups": cgroups(hybrid=True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_setting(start_agent: StartAgent, name: str) -> None:
    with SETTINGS[name]():
        assert_counts_and_ends(start_agent(None))


def test_tracefs_below_debugfs_alone(start_agent: StartAgent, tracefs: Path) -> None:
    """As on kernels before 4.1 and on hosts that mount debugfs alone."""

    def apart(arguments: list[str]) -> None:
        assert LIBC.unshare(CLONE_NEWNS) == 0
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        while os.path.ismount(tracefs):
            subprocess.run(["umount", "-l", tracefs], check=True)
        if not os.path.ismount("/sys/kernel/debug"):
            subprocess.run(["mount", "-t", "debugfs", "nodev", "/sys/kernel/debug"], check=True)
        main(arguments)

    agent = start_agent(None, main=apart)
    assert_counts_and_ends(agent)


def test_doctor_says_that_the_agent_works_here() -> None:
    command = [sys.executable, "-m", "kprobe_exporter", "doctor"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.stdout.endswith("'run' can work here\n"), said.stdout
