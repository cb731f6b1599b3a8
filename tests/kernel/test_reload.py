"""At a reload, unchanged probes lose nothing, changed ones continue, and removed ones leave nothing."""

import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kprobe_exporter.agent import probe_set
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.ownership import MARKER
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.foreign import foreign_things
from tests.support.leftovers import definitions, instances
from tests.support.libc import own_libc
from tests.support.patience import patience
from tests.support.provoked_calls import getppid
from tests.vm.kernels import EPROBES

GETPPID = "kprobe:sys_getppid"
GETPPID_ENTERS = "tracepoint:syscalls:sys_enter_getppid"
TRACEPOINT = (
    f'{{name: enters, attach: "{GETPPID_ENTERS}", metrics: [{{counter: enters_total, labels: [comm]}}]}}'
)
PROBE = f'{{name: ppid, attach: "{GETPPID}", metrics: [{{counter: ppid_total, labels: [cpu]}}]}}'
SOFT = f'{{name: soft, attach: "{GETPPID}"}}'
CALL = '{name: call, attach: "call:sys_getppid", returns: int}'
TABLE = f'{{name: table, attach: "{GETPPID_ENTERS}", aggregate: kernel, metrics: [{{counter: table_total}}]}}'
AGAIN = TABLE.replace("table_total", "again_total, labels: [tid]").replace("table", "again")
LOST = "kprobe_exporter_events_lost_total"

NEW = TRACEPOINT.replace("enters_total, labels: [comm]", "new_total").replace("name: enters", "name: new")
NEW = NEW.replace("metrics", "fetch: {a%s: __syscall_nr}, metrics")

needs_kprobes = pytest.mark.needs("kprobe_events")


