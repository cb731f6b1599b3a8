"""`stacks` counts those of a known load: of three call paths, by the time of three waits, like bpftrace."""

import ctypes
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kernel.conftest import StartAgent
from tests.support.agent_process import AgentProcess
from tests.support.folded import folded, parsed
from tests.support.kernel_ids import kernel_tid
from tests.support.patience import eventually
from tests.support.trace_process import StartTrace

TIMES = {"kill": 13, "tgkill": 29, "rt_sigqueueinfo": 53}
"""How often each system call sends a signal, so that each sum of them is another number."""

GENERATED, SENT = "tracepoint:signal:signal_generate", "kprobe:security_task_kill"
"""A tracepoint and a function that all of them go through.

It is called from another file. Compilers make others a part of their callers, as do_send_sig_info() on 6.12
for arm64."""

COUNTED, RECORDED = "stacks: {}", "stack: true\n    stacks: {}"
"""Stacks that the kernel counts, where it can; and those that the agent counts of each event."""

LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = {"x86_64": (234, 129), "aarch64": (131, 138)}[os.uname().machine]
"""The numbers of tgkill and rt_sigqueueinfo."""

WAITS = {"sleep": (7, 0.05), "pipe": (5, 0.11), "poll": (3, 0.23)}
"""How often a thread waits in each of three places, and how many seconds."""

PR_SET_NAME = 15

PLACES = {"sleep": "nanosleep", "pipe": "pipe_read", "poll": "do_sys_poll"}


@contextmanager
def ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def signals(times: int = 1) -> None:
    """Send this process TIMES signals that it ignores."""
    pid, tid, number = os.getpid(), threading.get_native_id(), int(signal.SIGUSR1)
    info = (ctypes.c_int * 32)(number, 0, -1)  # SI_QUEUE
    with ignored():
        for _ in range(times * TIMES["kill"]):
            os.kill(pid, number)
        for _ in range(times * TIMES["tgkill"]):
            assert LIBC.syscall(NUMBERS[0], pid, tid, number) == 0
        for _ in range(times * TIMES["rt_sigqueueinfo"]):
            assert LIBC.syscall(NUMBERS[1], pid, number, info) == 0


def in_another_thread(call: Callable[[], None]) -> None:
    """Send a signal that is not counted, as it is not this thread's."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def by_path(stacks: dict[tuple[str, ...], int]) -> dict[str, int]:
    """Return the sums of the stacks that go through each of the system calls."""
    return {
        call: sum(
            number
            for stack, number in stacks.items()
            if any(frame.endswith(f"sys_{call}") for frame in stack)
        )
        for call in TIMES
    }


def configuration(attach: str, keys: str, source: str = "auto") -> str:
    return f"""
global: {{source: {source}}}
probes:
  - name: sent
    attach: {attach}
    filter: "common_pid == {kernel_tid()}"
    limit: none
    {keys}
