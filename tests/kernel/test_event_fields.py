"""A name that an event has itself means the event's field, in filters, labels and traces, on every kernel.

The kernel's own filters, each in an instance of its own, say what is right.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.config.files import DEFAULT
from kprobe_exporter.tracefs.ownership import MARKER
from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.forked_child import started
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace, TraceProcess
from tests.vm.kernels import EPROBES, HIST

WAKEUP, SWITCH = "tracepoint:sched:sched_wakeup", "tracepoint:sched:sched_switch"
TIMES, FEWEST = 40, 20
"""How often two threads wake each other, and how often at least. One that does not wait yet is not woken."""
WAKER, WOKEN = "kpe-waker", "kpe-woken"


class Pair(NamedTuple):
    """Two threads on one CPU that wake each other. ``work`` has them do it TIMES times."""

    waker: int
    woken: int
    cpu: int
    work: Callable[[], None]


def _named(name: str, cpu: int, tell: int) -> None:
    Path("/proc/self/comm").write_text(name)
    os.sched_setaffinity(0, {cpu})
    os.write(tell, kernel_tid().to_bytes(4, "little"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Processes that a byte tells to go on, so that all their wakeups are between two moments of the test."""
    go, said, there, back = (os.pipe() for _ in range(4))
    cpu = max(os.sched_getaffinity(0))

    def wake() -> None:
        _named(WAKER, cpu, said[1])
        while os.read(go[0], 1) == b"g":
            for _ in range(TIMES):
                time.sleep(0.002)  # until the other one waits again
                os.write(there[1], b"x")
                os.read(back[0], 1)
            os.write(said[1], b"done")

    def be_woken() -> None:
        _named(WOKEN, cpu, said[1])
        while os.read(there[0], 1) == b"x":
            os.write(back[1], b"x")

    def work() -> None:
        os.write(go[1], b"g")
        assert os.read(said[0], 4) == b"done"

    tids, pids = [], []
    for child in (wake, be_woken):
        pids.append(started(child))
        tids.append(int.from_bytes(os.read(said[0], 4), "little"))
    try:
        yield Pair(tids[0], tids[1], cpu, work)
    finally:
        os.write(go[1], b"e")
        os.write(there[1], b"e")
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0
        for end in (end for pipe in (go, said, there, back) for end in pipe):
            os.close(end)


@contextmanager
def kernels_filter(
    tracefs: Path, text: str, event: str = "sched/sched_wakeup"
) -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many events have passed the kernel's own filter."""
    instance = tracefs / "instances" / f"oracle_{abs(hash(text))}"
    instance.mkdir()
    try:
        (instance / f"events/{event}/filter").write_text(text)
        (instance / f"events/{event}/enable").write_text("1")
        name = f" {event.partition('/')[2]}: "
        yield lambda: (instance / "trace").read_text(errors="replace").count(name)
    finally:
        (instance / f"events/{event}/enable").write_text("0")
        instance.rmdir()


def filters(pair: Pair) -> dict[str, tuple[str, str]]:
    """Filters of the configuration and the same in words that every kernel has, by a name."""
    return {
        "comm": (f'comm == "{WOKEN}"', f'comm == "{WOKEN}"'),
        "pid": (f"pid == {pair.woken}", f"pid == {pair.woken}"),
        "both": (f'comm == "{WOKEN}" && common_pid == {pair.waker}',) * 2,
        "by": (f'common_comm == "{WAKER}"', f'COMM == "{WAKER}"'),
        "cpu": (
            f"common_cpu == {pair.cpu} && pid == {pair.woken}",
            f"CPU == {pair.cpu} && pid == {pair.woken}",
        ),
        "word": (f'COMM == "{WAKER}" && pid == {pair.woken}',) * 2,
    }


def same(agent_count: Callable[[], float], kernel_count: Callable[[], int]) -> None:
    """Wait until both are equal; the kernel has counted some of the work."""
    counts = (0.0, -1)

    def equal() -> bool:
        nonlocal counts
        counts = agent_count(), kernel_count()
        return counts[0] == counts[1] >= FEWEST

    try:
        eventually(equal, 5)
    except AssertionError:
        raise AssertionError(f"(counted, passed the kernel's filter): {counts}") from None


def total(agent: AgentProcess, name: str) -> float:
    return agent.scrape().total(name)


def config(source: str, *probes: str) -> str:
    return "\n".join([f"global: {{source: {source}, tracefs_instance: kpe_fields}}", "probes:", *probes])


def probe(name: str, only: str, labels: str = "[]", more: str = "") -> str:
    counter = f"metrics: [{{counter: {name}_total, labels: {labels}}}]"
    return f"  - {{name: {name}, attach: '{WAKEUP}', filter: '{only}', {more} {counter}}}"


