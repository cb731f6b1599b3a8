"""A running agent for tests: a real process with a log of its own, whose metrics are read over HTTP."""

import os
import re
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kprobe_exporter.agent import agent as agent_module
from kprobe_exporter.agent import probe_set as probe_set_module
from kprobe_exporter.util.overruns import OVERRUNS
from kprobe_exporter.web import clients as clients_module
from tests.support.forked_child import ForkedChild
from tests.support.patience import eventually, patience
from tests.support.samples import samples

SERVING = re.compile(r"serving metrics at (https?://\S+?)/metrics")

DRAIN_TIME, POLL_TIME = agent_module.DRAIN_TIME, agent_module.POLL_TIME
LAST_TIME = probe_set_module.LAST_TIME
"""Seconds that a scrape waits for the reader and for the kernel's counts, and a reload for the last events.
Tests multiply them by the machine's slowness, since they rely on a scrape to include all that the kernel
recorded before it, and on a reload to lose no event."""

REQUEST_TIME, ANSWER_TIME = clients_module.REQUEST_TIME, clients_module.ANSWER_TIME
"""Seconds after which the agent drops a client. Tests multiply them too: during a flood on a slow machine an
answer takes longer."""

ENDING = {signal.SIGINT, signal.SIGTERM}

UNEXPLAINED = "neither events nor counted as lost"
"""What the agent logs if its audit finds something."""

START_TIME = 20
"""Seconds that an agent needs at most to start on an idle machine."""


class Metrics(Mapping[tuple[str, frozenset[tuple[str, str]]], float]):
    """One scrape: values by sample name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._values = samples(text)

    def __getitem__(self, key: tuple[str, frozenset[tuple[str, str]]]) -> float:
        return self._values[key]

    def __iter__(self) -> Iterator[tuple[str, frozenset[tuple[str, str]]]]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one sample, or 0 if there is none, as PromQL's sum() counts it."""
        return self._values.get((name, frozenset(labels.items())), 0.0)

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over the label sets that have these labels."""
        wanted = labels.items()
        return sum(value for (found, key), value in self.items() if found == name and key >= wanted)

    def labels(self, name: str) -> list[dict[str, str]]:
        """The label sets under one name."""
        return [dict(labels) for found, labels in self._values if found == name]


class AgentProcess(ForkedChild):
    """The command line in a forked child. It is not executed, because imports are slow under emulation.

    Unless ``complete``, a scrape waits for the reader as long as in service, and may miss the last events.
    """

    def __init__(
        self,
        log: Path,
        main: Callable[[list[str]], object],
        arguments: Sequence[str],
        *,
        complete: bool = True,
    ) -> None:
        self.log = log
        self.address = ""
        log.touch()
        drain_time, poll_time = DRAIN_TIME, POLL_TIME
        if complete:
            drain_time, poll_time = patience(DRAIN_TIME), patience(POLL_TIME)
        last_time = patience(LAST_TIME)
        request_time, answer_time = round(patience(REQUEST_TIME)), round(patience(ANSWER_TIME))
        # The child has pytest's handlers until it has set its own: a signal in between waits.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        self.pid = os.fork()
        if self.pid == 0:
            for number in ENDING:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            agent_module.DRAIN_TIME, agent_module.POLL_TIME = drain_time, poll_time
            probe_set_module.LAST_TIME = last_time
            clients_module.REQUEST_TIME = request_time
            clients_module.ANSWER_TIME = answer_time
            OVERRUNS.clear()  # those of tests before this one
            _be_the_agent(log, main, list(arguments))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def output(self) -> str:
        return self.log.read_text(errors="surrogateescape")

    def wait_until_serving(self) -> None:
        """Wait until the agent logs that it serves; AssertionError with its output if it ends first."""

        def serving() -> bool:
            assert self.poll() is None, f"the agent ended with {self._status}: {self.output()}"
            if found := SERVING.search(self.output()):
                self.address = found[1].replace("[::]", "127.0.0.1")
            return bool(self.address)

        eventually(serving, START_TIME)

    def get(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(self.address + path, timeout=patience(10)) as answer:
            text: str = answer.read().decode()
            return text

    def scrape(self) -> Metrics:
        return Metrics(self.get())

    def scrape_until(self, wanted: Callable[[Metrics], bool], seconds: float = 20) -> Metrics:
        """Scrape until ``wanted`` is true of a scrape, and return it; AssertionError with the last one."""
        found: list[Metrics] = []

        def look() -> bool:
            found.append(self.scrape())
            return wanted(found[-1])

        try:
            eventually(look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {found[-1].text}") from None
        return found[-1]

    def wait(self, seconds: float = 30) -> int:
        """Wait for the process to end, and return its exit status."""
        eventually(lambda: self.poll() is not None, seconds)
        assert self._status is not None
        return self._status

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the signal, wait, and return the exit status."""
        self.signal(number)
        return self.wait()


@contextmanager
def running(agent: AgentProcess) -> Iterator[AgentProcess]:
    """Yield the agent, and end it by SIGTERM when the context is left; by SIGKILL if it does not end.

    Its audit must have found no hit that is neither an event nor lost.
    """
    try:
        yield agent
        assert UNEXPLAINED not in agent.output(), agent.output()
    finally:
        try:
            agent.end()
        except AssertionError:
            agent.signal(signal.SIGKILL)
            agent.wait()
            raise


def _be_the_agent(log: Path, main: Callable[[list[str]], object], arguments: list[str]) -> None:
    """Run the command line as the main program of this forked child, and exit instead of returning."""
    status = 70
    try:
        fd = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        try:
            main(arguments)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def fresh(agent: AgentProcess) -> Metrics:
    """Return a scrape whose kernel counts were read after the call."""
    last = agent.scrape().value("kprobe_exporter_kernel_read_age_seconds")
    while True:
        metrics = agent.scrape()
        age = metrics.value("kprobe_exporter_kernel_read_age_seconds")
        if age < last:
            return metrics
        last = age