@dataclass
class Reloaded:
    """An agent with POST /-/reload, and its configuration file."""

    agent: AgentProcess
    path: Path

    def apply(self, *probes: str, settings: str = "") -> str:
        """Reload with these probes, and assert that the agent answers with success. Return the answer."""
        status, answer = self.post(self.text(*probes, settings=settings))
        assert (status, answer[:8]) == (200, "reloaded"), self.agent.output()
        return answer

    @staticmethod
    def text(*probes: str, settings: str = "") -> str:
        return f"global: {{{settings}}}\nprobes: [{', '.join(probes)}]\n"

    def post(self, text: str) -> tuple[int, str]:
        self.path.write_text(text)
        self.path.chmod(0o600)
        request = urllib.request.Request(f"{self.agent.address}/-/reload", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=patience(30)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def settled(self, wanted: Callable[[Metrics], bool]) -> Metrics:
        """Scrape until ``wanted`` is true, because the kernel's own counts may be 1 s old."""
        return self.agent.scrape_until(wanted, 10)


@pytest.fixture
def reloaded(start_agent: StartAgent, tmp_path: Path) -> Callable[..., Reloaded]:
    def start(*probes: str, settings: str = "", serving: bool = True) -> Reloaded:
        number = len(list(tmp_path.glob("config*.yaml")))
        text = Reloaded.text(*probes, settings=settings)
        agent = start_agent(text, "--web.enable-lifecycle", serving=serving)
        return Reloaded(agent, tmp_path / f"config{number}.yaml")

    return start


@contextmanager
def calling() -> Iterator[Callable[[], int]]:
    """A child that calls getppid some 3,000 times a second; the function ends it and returns the count."""
    stop_read, stop_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    told_read, told_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        times = 0
        while not _readable(stop_read):
            getppid(20)
            times += 20
            time.sleep(0.005)
        os.write(told_write, str(times).encode())
        os._exit(0)

    def end() -> int:
        os.write(stop_write, b"x")
        return int(os.read(told_read, 64))

    try:
        yield end
    finally:
        os.write(stop_write, b"x")
        os.waitpid(pid, 0)
        for descriptor in (stop_read, stop_write, told_read, told_write):
            os.close(descriptor)


def _readable(descriptor: int) -> bool:
    try:
        return bool(os.read(descriptor, 1))
    except BlockingIOError:
        return False


@dataclass
class Poller:
    """Scrapes all the time, and notes counters that fell and ``staying`` probes that a scrape lacked."""

    agent: AgentProcess
    staying: tuple[str, ...]
    fell: list[str] = field(default_factory=list)
    scrapes: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        done = threading.Event()
        thread = threading.Thread(target=self._poll, args=(done,))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _poll(self, done: threading.Event) -> None:
        last: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        while not done.wait(0.1):
            metrics = self.agent.scrape()
            self.scrapes += 1
            for key, value in metrics.items():
                if key[0].endswith(("_total", "_count", "_bucket")) and value < last.get(key, 0):
                    self.fell.append(f"{key}: {last[key]} to {value}")
            hits = {labels["probe"] for labels in metrics.labels("kprobe_hits_total")}
            self.fell += [f"{name} is not there" for name in self.staying if name not in hits]
            last = dict(metrics)


@needs_kprobes
def test_who_stays_loses_nothing(reloaded: Callable[..., Reloaded]) -> None:
    """During ten reloads under load, each call is a hit, an event and an increment of each metric."""
    staying = [PROBE, SOFT, CALL, TABLE, TRACEPOINT]
    run = reloaded(*staying)
    others = [
        ['{name: a, attach: "tracepoint:sched:sched_process_fork", metrics: [{counter: forks_total}]}'],
        [TRACEPOINT.replace("enters", "more")],  # on the same tracepoint
        ['{name: c, attach: "syscall:fsync"}', AGAIN],
        [],
    ]
    poller = Poller(run.agent, ("ppid", "soft", "call", "table", "enters"))
    with calling() as end, poller.running():
        for number in range(10):
            run.apply(*others[number % 4], *staying)
        times = end()
    assert times > 1000

    def counted(metrics: Metrics) -> dict[str, float]:
        named = {
            name: metrics.value("kprobe_exporter_events_total", probe=name)
            for name in ("ppid", "call", "table", "enters")
        }
        hits = {
            f"{name} hits": metrics.value("kprobe_hits_total", probe=name)
            for name in ("ppid", "soft", "call", "table", "enters")
        }
        others = {
            "cpus": metrics.total("kprobe_ppid_total"),
            "durations": metrics.value("kprobe_duration_seconds_count", probe="call"),
            "table": metrics.value("kprobe_table_total"),
        }
        return named | hits | others

    metrics = run.settled(lambda metrics: set(counted(metrics).values()) == {times})
    lost = {labels["reason"] for labels in metrics.labels(LOST) if metrics.value(LOST, **labels)}
    assert lost <= {"disabled"}  # events of the removed probes
    assert poller.fell == []
    assert poller.scrapes > 5


@needs_kprobes
def test_who_changes_goes_on(reloaded: Callable[..., Reloaded]) -> None:
    """While definitions alternate, numbers only rise, and each hit is an event or is counted as lost."""
    other = PROBE.replace("metrics", "fetch: {sp: '$stack:u64'}, metrics")
    third = PROBE.replace("labels", "help: Said otherwise., labels")
    calls = [CALL, CALL.replace("returns: int", "returns: long, fetch: {sp: '$stack:u64'}")]
    run = reloaded(PROBE, CALL)
    poller = Poller(run.agent, ("ppid", "call"))
    with calling() as end, poller.running():
        for number in range(4):
            run.apply([other, third, PROBE][number % 3], calls[(number + 1) % 2])
        times = end()
    hits, events = "kprobe_hits_total", "kprobe_exporter_events_total"

    def same(metrics: Metrics) -> bool:
        each = metrics.total("kprobe_ppid_total")
        open_calls = metrics.value(hits, probe="call") - metrics.value(events, probe="call")
        return (
            metrics.value(hits, probe="ppid") - metrics.value(LOST, reason="disabled") == each
            and metrics.value(events, probe="ppid") == each
            # An entry or a return is unpaired if its other half came while the probe was off.
            and 0 <= open_calls <= metrics.value(LOST, reason="unpaired")
        )

    metrics = run.settled(same)
    assert 0 < metrics.value(hits, probe="ppid") <= times
    assert poller.fell == []
    assert metrics.value(LOST, reason="unparsed") == 0


@needs_kprobes
def test_what_was_in_the_buffer_is_counted_by_what_it_was(reloaded: Callable[..., Reloaded]) -> None:
    """Unread events of a changed probe are parsed with their own layout, and count in the same series."""
    run = reloaded(PROBE)
    for number in range(3):
        getppid(1009)
        run.apply(PROBE.replace("metrics", f"fetch: {{a{number}: '$stack'}}, metrics"))
    metrics = run.settled(lambda metrics: metrics.value("kprobe_hits_total", probe="ppid") == 3 * 1009)
    assert metrics.value("kprobe_exporter_events_total", probe="ppid") == 3 * 1009


@needs_kprobes
def test_who_goes_is_gone(reloaded: Callable[..., Reloaded], tracefs: Path, files: MountedTracefs) -> None:
    with foreign_things(files):
        run = reloaded(PROBE, SOFT, TABLE, CALL)
        os.getppid()
        run.settled(lambda metrics: metrics.value("kprobe_hits_total", probe="ppid") >= 1)
        run.apply(SOFT)
        metrics = run.agent.scrape()
        assert {labels["probe"] for labels in metrics.labels("kprobe_up")} == {"soft"}
        for gone in ("ppid", "table", "call"):
            assert f'"{gone}"' not in metrics.text
            assert f"kprobe_{gone}_total" not in metrics.text
        enabled = (tracefs / "instances/kprobe_exporter/events/kprobe_exporter").glob("*/enable")
        states = sorted(path.read_text() for path in enabled if path.parent.name != MARKER)
        assert states == ["0\n", "0\n", "0\n", "0*\n"]
        assert (
            "table"
            not in (
                tracefs / "instances/kprobe_exporter/events/syscalls/sys_enter_getppid/trigger"
            ).read_text()
        )
        assert run.agent.end() == 0
        assert "kprobe_exporter/" not in definitions(tracefs)
    assert "kprobe_exporter" not in instances(tracefs)


@needs_kprobes
def test_a_definition_deleted_by_another_process_stops_no_other_probe(
    reloaded: Callable[..., Reloaded], files: MountedTracefs
) -> None:
    """A reload succeeds right after another process deleted a definition, before the agent noticed it."""
    run = reloaded(PROBE, TRACEPOINT)
    files.write("instances/kprobe_exporter/events/kprobe_exporter/ppid/enable", "0")
    files.write("kprobe_events", "-:kprobe_exporter/ppid")
    run.apply(PROBE, TRACEPOINT, TABLE)
    before = run.agent.scrape().value("kprobe_exporter_events_total", probe="ppid")

    def counts(metrics: Metrics) -> bool:
        os.getppid()
        return metrics.value("kprobe_exporter_events_total", probe="ppid") > before

    run.settled(counts)
    others = run.settled(lambda metrics: metrics.value("kprobe_table_total") >= 1)
    assert others.value("kprobe_exporter_events_total", probe="enters") >= 1


def test_what_is_refused_changes_nothing(reloaded: Callable[..., Reloaded], tracefs: Path) -> None:
    run = reloaded(TRACEPOINT)
    defined = definitions(tracefs)
    for text, reason in [
        ("probes: [{name: x}]", "probes[0]"),
        (f"global: {{source: text}}\nprobes: [{TRACEPOINT}]", "global.source cannot be changed"),
    ]:
        status, answer = run.post(text)
        assert status == 500
        assert reason in answer
        assert answer.strip() in run.agent.output()
        assert run.agent.scrape().value("kprobe_exporter_config_last_reload_successful") == 0
        assert definitions(tracefs) == defined
    before = run.agent.scrape().value("kprobe_exporter_events_total", probe="enters")
    os.getppid()
    assert run.agent.scrape().value("kprobe_exporter_events_total", probe="enters") == before + 1
    # A probe that the kernel refuses does not fail the reload, and the answer names it.
    answer = run.apply(TRACEPOINT, '{name: not_there, attach: "kprobe:not_there_at_all"}')
    assert answer.startswith(
        "reloaded; 1 of 2 probes are up; down: not_there\nnot_there: kprobe:not_there_at_all: "
    )
    metrics = run.agent.scrape()
    assert metrics.value("kprobe_exporter_config_last_reload_successful") == 1
    assert [metrics.value("kprobe_up", probe=name) for name in ("enters", "not_there")] == [1, 0]


@pytest.mark.needs("kprobe_events")
def test_sighup_reloads(reloaded: Callable[..., Reloaded]) -> None:
    run = reloaded(TRACEPOINT)
    stamp = "kprobe_exporter_config_last_reload_success_timestamp_seconds"
    before = run.agent.scrape().value(stamp)
    run.path.write_text(run.text(TRACEPOINT, TABLE))
    run.agent.signal(signal.SIGHUP)
    metrics = run.settled(lambda metrics: metrics.value(stamp) > before)
    assert metrics.value("kprobe_up", probe="table") == 1


def test_sighup_at_any_moment(reloaded: Callable[..., Reloaded], tracefs: Path) -> None:
    """SIGHUP during the start reloads after it; SIGHUP during the stop does not reload."""
    before = definitions(tracefs), instances(tracefs)
    started = time.monotonic()
    run = reloaded(TRACEPOINT, TABLE)
    whole = time.monotonic() - started
    for _ in range(5):
        run.agent.signal(signal.SIGHUP)
    run.agent.signal(signal.SIGTERM)
    for _ in range(50):
        run.agent.signal(signal.SIGHUP)
        time.sleep(0.002)
    assert run.agent.wait() == 0
    for part in (0.5, 0.8, 0.95):
        run = reloaded(TRACEPOINT, TABLE, serving=False)
        time.sleep(whole * part)
        run.path.write_text(run.text(TRACEPOINT))
        run.agent.signal(signal.SIGHUP)
        if run.agent.poll() is None and "installing" in run.agent.output():
            run.agent.wait_until_serving()
        status = run.agent.end()
        assert status in (0, -signal.SIGHUP, -signal.SIGTERM), run.agent.output()
        assert "Traceback" not in run.agent.output()
        assert (definitions(tracefs), instances(tracefs)) == before


@needs_kprobes
def test_every_kind_comes_and_goes(reloaded: Callable[..., Reloaded]) -> None:
    """When two configurations alternate, all probes of the present one are up each time, and count."""
    fork, execute = "tracepoint:sched:sched_process_fork", "tracepoint:sched:sched_process_exec"
    cgroups = "{counter: where_total, labels: {cgroup: {field: tid, decode: cgroup}}}"
    first = [
        PROBE,
        CALL,
        TABLE,
        '{name: stack, attach: "kprobe:sys_getppid", stack: true, metrics: [{counter: stack_total}]}',
        SOFT.replace("soft", "where").replace("}", f", metrics: [{cgroups}]}}"),
    ]
    second = [
        PROBE.replace("metrics", "fetch: {sp: '$stack'}, metrics"),
        TRACEPOINT,
        TABLE.replace("metrics: [", "filter: 'common_pid > 1', metrics: ["),
        f"{{name: pair, attach: {{pair: {{from: '{fork}', to: '{execute}', key: [tid]}}}}}}",
        '{name: some, attach: "kprobe:vfs_fsync*", metrics: [{counter: some_total}]}',
        f'{{name: library, attach: "ucall:{own_libc()}:getppid", returns: int}}',
    ]
    run = reloaded(*first)
    for probes in (second, first, second):
        run.apply(*probes)
        before = run.agent.scrape()
        getppid()
        names = {labels["probe"] for labels in before.labels("kprobe_up")} - {"pair"}
        names = {name for name in names if not name.startswith("some")}

        def more(metrics: Metrics) -> bool:
            seen = ((metrics.value("kprobe_hits_total", probe=name), name) for name in names)  # noqa: B023
            return all(hits - before.value("kprobe_hits_total", probe=name) == 23 for hits, name in seen)  # noqa: B023

        metrics = run.settled(more)
        up = {one["probe"]: metrics.value("kprobe_up", **one) for one in metrics.labels("kprobe_up")}
        assert set(up.values()) == {1.0}, run.agent.output()
        where = [one["cgroup"] for one in metrics.labels("kprobe_where_total")]
        assert "unknown" not in where
        assert where or probes is second
    assert metrics.value(LOST, reason="unparsed") == 0
    assert "Traceback" not in run.agent.output()


def test_a_long_life_gathers_nothing(reloaded: Callable[..., Reloaded], tracefs: Path) -> None:
    """30 reloads between two configurations leave as many definitions, descriptors and threads as before."""
    turns = [
        [TRACEPOINT, TABLE],
        [
            TRACEPOINT.replace("metrics", "fetch: {number: __syscall_nr}, metrics"),
            TABLE.replace("table", "tab"),
        ],
    ]
    run = reloaded(*turns[0])
    proc = Path(f"/proc/{run.agent.pid}")

    def gathered() -> tuple[int, int, int]:
        lines = definitions(tracefs).count("kprobe_exporter/")
        return lines, len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))

    for turn in (1, 0, 1, 0):
        run.apply(*turns[turn])
    before = gathered()
    for number in range(30):
        os.getppid()
        run.apply(*turns[1 - number % 2])
    lines, descriptors, threads = gathered()
    assert lines == before[0]
    assert abs(descriptors - before[1]) <= 2  # a connection that is not closed yet
    assert abs(threads - before[2]) <= 2
    assert run.agent.scrape().value("kprobe_exporter_events_total", probe="enters") == 30


