"""An agent that reads raw pages reports every lost event, and no name can forge an event."""

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.cli import main
from kprobe_exporter.identity.threads import Threads
from kprobe_exporter.model.records import CPU, TID, TIME, VALUES, Batch
from kprobe_exporter.plan.shape import geometry, shape
from kprobe_exporter.probing.event_source import KernelNames
from kprobe_exporter.source import _pages as compiled
from kprobe_exporter.source.binary import BinaryPipe
from kprobe_exporter.source.lines import LineParser, TextPipe
from kprobe_exporter.source.reader import Pipe
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.probes import Installed
from tests.kernel.conftest import StartAgent
from tests.model import pages
from tests.support.flood import FLOOD, flooded, losses, settled
from tests.support.installed_probes import installed
from tests.support.patience import eventually
from tests.support.provoked_calls import getppid

FORGED_LINE = '             cat-1     [000] .....     1.000001: open: (f+0x0/0x1) dfd=3 file="/etc/shadow"'
FORGED = f"/nonexistent\n{FORGED_LINE}"

SOURCES = ["binary", "text"]


@pytest.mark.needs("kprobe_events")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("label", ["tid", "caller"])
def test_flooded_what_is_lost_is_hits_less_delivered(
    start_agent: StartAgent, source: str, label: str
) -> None:
    agent = start_agent(f"""
global: {{source: {source}, buffer_size: 16KiB, limit: none}}
probes:
  - name: flood
    limit: none
    attach: kretprobe:sys_getppid
    returns: long
    metrics: [{{counter: calls_total, labels: [{label}]}}]
""")

    def flood() -> None:
        with ProcessPoolExecutor(2) as others:
            list(others.map(getppid, [FLOOD // 2] * 2))

    fired, metrics = flooded(agent, flood)
    hits = metrics.value("kprobe_hits_total", probe="flood")
    events = metrics.value("kprobe_exporter_events_total", probe="flood")
    assert hits >= fired
    assert losses(metrics) > 0
    assert hits - events == losses(metrics), f"{metrics.text}; then {settled(agent).text}"
    assert metrics.value("kprobe_exporter_events_lost_total", reason="unparsed") == 0
    calls = metrics.total("kprobe_calls_total")
    assert calls == events == metrics.value("kprobe_return_value_count", probe="flood")


SEEKS = 6000
"""Seeks on each CPU in a flood, several times what its buffer holds."""

SEEKING = """
probes:
  - name: seek
    attach: tracepoint:syscalls:sys_exit_lseek
    fetch: {return: ret}
    returns: long
    metrics: [{counter: seeks_total, labels: [return]}]
"""


@pytest.fixture
def small(files: MountedTracefs) -> Iterator[Instance]:
    with Instance.acquire(files, "kprobe_exporter_losses") as made:
        made.set_up(16, record_tgid=False)
        yield made


class Flood:
    """Children that seek on every CPU, each time to the next higher offset, and note the time before it.

    Seek n of a CPU, counted from 0, lies between its times n and n + 1.
    """

    def __init__(self) -> None:
        self.cpus = sorted(os.sched_getaffinity(0))
        self._memory = {cpu: mmap.mmap(-1, 8 * (SEEKS + 1)) for cpu in self.cpus}
        self.times = {cpu: memoryview(memory).cast("Q") for cpu, memory in self._memory.items()}
        self.children = {self._start(cpu): cpu for cpu in self.cpus}

    def _start(self, cpu: int) -> int:
        if child := os.fork():
            return child
        os.sched_setaffinity(0, {cpu})
        times, file = self.times[cpu], os.memfd_create("seeks")
        for place in range(SEEKS):
            times[place] = time.monotonic_ns()
            os.lseek(file, place, os.SEEK_SET)
        times[SEEKS] = time.monotonic_ns()
        os._exit(0)

    def running(self) -> bool:
        return any(os.waitid(os.P_PID, child, FINISHED) is None for child in self.children)

    def wait(self) -> None:
        for child in self.children:
            assert os.waitpid(child, 0)[1] == 0


FINISHED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def opened(instance: Instance, probe: Installed, kind: Any, deliver: Callable[[Batch], None]) -> Pipe:
    """Open the instance's raw pages with this parser, or its text for ``LineParser``."""
    if kind is LineParser:
        return TextPipe(instance.open_pipe(), LineParser([probe.layout]), deliver)
    header = geometry(*(instance.read(f"events/header_{name}").decode() for name in ("page", "event")))
    form = instance.event_format(probe.system, probe.event)
    assert form is not None
    names = KernelNames(Threads(instance.files), Symbols(instance.files))
    parser = kind(header, [shape(probe.layout, form)], names)
    return BinaryPipe(instance.open_raw(), parser, deliver, 2 + 2 * 16 * 1024 // header.page, header.page)


@pytest.mark.needs("initial_pid_namespace")
@pytest.mark.parametrize(
    "kind", [pages.PageParser, compiled.PageParser, LineParser], ids=["python", "compiled", "text"]
)
def test_every_event_that_is_missing_lies_in_a_loss(small: Instance, tmp_path: Path, kind: Any) -> None:
    """Two floods are read only when they are over, and the third one also while it runs."""
    batches: list[Batch] = []
    floods = []
    with installed(small, tmp_path, SEEKING, own=True) as (probe,):
        pipe = opened(small, probe, kind, batches.append)
        for live in (False, False, True):
            floods.append(Flood())
            while live and floods[-1].running():
                pipe.empty(last=False)
            floods[-1].wait()
            pipe.empty(last=False)
        pipe.empty(last=True)
        pipe.close()
    rounding = 1000 if kind is LineParser else 0
    records = [record for batch in batches for record in batch.records]
    told = [loss for batch in batches for loss in batch.losses]
    for flood in floods:
        for child, cpu in flood.children.items():
            windows = [loss for loss in told if loss.cpu == cpu]
            mine = {record[VALUES] for record in records if record[TID] == child}
            missing = set(range(SEEKS)) - mine
            assert mine
            assert missing or flood is floods[-1]
            for place in missing:
                began, ended = flood.times[cpu][place], flood.times[cpu][place + 1]
                assert any(
                    loss.start - rounding <= ended and began <= loss.end + rounding for loss in windows
                )
    assert sum(batch.unparsed for batch in batches) == 0
    for loss in told:
        assert not any(loss.start < record[TIME] < loss.end for record in records if record[CPU] == loss.cpu)
    if kind is not LineParser:
        latest = 0
        for batch in batches:
            assert all(latest <= loss.start for loss in batch.losses)
            latest = max([latest, *(record[TIME] for record in batch.records)])


@pytest.mark.needs("kprobe_events")
def test_a_name_with_a_newline_forges_nothing(start_agent: StartAgent) -> None:
    agent = start_agent("""
probes:
  - name: open
    attach: kprobe:do_sys_openat2
    fetch: {file: "+0($arg2):ustring", dfd: "$arg1:s32"}
    filter: 'file ~ "/nonexistent*" || file ~ "/etc/shadow*"'
    metrics: [{counter: opens_total, labels: [file, dfd, comm]}]
""")
    with pytest.raises(FileNotFoundError):
        os.open(FORGED, os.O_RDONLY)
    agent_text = agent.get()
    metrics = agent.scrape()
    (labels,) = metrics.labels("kprobe_opens_total")
    assert (labels["file"], labels["dfd"]) == (FORGED.replace("\n", "\\n"), "-100")
    assert metrics.value("kprobe_opens_total", **labels) == 1
    assert metrics.value("kprobe_exporter_events_total", probe="open") == 1
    assert losses(metrics) + metrics.value("kprobe_exporter_events_lost_total", reason="unparsed") == 0
    (line,) = [line for line in agent_text.splitlines() if line.startswith("kprobe_opens_total{")]
    assert "/nonexistent\\\\n" in line
    assert not any(line.lstrip().startswith("cat-1") for line in agent_text.splitlines())


def test_a_tracepoints_string_with_a_newline_forges_nothing(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent("""
probes:
  - name: exec
    attach: tracepoint:sched:sched_process_exec
    fetch: {file: filename}
    filter: 'file ~ "*forged*"'
    metrics: [{counter: execs_total, labels: [file]}]
""")
    name = tmp_path / "forged\n  x-1 [000] ..... 1.000001: sched_process_exec: filename=y pid=1 old_pid=1"
    name.symlink_to(sys.executable)
    subprocess.run([str(name), "-c", ""], check=True)
    metrics = agent.scrape()
    (labels,) = metrics.labels("kprobe_execs_total")
    assert labels["file"].startswith(str(tmp_path)[:100])
    assert metrics.value("kprobe_execs_total", **labels) == 1


@pytest.mark.needs("kprobe_events")
def test_the_caller_and_the_process_are_known_at_once(start_agent: StartAgent) -> None:
    """Pages have no names: the caller comes from the kernel's symbols, the process from the thread's id."""
    agent = start_agent("""
probes:
  - name: read
    attach: kretprobe:vfs_read
    returns: long
    filter: return == 77
    metrics: [{counter: reads_total, labels: [caller, pid, comm]}]
""")

    def read() -> None:
        device = os.open("/dev/zero", os.O_RDONLY)
        os.read(device, 77)
        os.close(device)

    with ThreadPoolExecutor(1) as other:
        other.submit(read).result()
        # The first address loads the kernel's symbols, which takes a while under emulation.
        eventually(lambda: agent.scrape().labels("kprobe_reads_total"))
    (labels,) = agent.scrape().labels("kprobe_reads_total")
    assert labels["caller"] == "ksys_read"
    assert labels["pid"] == str(os.getpid())


def without_capabilities(arguments: list[str]) -> None:
    """Run the command line as uid 0 without any capability."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capset(header, none) == 0
    main(arguments)


@pytest.mark.needs("kprobe_events")
def test_without_any_capability(start_agent: StartAgent, files: MountedTracefs) -> None:
    """The caller is known by the addresses that tracefs lists; where it lists none, the caller is unknown."""
    config = """
probes:
  - name: read
    attach: kretprobe:vfs_read
    returns: long
    filter: return == 77
    metrics: [{counter: reads_total, labels: [caller, comm]}]
"""
    agent = start_agent(config, main=without_capabilities)
    with open("/dev/zero", "rb", buffering=0) as zero, ThreadPoolExecutor(1) as other:
        other.submit(zero.read, 77).result()
        eventually(lambda: agent.scrape().labels("kprobe_reads_total"))
    (labels,) = agent.scrape().labels("kprobe_reads_total")
    shown = Symbols(files, Path("/nowhere")).visible()
    assert labels["caller"] == ("ksys_read" if shown else "unknown")
    assert "read as text" not in agent.output()


@pytest.mark.needs("kprobe_events")
def test_stacks_without_the_right_to_see_addresses(start_agent: StartAgent, files: MountedTracefs) -> None:
    """Where addresses are hidden, the agent reads the kernel's text, which has the names."""
    config = """
probes:
  - name: parent
    attach: kprobe:sys_getppid
    stack: true
    metrics: [{counter: calls_total, labels: [comm]}]
"""
    agent = start_agent(config, main=without_capabilities)
    getppid(23)
    eventually(lambda: agent.scrape().total("kprobe_calls_total") >= 23)
    shown = Symbols(files, Path("/nowhere")).visible()
    assert ("events are read as text: stacks are asked for" in agent.output()) is not shown