def sample(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    found = [labels for labels in metrics.labels(name) if metrics.value(name, **labels)]
    return {tuple(labels[key] for key in sorted(labels)): metrics.value(name, **labels) for labels in found}


@pytest.mark.parametrize("source", ["binary", "text"])
@pytest.mark.parametrize(
    "names", [("comm", "pid", "both"), ("by",), ("cpu", "comm"), ("word",)], ids=" ".join
)
def test_a_filter_is_the_kernels(
    start_agent: StartAgent, pair: Pair, tracefs: Path, names: tuple[str, ...], source: str
) -> None:
    """Also the filters of several probes, which the agent evaluates itself where there are no eprobes."""
    wanted = {name: filters(pair)[name] for name in names}
    with ExitStack() as stack:
        agent = start_agent(config(source, *(probe(name, only) for name, (only, _) in wanted.items())))
        counts = {
            name: stack.enter_context(kernels_filter(tracefs, oracle)) for name, (_, oracle) in wanted.items()
        }
        pair.work()
        for name, count in counts.items():
            assert agent.scrape().value("kprobe_up", probe=name) == 1, agent.output()
            same(partial(total, agent, f"kprobe_{name}_total"), count)


@pytest.mark.needs("initial_pid_namespace")
def test_labels_tell_the_woken_thread_from_the_waking_one(start_agent: StartAgent, pair: Pair) -> None:
    labels = "{a: comm, b: pid, c: common_comm, d: common_pid, e: common_tgid, f: common_cpu}"
    agent = start_agent(
        config("binary", probe("wakes", f"pid == {pair.woken} && common_pid == {pair.waker}", labels))
    )
    pair.work()
    eventually(lambda: agent.scrape().total("kprobe_wakes_total") >= FEWEST)
    waker = str(pair.waker)
    expected = (WOKEN, str(pair.woken), WAKER, waker, waker, str(pair.cpu))
    assert [*sample(agent.scrape(), "kprobe_wakes_total")] == [expected]
    assert "'comm' is a field of the event" not in agent.get("/")


def test_a_condition_of_a_metric_means_the_same(start_agent: StartAgent, pair: Pair) -> None:
    """One of its names is ambiguous, of which the status page tells."""
    metrics = ", ".join(
        f"{{counter: {name}_total, where: '{where}'}}"
        for name, where in {
            "pid": f"pid == {pair.woken}",
            "comm": f'comm == "{WOKEN}"',
            "own": f"own == {pair.woken}",
        }.items()
    )
    agent = start_agent(
        f"probes: [{{name: w, attach: '{WAKEUP}', let: {{own: pid + 0}}, metrics: [{metrics}]}}]"
    )
    pair.work()
    eventually(lambda: agent.scrape().total("kprobe_own_total") >= FEWEST)
    found = agent.scrape()
    assert len({found.total(f"kprobe_{name}_total") for name in ("pid", "comm", "own")}) == 1
    said = agent.get("/")
    assert "is a field of the event (the thread&#x27;s name is" in said or "(the thread's name is" in said


@pytest.mark.needs(HIST)
@pytest.mark.parametrize(("label", "expected"), [("comm", WOKEN), ("common_comm", WAKER)])
def test_hist_triggers_mean_the_same(start_agent: StartAgent, pair: Pair, label: str, expected: str) -> None:
    """Also in their condition, which is another filter of the kernel's. A table has one name as a key."""
    only = f'comm == "{WOKEN}" && common_comm == "{WAKER}"'
    more = "aggregate: {},"
    agent = start_agent(
        config(
            "binary",
            probe("in_kernel", only, f"[{label}]", more.format("kernel")),
            probe("in_agent", only, f"[{label}]", more.format("events")),
        )
    )
    pair.work()
    eventually(lambda: agent.scrape().total("kprobe_in_kernel_total") >= FEWEST)
    eventually(lambda: agent.scrape().total("kprobe_in_agent_total") >= FEWEST)
    found = agent.scrape()
    assert sample(found, "kprobe_in_kernel_total") == sample(found, "kprobe_in_agent_total")
    assert [*sample(found, "kprobe_in_kernel_total")] == [(expected,)]


def test_a_pair_has_the_fields_of_its_first_event(start_agent: StartAgent, pair: Pair) -> None:
    """The thread is that which wakes, also where the end has other fields."""
    halves = (
        f"from: {{to: '{WAKEUP}', fetch: {{task: pid}}}}, to: {{to: '{SWITCH}', fetch: {{task: next_pid}}}}"
    )
    only = f"pid == {pair.woken} && common_pid == {pair.waker}"
    metric = "{counter: between_total, labels: [comm, common_comm, pid, common_pid]}"
    attach = f"{{pair: {{{halves}, key: task}}}}"
    agent = start_agent(
        config("binary", f"  - {{name: p, attach: {attach}, filter: '{only}', metrics: [{metric}]}}")
    )
    pair.work()
    eventually(lambda: agent.scrape().total("kprobe_between_total") >= FEWEST)
    expected = (WOKEN, WAKER, str(pair.waker), str(pair.woken))
    assert [*sample(agent.scrape(), "kprobe_between_total")] == [expected]


def records(trace: TraceProcess) -> bool:
    """Whether a trace records sched_wakeup, itself or by an eprobe."""
    own = [
        file
        for file in trace.instance.glob(f"events/{trace.instance.name}/*/enable")
        if file.parent.name != MARKER
    ]
    return any(
        file.read_text().startswith("1")  # with a trigger it is "1*"
        for file in [*own, trace.instance / "events/sched/sched_wakeup/enable"]
        if file.exists()
    )


@pytest.mark.parametrize("name", ["comm", "pid", "by", "cpu"])
def test_a_trace_shows_the_same_in_all_its_forms(
    trace: StartTrace, start_agent: StartAgent, pair: Pair, tracefs: Path, name: str
) -> None:
    only, oracle = filters(pair)[name]
    words = ["sched:sched_wakeup", only]
    emitted = CliRunner().invoke(main, ["trace", "--emit-config", *words])
    assert emitted.exit_code == 0, emitted.output
    agent = start_agent(f"global: {{tracefs_instance: kpe_fields}}\n{emitted.stdout}")
    text, objects, counts = trace(*words), trace("--json", *words), trace("--count", *words)
    text.wait_for(b"Ctrl-C to end.")
    for one in (objects, counts):
        eventually(partial(records, one))
    with kernels_filter(tracefs, oracle) as count:
        pair.work()
        same(partial(total, agent, "kprobe_exporter_events_total"), count)
        same(lambda: text.output.count(b" sched_wakeup: "), count)
        same(lambda: objects.output.count(b"\n"), count)
        assert [one.end() for one in (text, objects, counts)] == [0, 0, 0]
        row = counts.output.decode().splitlines()[3].split()
        assert (row[0], int(row[2])) == (words[0], count())
    for line in objects.output.splitlines():
        shown = json.loads(line)
        assert shown["args"].keys() >= {"comm", "pid"}
        assert (shown["comm"] == WAKER) == (shown["tid"] == pair.waker)
        assert (shown["args"]["comm"] == WOKEN) == (shown["args"]["pid"] == pair.woken)


@pytest.mark.needs(EPROBES, "kprobe_events")  # without kprobes, a kernel's README names eprobes in vain
def test_a_definitions_filter_means_the_events_field_in_all_forms(
    trace: StartTrace, pair: Pair, tracefs: Path
) -> None:
    """An eprobe has only the fields that it fetches: without the others `comm` would be the thread's name."""
    words = ["e:mine sched.sched_wakeup cpu_to_be=$target_cpu", f'comm == "{WOKEN}"']
    text, objects = trace(*words), trace("--json", *words)
    text.wait_for(b"Ctrl-C to end.")
    eventually(partial(records, objects))
    with kernels_filter(tracefs, words[1]) as count:
        pair.work()
        same(lambda: text.output.count(b" mine: "), count)
        same(lambda: objects.output.count(b"\n"), count)


def test_who_sends_a_sigkill_is_its_label(start_agent: StartAgent) -> None:
    """The tracepoint's own `comm` is the victim's. It is what is used where the function cannot be probed."""
    [shipped] = [one for one in yaml.safe_load(DEFAULT.read_text())["probes"] if one["name"] == "sigkill"]
    shipped["attach"] = [one for one in shipped["attach"] if one["to"].startswith("tracepoint:")]
    agent = start_agent(yaml.safe_dump({"global": {"tracefs_instance": "kpe_fields"}, "probes": [shipped]}))

    def victim() -> None:
        Path("/proc/self/comm").write_text("kpe-victim")
        signal.pause()

    def kill() -> None:
        Path("/proc/self/comm").write_text("kpe-killer")
        os.kill(killed, signal.SIGKILL)

    killed = started(victim)
    eventually(lambda: Path(f"/proc/{killed}/comm").read_text() == "kpe-victim\n")
    killer = started(kill)
    assert [os.waitpid(pid, 0)[1] for pid in (killer, killed)] == [0, signal.SIGKILL]
    eventually(lambda: agent.scrape().total("kprobe_sigkills_total", comm="kpe-killer") == 1)
    assert agent.scrape().total("kprobe_sigkills_total", comm="kpe-victim") == 0
