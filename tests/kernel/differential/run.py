"""Runs cases: one agent that reloads, the load of all cases at once, and what differs afterwards."""

import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernel.differential.cases import Case, Phase, merged
from tests.kernel.differential.compare import differences, fallen, samples
from tests.kernel.differential.expected import EVENTS, HITS, LOST, Expected, Run, expected
from tests.kernel.differential.load import Firing, Load, Operation
from tests.kernel.differential.probes import Probe, configuration
from tests.support.agent_process import AgentProcess, Metrics
from tests.support.patience import eventually, patience

RELOADED = b" kept)"
"""What the agent logs when it has replaced its probes."""
BETWEEN = 1.0
"""Seconds from one scrape to the next during a reload: under emulation a scrape takes a tenth of one."""
AGE = "kprobe_exporter_kernel_read_age_seconds"
RESIDENT_TOTAL = "kprobe_resident_total"
AT_RELOADS = ("disabled", "unpaired", "negative", "wiped", "unparsed")
"""Losses of probes that a reload changes under load. An event that another CPU was still writing while its
probe was removed belongs to no probe when it is read, and is told as ``unparsed``."""
WIPED = {"reason": "wiped"}
"""The loss of events that were in the buffer, or would have been, while old definitions were deleted."""
PAUSE = 0.2
"""Seconds between two operations of a thread whose load runs during a reload."""
READS = 2
"""How often the kernel's counts are read after a load before a difference is one."""


def slowly(operations: Sequence[Operation]) -> list[Operation]:
    """The same operations with a pause behind each."""
    pauses = [Operation(one.thread, "pause", round(PAUSE * 1e6)) for one in operations]
    return [one for both in zip(operations, pauses, strict=True) for one in both]


@dataclass
class Runner:
    """An agent, its configuration file, and the load. ``restarted`` are the metrics that start again from 0
    at the last reload, which changed their definition."""

    agent: AgentProcess
    config: Path
    load: Load
    buffer: str = "4MiB"
    last: Metrics | None = None
    probes: Sequence[Probe] = ()
    restarted: set[str] = field(default_factory=set)
    falls: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, cases: Sequence[Case], *, busy: bool = False) -> list[str]:
        """Run all phases of the cases; return what differs from the expected samples, a sentence each.

        A last configuration has none of their probes, and its load none of their operations: then all their
        losses are told. In a ``busy`` run the reload happens while the second load runs, and only the probes
        that it does not change are compared. If the agent deletes old definitions meanwhile, which it tells
        as events that were wiped, the cases run once more: by then it has deleted enough.
        """
        before = self.scrape()
        wrong = self._run(cases, before, busy=busy)
        if wrong and busy and self.scrape().value(LOST, **WIPED) > before.value(LOST, **WIPED):
            self.reset()
            wrong = self._run(cases, self.scrape(), busy=busy)
        return wrong

    def _run(self, cases: Sequence[Case], before: Metrics, *, busy: bool) -> list[str]:
        self.falls.clear()
        runs: list[Run] = []
        unchanged = set(merged(cases, 0).probes) & set(merged(cases, 1).probes)
        for phase in (*(merged(cases, number) for number in range(2)), merged((), 0)):
            firings = self._reloaded(phase, busy=busy and len(runs) == 1)
            runs.append((phase.probes, firings))
            wanted = runs
            if busy and len(runs) > 1:
                wanted = [([one for one in probes if one in unchanged], calls) for probes, calls in runs]
            all_losses = not busy or len(runs) == 1
            if wrong := self.settled(expected(wanted), before, all_losses=all_losses):
                return [f"after load {len(runs)}: {one}" for one in [*wrong, *self._down(phase)]]
            if busy and len(runs) == 2 and (wrong := self._unrecorded(merged(cases, 0), phase)):
                return wrong
        return [*self.falls]

    def _reloaded(self, phase: Phase, *, busy: bool) -> list[Firing]:
        """Reload with the probes of a phase, and run its load afterwards or meanwhile."""
        if busy:
            with ThreadPoolExecutor(1) as pool:
                loading = pool.submit(self.load.run, slowly(phase.operations))
                time.sleep(PAUSE)
                self.reload(phase.probes)
                return loading.result()
        self.reload(phase.probes)
        begun = time.monotonic()
        firings = self.load.run(phase.operations)
        self._spent("load", begun)
        return firings

    def reset(self) -> None:
        """Have no drawn probes, after a run that was left early, and all losses told."""
        self.reload(())
        self.load.run(merged((), 0).operations)
        resident = self.scrape().value(RESIDENT_TOTAL)
        self.load.run(merged((), 0).operations)
        eventually(lambda: self.scrape().value(RESIDENT_TOTAL) > resident)

    def reload(self, probes: Sequence[Probe]) -> None:
        """Give the agent a configuration with these probes by SIGHUP, and wait until it has read it."""
        begun = scraped = time.monotonic()
        metrics = {(probe.name, metric) for probe in probes for metric in probe.metrics}
        self.restarted = {
            f"kprobe_{metric.name}"
            for probe in self.probes
            for metric in probe.metrics
            if (probe.name, metric) not in metrics
        }
        self.probes = probes
        written = self.agent.log.stat().st_size
        self.config.write_text(configuration(probes, str(self.load.program), buffer=self.buffer))
        self.agent.signal(signal.SIGHUP)

        def done() -> bool:
            nonlocal scraped
            if time.monotonic() - scraped > BETWEEN:
                metrics = self.scrape()
                refused = metrics.value("kprobe_exporter_config_last_reload_successful") == 0
                assert not refused, f"{self.agent.output()[-4000:]}\n{self.config.read_text()}"
                scraped = time.monotonic()
            with self.agent.log.open("rb") as log:
                log.seek(written)
                return RELOADED in log.read()

        eventually(done, 60)
        self.scrape()
        self._spent("reload", begun)

    def scrape(self) -> Metrics:
        """Scrape, and note the counters that fell."""
        metrics = self.agent.scrape()
        self.falls += fallen(self.last, metrics, self.restarted)
        self.last = metrics
        return metrics

    def settled(
        self, wanted: Expected, before: Metrics | None = None, *, all_losses: bool = True
    ) -> list[str]:
        """Scrape until all samples are as expected; what differs after the kernel's counts were read anew.

        Unless ``all_losses``, those that a reload under load may have are left out.
        """
        if not all_losses:
            wanted.samples.pop(LOST, None)
        begun = time.monotonic()
        end = begun + patience(10)
        reads, age = 0, 0.0
        while True:
            metrics = self.scrape()
            found = samples(metrics, before)
            if not all_losses:
                found[LOST] = {
                    key: n for key, n in found[LOST].items() if dict(key)["reason"] not in AT_RELOADS
                }
            wrong = differences(wanted, found)
            now = metrics.value(AGE)
            reads += now < age
            age = now
            if not wrong or reads > READS or time.monotonic() > end:
                self._spent("settle", begun)
                return wrong
            time.sleep(0.1)

    def _unrecorded(self, before: Phase, phase: Phase) -> list[str]:
        """The probes that a reload under load added, and that have hits which are no events."""
        if self.last is None:
            return []
        old = {probe.name for probe in before.probes}
        added = [probe for probe in phase.probes if probe.name not in old and probe.filter is None]
        return [
            f"{probe.name} was added under load, and has {hits} hits and {events} events"
            for probe in added
            if not (probe.joined or probe.counts_only or probe.kind == "uretprobe")
            and (hits := self.last.value(HITS, probe=probe.name))
            != (events := self.last.value(EVENTS, probe=probe.name))
        ]

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
