"""An agent over a fake tracefs."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kprobe_exporter.agent.agent import Agent
from kprobe_exporter.agent.interference import Fault, Interference
from kprobe_exporter.config.load import load
from kprobe_exporter.config.model import Config
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.model.snapshot import ProbeStatus
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.tracefs.instance import Instance
from tests.support.fake_tracefs import FakeTracefs
from tests.support.patience import eventually

GROUP = "kprobe_exporter"
EVENTS = f"instances/{GROUP}/events/{GROUP}"
TID = 1
"""A thread of another process: the agent's own threads are not recorded."""

OPEN = "{name: open, attach: 'kprobe:do_open', metrics: [{counter: opens_total}]}"
READ = "{name: read, attach: 'kprobe:do_read', metrics: [{counter: reads_total}]}"
COUNTED = "{name: counted, attach: 'kprobe:do_write'}"


class Machine:
    """An agent, its kernel and its configuration file. Its events are read as pages, as everywhere else."""

    def __init__(self, directory: Path, *, pages: bool = True, **kernel: bool) -> None:
        self.files = FakeTracefs(directory, {"do_open", "do_read", "do_write"}, pages=pages, **kernel)
        self.config = directory / "config.yaml"
        self.head = ""
        self.stop = Shutdown()
        self.agent: Agent

    @property
    def instance(self) -> Instance:
        """The agent's."""
        return self.agent._instance

    def write(self, *probes: str, settings: str = "") -> None:
        rest = f"global: {{{settings}}}\n" if settings else ""
        self.config.write_text(f"{self.head}{rest}probes: [{', '.join(probes)}]\n")

    def read(self) -> Config:
        return load([self.config], DECODERS)

    def start(self, *probes: str, settings: str = "") -> "Machine":
        self.write(*probes, settings=settings)
        self.agent = Agent(self.read(), self.files, self.stop)
        self.agent.__enter__()
        self.agent.start()
        return self

    def close(self) -> None:
        """End the agent, and close the pipe of its shutdown: select() takes no descriptor above 1023."""
        self.agent.__exit__()
        for descriptor in (self.stop.wake_up_fd, vars(self.stop)["_read"]):
            os.close(descriptor)

    def reload(self, *probes: str, settings: str = "") -> str | None:
        self.write(*probes, settings=settings)
        return self.agent.reload(self.read)

    def fire(self, symbol: str, times: int = 1, body: str = "") -> None:
        for _ in range(times):
            self.files.fire(symbol, body, tid=TID)

    def value(self, name: str, *labels: str) -> Any:
        families = {family.name: family for family in self.agent.snapshot().families}
        return families[name].samples.get(labels) if name in families else None

    def shows(self, *wanted: tuple[object, ...]) -> None:
        """Wait for values, each with a metric's name and its labels; the poller's counts may be 1 s old."""
        for value, name, *labels in wanted:
            eventually(lambda: self.value(str(name), *map(str, labels)) == value, 5)  # noqa: B023

    def status(self, name: str) -> ProbeStatus:
        [status] = [probe for probe in self.agent.snapshot().probes if probe.name == name]
        return status

    def defined(self) -> list[str]:
        return [event.name for event in self.files.probes if event.group == GROUP]

    def enabled(self) -> list[str]:
        """Return the events that record or count."""
        soft = self.files.instances[GROUP].soft
        return [e.name for e in self.files.probes if e.enabled or soft.get(f"events/{GROUP}/{e.name}")]

    def successful(self) -> tuple[Any, Any]:
        prefix = "kprobe_exporter_config_last_reload_success"
        return self.value(f"{prefix}ful"), self.value(f"{prefix}_timestamp_seconds")


class Watched(Machine):
    """A machine whose clock and switches the test sets, and on which the agent looks only when told."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.now = 1000.0
        self.broken: OSError | None = None
        self.switch = directory / "ftrace_enabled"
        self.switch.write_text("1\n")
        self.real_read = self.files.read
        self.files.read = self.read_file  # type: ignore[method-assign]

    def read_file(self, path: str) -> bytes:
        """Read ``enable`` as the kernel shows it; reads of the instance raise ``broken`` if it is set."""
        if self.broken is not None and path.startswith(f"instances/{GROUP}"):
            raise self.broken
        text = self.real_read(path)
        if path.startswith(EVENTS) and path.endswith("/enable"):
            instance, key = self.files.instances[GROUP], path.removeprefix(f"instances/{GROUP}/")
            event = next(e for e in self.files.events if key == f"events/{e.group}/{e.name}/enable")
            soft = instance.soft.get(key.removesuffix("/enable"))
            return b"%d%s\n" % (GROUP in event.enabled, b"*" if soft else b"")
        return text

    def look(self, seconds: float = 1.0, times: int = 1) -> None:
        for _ in range(times):
            self.now += seconds
            self.agent._repair()

    def delete(self, name: str) -> None:
        """Delete a probe as another tool does: disable it in our instance, then delete its definition."""
        self.files.write(f"{EVENTS}/{name}/enable", "0")
        self.files.write("kprobe_events", f"-:{GROUP}/{name}")

    def fault(self, name: Fault) -> tuple[object, object]:
        """Return whether the fault holds, and how often it began."""
        return self.value("kprobe_exporter_fault", name), self.value("kprobe_exporter_faults_total", name)


@contextmanager
def watched(directory: Path, monkeypatch: pytest.MonkeyPatch, *probes: str) -> Iterator[Watched]:
    """Yield a machine with these probes, whose agent looks only when the test tells it to."""
    monkeypatch.setattr("kprobe_exporter.tracefs.poller.MAX_AGE", 0.0)
    monkeypatch.setattr("kprobe_exporter.agent.supervisor.INTERVAL", 3600.0)
    made = Watched(directory)
    monkeypatch.setattr(
        "kprobe_exporter.agent.agent.Interference",
        lambda instance, lost: Interference(instance, lost, {"ftrace_off": made.switch}, directory),
    )
    own = SimpleNamespace(monotonic=lambda: made.now, time=time.time, time_ns=time.time_ns)
    monkeypatch.setattr("kprobe_exporter.agent.agent.time", own)
    made.start(*probes)
    yield made
    made.broken = None
    made.close()