@needs_kprobes
@pytest.mark.needs(EPROBES)
def test_many_new_definitions_are_pruned(
    reloaded: Callable[..., Reloaded], tracefs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that a deletion may wipe are counted as lost, and no event is counted that did not happen."""
    monkeypatch.setattr(probe_set, "MOST_RETIRED", 3)
    monkeypatch.setattr(probe_set, "KEPT", 1)
    run = reloaded(PROBE, CALL)
    poller = Poller(run.agent, ("ppid", "call"))
    with calling() as end, poller.running():
        for number in range(7):
            run.apply(PROBE, CALL, NEW % number)
            lines = (tracefs / "dynamic_events").read_text().count("kprobe_exporter/")
            assert lines <= 3 + 1 + 3 + 1  # the last one is the marker
        times = end()
    metrics = run.settled(lambda metrics: metrics.value("kprobe_hits_total", probe="ppid") == times)
    events = metrics.value("kprobe_exporter_events_total", probe="ppid")
    assert metrics.value(LOST, reason="wiped") > 0
    assert times / 4 < events < times
    calls = metrics.value("kprobe_exporter_events_total", probe="call")
    assert metrics.value("kprobe_duration_seconds_count", probe="call") == calls <= times
    # No call spans a pause.
    assert metrics.value("kprobe_duration_seconds_bucket", probe="call", le="0.262144") == calls
    assert poller.fell == []