"""


needs_kprobes = pytest.mark.needs("kprobe_events")


@pytest.mark.parametrize(
    ("attach", "keys", "source"),
    [
        (GENERATED, COUNTED, "text"),
        (GENERATED, RECORDED, "binary"),
        pytest.param(SENT, COUNTED, "binary", marks=needs_kprobes),
        pytest.param(SENT, RECORDED, "text", marks=needs_kprobes),
    ],
)
def test_three_call_paths(start_agent: StartAgent, attach: str, keys: str, source: str) -> None:
    agent = start_agent(configuration(attach, keys, source))
    signals()
    eventually(lambda: by_path(folded(agent)) == TIMES)
    stacks = folded(agent)
    assert sum(stacks.values()) == sum(TIMES.values())
    assert not any("kprobe" in frame or "trace_event" in frame for stack in stacks for frame in stack)
    if attach == SENT:
        assert {stack[-1] for stack in stacks} == {"security_task_kill"}
    assert "hits lost" not in agent.get("/stacks/sent.svg")
    assert agent.scrape().value("kprobe_exporter_events_lost_total", reason="unparsed") == 0


def test_the_stacks_of_some_seconds(start_agent: StartAgent) -> None:
    agent = start_agent(configuration(GENERATED, COUNTED))
    signals(3)
    thrice = {call: 3 * number for call, number in TIMES.items()}
    eventually(lambda: by_path(folded(agent)) == thrice)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(folded, agent, "sent?seconds=8")
        time.sleep(3)
        signals()
        assert by_path(answer.result()) == TIMES


def test_more_stacks_than_are_kept(start_agent: StartAgent) -> None:
    agent = start_agent(configuration(GENERATED, "stacks: {max: 1}"))
    signals()
    eventually(lambda: "hits lost" in agent.get("/stacks/sent.svg"))
    stacks = folded(agent)
    lost = stacks.pop(("[hits_lost]",))
    [number] = stacks.values()
    assert number + lost == sum(TIMES.values())
    assert f"{lost:,} hits lost" in agent.get("/stacks/sent.svg")
    assert agent.scrape().value("kprobe_exporter_stack_hits_lost_total", probe="sent") == lost


def test_a_reload_keeps_them(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(configuration(GENERATED, COUNTED), "--web.enable-lifecycle")
    path = next(tmp_path.glob("config*.yaml"))
    signals()
    eventually(lambda: by_path(folded(agent)) == TIMES)
    path.write_text(configuration(GENERATED, "stacks: {max: 99}"))
    reload(agent)
    signals()
    twice = {call: 2 * number for call, number in TIMES.items()}
    eventually(lambda: by_path(folded(agent)) == twice)
    path.write_text(configuration(GENERATED, "fetch: {sig: sig}\n    stacks: {weigh: sig}"))
    reload(agent)
    signals()
    weighed = {call: number * int(signal.SIGUSR1) for call, number in TIMES.items()}
    eventually(lambda: by_path(folded(agent)) == weighed)


def reload(agent: AgentProcess) -> None:
    before = agent.scrape().value("kprobe_exporter_config_last_reload_success_timestamp_seconds")
    in_another_thread(lambda: agent.signal(signal.SIGHUP))
    name = "kprobe_exporter_config_last_reload_success_timestamp_seconds"
    agent.scrape_until(lambda metrics: metrics.value(name) > before, 60)


def waits() -> dict[str, float]:
    """Wait in three places in a thread of its own, which is called waits-here, for known times.

    Return the seconds that passed in each of them: on a busy machine they are more.
    """
    read, write = os.pipe()
    named = threading.Event()
    passed = {}

    @contextmanager
    def measured(place: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        passed[place] = time.monotonic() - begin

    def work() -> None:
        LIBC.prctl(PR_SET_NAME, b"waits-here")
        # Some virtual machines trace no switch from the idle task of another CPU.
        os.sched_setaffinity(0, {0})
        named.set()
        poller = select.poll()
        with measured("sleep"):
            for _ in range(WAITS["sleep"][0]):
                time.sleep(WAITS["sleep"][1])
        with measured("pipe"):
            for _ in range(WAITS["pipe"][0]):
                os.read(read, 1)
        with measured("poll"):
            for _ in range(WAITS["poll"][0]):
                poller.poll(1000 * WAITS["poll"][1])

    thread = threading.Thread(target=work)
    thread.start()
    named.wait()
    time.sleep(WAITS["sleep"][0] * WAITS["sleep"][1])
    for _ in range(WAITS["pipe"][0]):
        time.sleep(WAITS["pipe"][1])
        os.write(write, b"x")
    thread.join()
    os.close(read)
    os.close(write)
    return passed


@pytest.mark.parametrize("source", ["binary", "text"])
def test_off_cpu_time(start_agent: StartAgent, source: str) -> None:
    """A thread that is off the CPU for known times has them in the stacks of the places where it waits."""
    agent = start_agent(f"""
global: {{source: {source}}}
probes:
  - name: off_cpu
    attach:
      pair:
        from: {{to: "tracepoint:sched:sched_switch", fetch: {{id: prev_pid, who: prev_comm}}}}
        to: {{to: "tracepoint:sched:sched_switch", fetch: {{id: next_pid}}}}
        key: id
    filter: 'id != 0 && who == "waits-here"'
    stacks: {{weigh: duration}}
    limit: none
