"""Recordings hold exactly what the load did in the window: its own record is the oracle.

They are read back by trace-cmd and by Perfetto's descriptors.
"""

import mmap
import os
import re
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # type: ignore[import-untyped]
    Trace,
    TrackEvent,
)

from tests.kernel.conftest import StartAgent
from tests.support.delayed_disks import SLACK, delayed, device_number, disk
from tests.support.joined_calls import nap
from tests.support.leftovers import instances
from tests.support.mounts import mounted
from tests.support.patience import eventually, patience
from tests.support.recorder import NAMED, NAPS, OPENS, Load, Recorder, numbered_open, run_load
from tests.support.trace_cmd import report

pytestmark = pytest.mark.skipif(
    shutil.which("trace-cmd") is None and not os.environ.get("CI"),
    reason="no trace-cmd: `make test` installs it",
)

WINDOW = float(round(patience(1)))
"""Seconds. Between the condition and its noticing a slow machine needs some of them."""
NAP = round(patience(0.4), 1)
"""Seconds of the sleep that is the condition: on a slow machine the load's other sleeps may take 0.3 s."""
LONG = f"{NAP * 750:.0f}ms"
"""Less than that sleep takes."""

MORE = '{name: more, attach: "tracepoint:sched:sched_process_exec"}'
WHEN = f"when: [{{probe: naps, where: duration > {LONG} && comm == 'stalls'}}]"


@pytest.fixture
def recording(start_agent: StartAgent, tmp_path: Path) -> Callable[..., Recorder]:
    def start(
        rest: str = "", *probes: str, budget: str = "", window: float = WINDOW, recorded: str = ""
    ) -> Recorder:
        where = tmp_path / "files"
        text = configuration(where, rest, *probes, budget=budget, window=window, recorded=recorded)
        agent = start_agent(text, "--web.enable-lifecycle", "--web.enable-recordings")
        [config] = tmp_path.glob("config*.yaml")
        return Recorder(agent, where, config)

    return start


def configuration(
    directory: Path,
    rest: str = "",
    *probes: str,
    budget: str = "",
    window: float = WINDOW,
    recorded: str = "",
) -> str:
    one = f'name: slow, probes: [naps, "{OPENS}"{recorded}], window: {window:.0f}s, {rest or WHEN}'
    return (
        f"{NAMED}probes: [{', '.join([NAPS, *probes])}]\n"
        f"record: {{directory: {directory}, {budget} recordings: [{{{one}}}]}}\n"
    )


def stalls(seconds: float) -> Load:
    """Open files for a while, and then sleep for too long."""
    return run_load("stalls", seconds, numbered_open, lambda: nap(NAP))


def opens_in(file: Path, pid: int) -> dict[int, int]:
    """The numbers of this process' opens in a trace.dat, with their times in nanoseconds."""
    lines = report(file, "-t")
    pattern = re.compile(rf"-{pid} +\[\d+\] +(\d+)\.(\d+): sys_enter_openat: .*dfd: (?:0x)?([0-9a-f]+)")
    found = [match for line in lines if (match := pattern.search(line))]
    numbers = [int(match[3], 16) for match in found]
    assert len({*numbers}) == len(numbers), "no event is there twice"
    times = [int(match[1]) * 10**9 + int(match[2].ljust(9, "0")) for match in found]
    return dict(zip(numbers, times, strict=True))


@pytest.mark.needs("initial_pid_namespace")
def test_exactly_the_window_is_there(recording: Callable[..., Recorder]) -> None:
    """The condition fires once for one stall, which both formats show."""
    here = recording(WHEN + ", formats: [trace.dat, perfetto]")
    load = stalls(WINDOW + 1.5)
    files = the_files(here, load)
    said = f"is in {' and '.join(file.name for file in files)}: {WINDOW:.1f} s before naps: duration > {LONG}"
    eventually(lambda: said in here.agent.output(), 5)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert here.directory.stat().st_mode & 0o777 == 0o700
    eventually(lambda: here.results() == {"written": 1, "refused": 0, "failed": 0}, 5)


