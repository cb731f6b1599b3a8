"""Receivers of other projects go away and come back: each record arrives, and none more than twice.

The moments, the kinds and the lengths are drawn. `--outages 20 --outage-seconds 60` takes half an hour.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from os import getpgid, getsid
from pathlib import Path
from random import Random, randrange
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import NamedTuple

import pytest

from kprobe_exporter.export.otlp.channel import LINGER
from kprobe_exporter.export.otlp.retry import MAX_BACKOFF
from tests.kernel.conftest import StartAgent
from tests.kernel.workload import Child, children
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.otlp_outcomes import outcome
from tests.support.patience import eventually
from tests.support.receivers import (
    MockServer,
    Rotel,
    attributes,
    free_port,
    mock_server,
    needs_mock_server,
    rotel,
)

PROBES = {"group": "logs", "session": "traces"}
FIRST = {"logs": 10_000_000, "traces": 20_000_000}
"""The argument of the first call of each kind. No process has such an id."""

RATE = 100
"""Calls of each kind in a second."""

ANSWER = 15
"""Seconds that a stopped collector may take to answer once it goes on, and a new one to start."""


class Outage(NamedTuple):
    """What happens to a receiver, after how many seconds, and for how many."""

    kind: str
    after: float
    seconds: float


class Receiver:
    """A receiver on fixed ports, which may be restarted. ``rejected`` counts the items that it refused."""

    kinds: tuple[str, ...]

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._ports = free_port(), free_port()
        self._servers: list[MockServer | Rotel] = []

    @property
    def server(self) -> MockServer | Rotel:
        return self._servers[-1]

    def start(self) -> None:
        raise NotImplementedError

    def numbers(self) -> list[int]:
        """Return the arguments of the calls that arrived."""
        raise NotImplementedError

    @contextmanager
    def away(self, kind: str) -> Iterator[None]:
        if kind == "stopped":
            self.server.process.send_signal(SIGSTOP)
            yield
            self.server.process.send_signal(SIGCONT)
        elif kind in ("killed", "closed"):
            self.server.process.send_signal(SIGKILL if kind == "killed" else SIGTERM)
            self.server.process.wait()
            yield
            self.start()
        else:
            assert isinstance(self.server, MockServer)
            self.server.be_busy(2) if kind == "busy" else self.server.reject(1)
            yield
            self.server.accept()


class Elastic(Receiver):
    kinds = ("killed", "stopped", "closed", "busy", "partial")

    def start(self) -> None:
        self._servers.append(self._stack.enter_context(mock_server(*self._ports)))

    def numbers(self) -> list[int]:
        servers = [server for server in self._servers if isinstance(server, MockServer)]
        items = [item for server in servers for item in (*server.log_records(), *server.spans())]
        return [int(attributes(item)["kprobe.arg.number"]) for item in items]


class OfRotel(Receiver):
    """Rotel answers before it prints, so it must print what it has before it ends."""

    kinds = ("stopped", "closed")

    def start(self) -> None:
        self._servers.append(self._stack.enter_context(rotel(self._directory, *self._ports)))

    def numbers(self) -> list[int]:
        assert isinstance(self.server, Rotel)
        return [int(number) for number in self.server.found(r"-> kprobe.arg.number: Int\((\d+)\)")]


def calls_until(over: Path) -> Callable[[], None]:
    """Return the work of a child: numbered calls, RATE of each kind a second, until the file exists, to which
    it then writes their number."""

    def work() -> None:
        for number in count(1):
            with suppress(ProcessLookupError):
                getpgid(FIRST["logs"] + number - 1)
            with suppress(ProcessLookupError):
                getsid(FIRST["traces"] + number - 1)
            if number % 10 == 0:
                time.sleep(10 / RATE)
                if over.exists():
                    over.write_text(str(number))
                    return

    return work


def configuration(load: Child, endpoint: str, protocol: str, timeout: float) -> str:
    ours = f"common_pid == {load.tid}"
    group = {"to": "tracepoint:syscalls:sys_enter_getpgid", "fetch": {"number": "pid"}}
    probes = [
        {"name": "group", "attach": group, "filter": ours, "export": "log"},
        {
            "name": "session",
            "attach": {"to": "syscall:getsid", "fetch": {"number": "pid"}},
            "filter": f"tid == {load.tid}",
            "export": "span",
        },
    ]
    otlp = {"endpoint": endpoint, "protocol": protocol, "timeout": f"{1000 * timeout:.0f}ms"}
    return json.dumps({"global": {"tracefs_instance": "otlp_away"}, "otlp": otlp, "probes": probes})


def require_exact(agent: AgentProcess, metrics: Metrics, kinds: set[str]) -> None:
    """Raise AssertionError if an item was lost that no partial answer rejected."""
    for signal in FIRST:
        _, dropped, failed = outcome(metrics, signal)
        assert dropped == 0, f"{dropped} {signal} were dropped: {agent.output()}"
        assert failed == 0 or "partial" in kinds, f"{failed} {signal} failed: {agent.output()}"


def waiting(metrics: Metrics) -> int:
    """Return how many items wait, or are being sent."""
    return sum(
        int(metrics.value("kprobe_exporter_events_total", probe=probe)) - sum(outcome(metrics, signal))
        for probe, signal in PROBES.items()
    )


@pytest.fixture
def outages(request: pytest.FixtureRequest) -> Callable[[tuple[str, ...]], list[Outage]]:
    """A function that draws a quarter of the outages, since there are four cases."""
    seed = request.config.getoption("--outage-seed") or randrange(1, 2**32)
    longest = request.config.getoption("--outage-seconds")
    number = -(-request.config.getoption("--outages") // 4)
    print(f"to repeat this: --outage-seed {seed}")
    random = Random(f"{seed} {request.node.name}")

    def draw(kinds: tuple[str, ...]) -> list[Outage]:
        drawn = [*random.sample(kinds, len(kinds)) * number][:number]
        return [Outage(kind, random.uniform(0, 2), random.uniform(0, longest)) for kind in drawn]

    return draw


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("make", [Elastic, OfRotel])
def test_a_receiver_that_goes_away(
    make: type[Receiver],
    protocol: str,
    start_agent: StartAgent,
    tmp_path: Path,
    outages: Callable[[tuple[str, ...]], list[Outage]],
    request: pytest.FixtureRequest,
) -> None:
    if make is Elastic:
        needs_mock_server()
    longest = request.config.getoption("--outage-seconds")
    over, drawn = tmp_path / "over", outages(make.kinds)
    kinds = {outage.kind for outage in drawn}
    settling = 2 * LINGER + longest + 1.2 * MAX_BACKOFF + ANSWER
    with ExitStack() as stack:
        (load,) = stack.enter_context(children([calls_until(over)]))
        receiver = make(tmp_path, stack)
        receiver.start()
        timeout = min(10.0, longest / 2)
        agent = start_agent(configuration(load, receiver.server.endpoints[protocol], protocol, timeout))

        def are_few(metrics: Metrics) -> bool:
            require_exact(agent, metrics, kinds)
            return waiting(metrics) < 2 * len(PROBES) * RATE * LINGER

        calling = stack.enter_context(ThreadPoolExecutor()).submit(load.work)
        stack.callback(over.touch)
        for outage in drawn:
            print(outage)
            time.sleep(outage.after)
            with receiver.away(outage.kind):
                time.sleep(outage.seconds)
            began = time.monotonic()
            agent.scrape_until(are_few, settling)
            print(f"recovered after {time.monotonic() - began:.1f} s")
        over.touch()
        calling.result()
        made = int(over.read_text())

        def all_are_counted(metrics: Metrics) -> bool:
            require_exact(agent, metrics, kinds)
            return all(sum(outcome(metrics, signal)) >= made for signal in FIRST)

        metrics = agent.scrape_until(all_are_counted, settling)
        for probe, signal in PROBES.items():
            assert metrics.value("kprobe_exporter_events_total", probe=probe) == made
            assert sum(outcome(metrics, signal)) == made
            print(signal, outcome(metrics, signal), f"of {made}")
        wanted = {first + number for first in FIRST.values() for number in range(made)}
        eventually(lambda: set(receiver.numbers()) >= wanted)
        arrived = Counter(receiver.numbers())
        assert set(arrived) == wanted
        assert max(arrived.values()) <= 2
        print(f"{sum(times > 1 for times in arrived.values())} of {len(arrived)} arrived twice")