""")
    passed = waits()

    def seconds() -> dict[str, float]:
        stacks = folded(agent, "off_cpu")
        return {
            place: sum(number for stack, number in stacks.items() if any(name in frame for frame in stack))
            / 1e9
            for place, name in PLACES.items()
        }

    eventually(lambda: all(seconds().values()))
    found = seconds()
    for place, (number, each) in WAITS.items():
        least = number * each
        # The pipe's writer begins with its pauses when the thread may still sleep.
        assert 0.95 * least - (0.1 if place == "pipe" else 0) <= found[place], found
        assert found[place] <= 1.01 * passed[place], (found, passed)


@pytest.mark.parametrize("of_thread", [True, False])
def test_a_trace(trace: StartTrace, tmp_path: Path, *, of_thread: bool) -> None:
    """Of one thread each stack is recorded; those that pass a filter the kernel counts, where it can."""
    svg = tmp_path / "flame.svg"
    words = ["signal:signal_generate"] + ([] if of_thread else [f"common_pid == {kernel_tid()}"])
    if of_thread:
        words += ["-L", str(threading.get_native_id())]
    running = trace("--folded", "--flame", str(svg), *words)
    eventually(lambda: _counts_stacks(running.instance), 30)
    signals()
    in_another_thread(lambda: running.signal(signal.SIGINT))
    assert running.wait() == 0, running.errors
    assert by_path(parsed(running.output.decode())) == TIMES
    told = f"{sum(TIMES.values())} hits in 3 stacks"
    assert f"{told}, in {svg}" in running.errors
    assert told in svg.read_text()


def _counts_stacks(instance: Path) -> bool:
    """Whether a trace has a trigger for stacks on the tracepoint or on its eprobe, which is enabled."""
    own = (instance / "events" / instance.name).glob("*/")
    for event in (*own, instance / "events/signal/signal_generate"):
        with suppress(OSError):
            trigger = (event / "trigger").read_text()
            enabled = (event / "enable").read_text().startswith("1")
            if re.search(r"hist:keys=\w*stacktrace", trigger) or (enabled and "stacktrace" in trigger):
                return True
    return False


@needs_kprobes
@pytest.mark.parametrize("keys", [COUNTED, RECORDED])
def test_the_same_stacks_as_bpftrace(start_agent: StartAgent, tmp_path: Path, keys: str) -> None:
    """The same functions in the same order, with the same counts."""
    probe, mine = SENT, f"tid == {kernel_tid()}"
    program = f'{probe} /{mine}/ {{ @[kstack] = count(); }} {probe} /!({mine})/ {{ printf("seen\\n"); }}'
    agent = start_agent(configuration(SENT, keys))
    log = tmp_path / "bpftrace.log"
    with log.open("w") as out, subprocess.Popen(["bpftrace", "-e", program], stdout=out) as tool:
        try:
            eventually(lambda: _seen(log) or tool.poll() is not None, 60)
            signals(2)
            eventually(lambda: sum(folded(agent).values()) == 2 * sum(TIMES.values()))
            eventually(lambda: _as_deep(_theirs(tool, log), folded(agent)) == folded(agent), 60)
        finally:
            print(log.read_text())
            tool.kill()


def _as_deep(
    stacks: dict[tuple[str, ...], int], ours: Iterable[tuple[str, ...]]
) -> dict[tuple[str, ...], int]:
    """Return the stacks as deep as ours: of the trigger's 16 frames arm64's own trap takes more than half."""
    deepest = max((len(stack) for stack in ours), default=0)
    found: Counter[tuple[str, ...]] = Counter()
    for stack, number in stacks.items():
        found[stack[-deepest:]] += number
    return found


def _seen(log: Path) -> bool:
    """Whether bpftrace has attached: then it tells of a signal that another thread sends."""
    with ignored():
        in_another_thread(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    return "seen" in log.read_text()


def _theirs(tool: subprocess.Popen[bytes], log: Path) -> dict[tuple[str, ...], int]:
    """Have bpftrace print its map, and return it by the names of functions."""
    in_another_thread(lambda: tool.send_signal(signal.SIGUSR1))
    latest = dict(re.findall(r"@\[\n((?:    .*\n)+)\]: (\d+)", log.read_text()))
    found: Counter[tuple[str, ...]] = Counter()
    for frames, number in latest.items():
        stack = tuple(frame.strip().partition("+")[0] for frame in reversed(frames.splitlines()))
        found[stack] += int(number)
    return found