@pytest.mark.needs("initial_pid_namespace", "kprobe_events")
def test_a_stall_of_a_disk(recording: Callable[..., Recorder]) -> None:
    """A read takes as long as the disk delays it, and the recording shows that it waited for the disk."""
    with disk() as below, delayed("stalls", below, NAP) as slow:
        read = "tracepoint:block:block_bio_queue", "tracepoint:block:block_bio_complete"
        here = recording(
            WHEN.replace("naps", "reads") + ", formats: [trace.dat, perfetto]",
            '{name: reads, attach: "syscall:preadv2"}',
            recorded="".join(f', "{one}"' for one in ("reads", *read)),
        )
        page, file = mmap.mmap(-1, mmap.PAGESIZE), os.open(slow, os.O_RDONLY | os.O_DIRECT)
        load = run_load("stalls", WINDOW + 1.5, numbered_open, lambda: read_page(file, page))
        os.close(file)
        data, _ = the_files(here, load, "reads", SLACK)
        device = device_number(slow)
    text, named = "\n".join(report(data, "-t")), f"{device >> 20},{device & 0xFFFFF}"
    # Others may read the new disk, too.
    [(queued, sector)] = re.findall(rf" ([\d.]+): block_bio_queue: +{named} R\w* (\d+) \+ 8 \[stalls\]", text)
    completed = re.findall(rf" ([\d.]+): block_bio_complete: +{named} R\w* {sector} \+ ", text)
    begun = ns(queued)
    ended = max(time for time in map(ns, completed) if time <= load.last[1])
    assert load.last[0] <= begun <= ended <= load.last[1]
    assert ended - begun >= (NAP - SLACK) * 1e9
    eventually(lambda: here.results() == {"written": 1, "refused": 0, "failed": 0}, 5)


def read_page(file: int, page: mmap.mmap) -> None:
    """Read by preadv2(2), which os.preadv() calls; O_DIRECT needs memory that begins at a page."""
    os.preadv(file, [page], 0)


def the_files(here: Recorder, load: Load, probe: str = "naps", slack: float = 0) -> tuple[Path, Path]:
    """The two files of a stall, which have exactly the load's steps in the window."""
    file = here.wait_for_file()
    stopped = time.monotonic_ns()
    timeline = here.wait_for_file("pftrace")
    load.end()
    found = opens_in(file, load.pid)
    # The buffer stopped after the stall and before its file was there.
    window = round(WINDOW * 1e9)
    assert load.must(stopped - window) <= found.keys() <= load.may(load.last[1] - window)
    assert found
    assert all(load.steps[number][0] <= time <= load.steps[number][1] for number, time in found.items())
    begin = min(map(ns, re.findall(r"\] +(\d+\.\d+):", "\n".join(report(file, "-t")))))
    assert load.must(begin) <= found.keys() <= load.may(begin)  # the first event may be a step
    assert "EVENTS DROPPED" not in "\n".join(report(file))

    read = Trace()
    read.ParseFromString(timeline.read_bytes())
    tracks = {one.track_descriptor.uuid: one.track_descriptor for one in read.packet}
    events = [one for one in read.packet if one.HasField("track_event")]
    ours = [one for one in events if tracks[one.track_event.track_uuid].thread.tid == load.pid]
    drawn = {
        value.uint_value: one.timestamp
        for one in ours
        if one.track_event.name == "sys_enter_openat"
        for value in one.track_event.debug_annotations
        if value.name == "dfd"
    }
    assert drawn == found
    slices = [
        one.timestamp
        for one in ours
        if one.track_event.type == TrackEvent.TYPE_SLICE_BEGIN and one.track_event.name == probe
    ]
    assert load.last[0] <= max(slices) <= load.last[1] - round((NAP - slack) * 1e9)
    assert {tracks[one.track_event.track_uuid].thread.thread_name for one in ours} == {"stalls"}
    return file, timeline


def ns(text: str) -> int:
    seconds, _, rest = text.partition(".")
    return int(seconds) * 10**9 + int(rest.ljust(9, "0"))


