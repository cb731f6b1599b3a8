"""Runs cases: one agent that reloads, the load of all cases at once, and what differs afterwards."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernel.differential.cases import Case, Phase, merged
from tests.kernel.differential.compare import differences, fallen, samples
from tests.kernel.differential.expected import Expected, Run, expected
from tests.kernel.differential.load import Load
from tests.kernel.differential.probes import Probe, configuration
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.patience import eventually, patience

STAMP = "kprobe_exporter_config_last_reload_success_timestamp_seconds"
AGE = "kprobe_exporter_kernel_read_age_seconds"
RESIDENT_TOTAL = "kprobe_resident_total"
READS = 2
"""How often the kernel's counts are read after a load before a difference is one."""


@dataclass
class Runner:
    """An agent, its configuration file, and the load."""

    agent: AgentProcess
    config: Path
    load: Load
    last: Metrics | None = None
    falls: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, cases: Sequence[Case]) -> list[str]:
        """Run all phases of the cases; return what differs from the expected samples, a sentence each.

        A last configuration has none of their probes, and its load none of their operations: then all their
        losses are told.
        """
        self.falls.clear()
        runs: list[Run] = []
        before = self.scrape()
        for phase in (*(merged(cases, number) for number in range(2)), merged((), 0)):
            self.reload(phase.probes)
            begun = time.monotonic()
            firings = self.load.run(phase.operations)
            self._spent("load", begun)
            runs.append((phase.probes, firings))
            if wrong := self._settled(expected(runs), before):
                return [f"after load {len(runs)}: {one}" for one in [*wrong, *self._down(phase)]]
        return [*self.falls]

    def reset(self) -> None:
        """Have no drawn probes, after a run that was left early, and all losses told."""
        self.reload(())
        self.load.run(merged((), 0).operations)
        resident = self.scrape().value(RESIDENT_TOTAL)
        self.load.run(merged((), 0).operations)
        eventually(lambda: self.scrape().value(RESIDENT_TOTAL) > resident)

    def reload(self, probes: Sequence[Probe]) -> None:
        """Give the agent a configuration with these probes by SIGHUP, and wait until it has read it."""
        begun = time.monotonic()
        stamp = self.scrape().value(STAMP)
        self.config.write_text(configuration(probes, str(self.load.program)))
        self.agent.signal(signal.SIGHUP)

        def done() -> bool:
            metrics = self.scrape()
            refused = metrics.value("kprobe_exporter_config_last_reload_successful") == 0
            assert not refused, f"{self.agent.output()[-4000:]}\n{self.config.read_text()}"
            return metrics.value(STAMP) > stamp

        eventually(done, 60)
        self._spent("reload", begun)

    def scrape(self) -> Metrics:
        """Scrape, and note the counters that fell."""
        metrics = self.agent.scrape()
        self.falls += fallen(self.last, metrics)
        self.last = metrics
        return metrics

    def _settled(self, wanted: Expected, before: Metrics | None) -> list[str]:
        """Scrape until all samples are as expected; what differs after the kernel's counts were read anew."""
        begun = time.monotonic()
        end = begun + patience(10)
        reads, age = 0, 0.0
        while True:
            metrics = self.scrape()
            wrong = differences(wanted, samples(metrics, before))
            now = metrics.value(AGE)
            reads += now < age
            age = now
            if not wrong or reads > READS or time.monotonic() > end:
                self._spent("settle", begun)
                return wrong
            time.sleep(0.1)

    def _down(self, phase: Phase) -> list[str]:
        """The probes that the agent could not install."""
        last = self.last
        down = [
            probe.name
            for probe in phase.probes
            if probe.enabled and last is not None and last.value("kprobe_up", probe=probe.name) != 1
        ]
        return [f"kprobe_up{{probe={name!r}}} is 0" for name in down] + (
            [self.agent.output()[-3000:]] if down else []
        )

    def _spent(self, what: str, begun: float) -> None:
        """Note how long something took, for a person who wonders where the time goes."""
        self.seconds[what] = self.seconds.get(what, 0) + time.monotonic() - begun
