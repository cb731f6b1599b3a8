"""An agent over a fake tracefs."""

from pathlib import Path
from typing import Any

from kprobe_exporter.agent.agent import Agent
from kprobe_exporter.config.load import load
from kprobe_exporter.config.values import Config
from kprobe_exporter.labels import DECODERS
from kprobe_exporter.service.shutdown import Shutdown
from tests.support.fake_tracefs import FakeTracefs
from tests.support.patience import eventually

GROUP = "kprobe_exporter"

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
        self.stop = Shutdown()
        self.agent: Agent

    def write(self, *probes: str, settings: str = "") -> None:
        rest = f"global: {{{settings}}}\n" if settings else ""
        self.config.write_text(f"{rest}probes: [{', '.join(probes)}]\n")

    def read(self) -> Config:
        return load([self.config], DECODERS)

    def start(self, *probes: str, settings: str = "") -> "Machine":
        self.write(*probes, settings=settings)
        self.agent = Agent(self.read(), self.files, self.stop)
        self.agent.__enter__()
        return self

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

    def defined(self) -> list[str]:
        return [event.name for event in self.files.events if event.group == GROUP]

    def enabled(self) -> list[str]:
        """Return the events that record or count."""
        soft = self.files.instances[GROUP].soft
        return [e.name for e in self.files.events if e.enabled or soft.get(f"events/{GROUP}/{e.name}")]

    def successful(self) -> tuple[Any, Any]:
        prefix = "kprobe_exporter_config_last_reload_success"
        return self.value(f"{prefix}ful"), self.value(f"{prefix}_timestamp_seconds")