def test_a_burst_is_one_file(recording: Callable[..., Recorder]) -> None:
    here = recording(f"{WHEN}, every: {patience(10):.0f}s")
    for _ in range(3):
        stalls(0.05).end()
    here.wait_for_file()
    eventually(lambda: here.results()["refused"] >= 1, 5)
    assert len(here.files()) == here.results()["written"] == 1


CRASHES = (
    '{name: crashes, attach: "tracepoint:signal:signal_deliver", fetch: {sig: sig, sa_handler: sa_handler}}'
)


def test_a_crash_is_a_condition(recording: Callable[..., Recorder]) -> None:
    """A signal with a handler is none, nor is one that no program crashes by."""
    crash = "sa_handler == 0 && (sig == 6 || sig == 11)"
    here = recording(f'every: 1s, when: [{{probe: crashes, where: "{crash}"}}]', CRASHES)

    def signalled(number: int, *, handled: bool) -> int:
        pid = os.fork()
        if pid == 0:
            signal.signal(number, (lambda *_: os._exit(0)) if handled else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert signalled(signal.SIGSEGV, handled=True) == 0
    assert signalled(signal.SIGTERM, handled=False) == -signal.SIGTERM
    counter = "kprobe_record_slow_total"
    delivered = "kprobe_exporter_events_total"
    eventually(lambda: here.agent.scrape().value(delivered, probe="crashes") >= 2, 10)
    assert here.agent.scrape().value(counter) == 0
    assert here.files() == []
    assert signalled(signal.SIGSEGV, handled=False) == -signal.SIGSEGV
    here.wait_for_file()
    assert here.agent.scrape().value(counter) == 1


def test_requests_by_signal_and_by_http(recording: Callable[..., Recorder]) -> None:
    here = recording("every: 1s")
    assert [*here.directory.iterdir()] == []
    here.agent.signal(signal.SIGUSR1)
    first = here.wait_for_file()
    assert here.post("/-/record?name=other") == (503, "there is no such recording\n")
    status, text = here.post("/-/record?name=slow")
    while status == 503:
        assert text.startswith("slow: refused: the last one was ")
        time.sleep(0.2)
        status, text = here.post("/-/record")
    second = here.wait_for_file(number=2)
    assert (status, text) == (200, f"slow: wrote {second.name}\n")
    listed = "".join(f"{one.name} {one.stat().st_size}\n" for one in (first, second))
    assert here.agent.get("/recordings") == listed
    with urllib.request.urlopen(f"{here.agent.address}/recordings/{second.name}") as answer:
        assert answer.read() == second.read_bytes()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        here.agent.get("/recordings/config0.yaml")


@pytest.mark.needs("initial_pid_namespace")
def test_events_before_a_reload_are_there(recording: Callable[..., Recorder]) -> None:
    here = recording("every: 1s", window=600)
    load = opened(5)
    here.config.write_text(configuration(here.directory, "every: 1s", MORE, window=600))
    assert here.post("/-/reload")[0] == 200
    assert here.post("/-/record")[0] == 200
    assert len(opens_in(here.wait_for_file(), load)) == 5
    here.config.write_text(f"{NAMED}probes: [{NAPS}]\n")
    assert here.post("/-/reload")[0] == 200
    assert not any(".slow." in name for name in instances(Path("/sys/kernel/tracing")))


def opened(times: int) -> int:
    """Open files in a process, as often as is said; return its id."""
    pid = os.fork()
    if pid == 0:
        for number in range(times):
            numbered_open(number)
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_losses_in_the_window_are_marked(recording: Callable[..., Recorder]) -> None:
    """The buffer holds less than the window."""
    here = recording("buffer_size: 4KiB")
    os.sched_setaffinity(0, {0})
    try:
        opened(4000)
    finally:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    assert here.post("/-/record")[0] == 200
    assert "EVENTS DROPPED" in "\n".join(report(here.wait_for_file()))


def test_a_thousand_conditions_keep_the_budget(recording: Callable[..., Recorder]) -> None:
    here = recording(
        "every: 1s, buffer_size: 64KiB, when: [{probe: opens, where: dfd == 77777}]",
        f'{{name: opens, attach: "{OPENS}", fetch: {{dfd: dfd}}}}',
        budget="max_files: 3, max_bytes: 2MiB,",
    )
    for _ in range(1000):
        numbered_open(77_777)
        time.sleep(0.012)
        files = here.files()
        assert len(files) <= 3
        assert sum(size_of(file) for file in files) <= 2 << 20
    results = here.results()
    assert 5 <= results["written"] <= 60
    assert results["refused"] > results["written"]
    assert results["failed"] == 0


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_directory_that_is_gone_then_a_link_then_full(
    recording: Callable[..., Recorder], tmp_path: Path
) -> None:
    here = recording("every: 1s")

    def asked() -> str:
        status, text = 503, "refused: the last one"
        while "refused: the last one" in text:
            time.sleep(0.2)
            status, text = here.post("/-/record")
        assert status == 503
        return text

    here.directory.rmdir()
    assert asked() == "slow: failed: No such file or directory\n"
    other = tmp_path / "other"
    other.mkdir()
    here.directory.symlink_to(other)
    assert asked() == "slow: failed: Not a directory\n"
    assert [*other.iterdir()] == []
    here.directory.unlink()
    here.directory.mkdir()
    with mounted(here.directory, "-t", "tmpfs", "-o", "size=64k"):
        opened(3000)
        assert asked() == "slow: failed: No space left on device\n"
        assert [*here.directory.iterdir()] == []
    eventually(lambda: here.post("/-/record")[0] == 200, 10)
    assert here.results()["failed"] == 3


@pytest.mark.needs("initial_pid_namespace")
def test_changes_by_other_processes_are_undone(recording: Callable[..., Recorder], tracefs: Path) -> None:
    """Of both buffers; a file after that has all events again."""
    here = recording("every: 1s", window=600)
    event = "events/syscalls/sys_enter_openat"
    both = [tracefs / f"instances/recorder_under_test.slow.{end}" for end in "ab"]

    def state() -> list[bytes] | None:
        """What others change, None while an instance is not there."""
        files = ("tracing_on", "trace_clock", "buffer_size_kb", f"{event}/enable", f"{event}/filter")
        with suppress(FileNotFoundError):
            return [(one / file).read_bytes() for one in both for file in files]
        return None

    def is_over(times: int) -> bool:
        """The fault has begun so often, and does not hold any more."""
        found = here.agent.scrape()
        began = found.value("kprobe_exporter_faults_total", fault="recording_changed")
        return began == times and not found.value("kprobe_exporter_fault", fault="recording_changed")

    before = state()
    for number, one in enumerate(both):
        (one / event / "enable").write_text("0")
        (one / event / "filter").write_text("common_pid == 1")
        (one / "trace_clock").write_text("local")
        (one / "tracing_on").write_text("1" if one == both[1] else "0")
        eventually(lambda: state() == before, 10)
        eventually(lambda: is_over(2 * number + 1), 10)  # noqa: B023
        one.rmdir()
        eventually(lambda: state() == before, 10)
        eventually(lambda: is_over(2 * number + 2), 10)  # noqa: B023
        assert f"changed in a recording: instances/{one.name} was removed" in here.agent.output()
    for number in (1, 2):  # each buffer once
        load = opened(5)
        eventually(lambda: here.post("/-/record")[0] == 200, 10)
        assert len(opens_in(here.wait_for_file(number=number), load)) == 5


def test_a_killed_agents_buffers_are_removed(
    recording: Callable[..., Recorder], start_agent: StartAgent, tracefs: Path
) -> None:
    here = recording()
    assert any(".slow." in name for name in instances(tracefs))
    here.agent.end(signal.SIGKILL)
    assert any(".slow." in name for name in instances(tracefs))
    start_agent(f"{NAMED}probes: [{NAPS}]\n")
    assert not any(".slow." in name for name in instances(tracefs))
