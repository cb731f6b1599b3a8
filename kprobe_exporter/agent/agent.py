"""The agent: all stages wired together, started in the order of the data flow and stopped in reverse.

config ──► installer (plan, tracefs) ──► source ──► pipeline (pairing, aggregate, export)
                             └──────── poller ──────────────┘
"""

import logging
import platform
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kprobe_exporter import __version__
from kprobe_exporter.agent.audit import Audit, audited
from kprobe_exporter.agent.config_diff import difference, needs_restart
from kprobe_exporter.agent.container_probes import ContainerProbes
from kprobe_exporter.agent.heat import HeatMaps
from kprobe_exporter.agent.installer import UNEXPECTED, Installer
from kprobe_exporter.agent.interference import Interference, replacements
from kprobe_exporter.agent.losses import LossLog
from kprobe_exporter.agent.overhead import Machine
from kprobe_exporter.agent.pipeline import Pipeline
from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.agent.probe_set import ProbeSet
from kprobe_exporter.agent.probe_stacks import ProbeStacks
from kprobe_exporter.agent.rate_limit import Trip
from kprobe_exporter.agent.recorder import Recorder
from kprobe_exporter.agent.replaced_files import ReplacedFiles, plan_again, report, retained, successors
from kprobe_exporter.agent.supervisor import Observation, Supervisor
from kprobe_exporter.agent.thread_events import Identities
from kprobe_exporter.aggregate import self_metrics
from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.program_stacks import ProgramStacks
from kprobe_exporter.aggregate.recorded_stacks import RecordedStacks
from kprobe_exporter.aggregate.series import SeriesLimits
from kprobe_exporter.config.model import Config, Probe
from kprobe_exporter.errors import KprobeExporterError, StartError, TracefsError
from kprobe_exporter.identity.running import Places, RunningContainers
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model.snapshot import Family, Snapshot, summary
from kprobe_exporter.model.stacks import Profile
from kprobe_exporter.plan import ProbePlan, Sample, recorded
from kprobe_exporter.probing.container_files import ContainerFiles
from kprobe_exporter.probing.event_source import set_up
from kprobe_exporter.service.shutdown import Shutdown
from kprobe_exporter.service.watchdog import Vital
from kprobe_exporter.source.reader import Reader
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.programs import Programs
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.removal import Removal
from kprobe_exporter.util.deadline import CONTAINERS, HOST_FILES
from kprobe_exporter.util.overruns import OVERRUNS

if TYPE_CHECKING:
    from kprobe_exporter.agent.otlp import OtlpExport

log = logging.getLogger(__name__)

DRAIN_TIME = 0.2
"""Seconds that a scrape waits for the reader to deliver what is in the ring buffer."""

POLL_TIME = 0.5
"""Seconds that a scrape waits for fresh counts of the kernel; after that it uses the last ones."""

PATIENCE = 10.0
"""Seconds that the shutdown waits for a change of probes that is under way."""

STARTING = "the agent starts: it plans and installs its probes"

BUILD = {"version": __version__, "python_version": platform.python_version()}
KERNEL = {"release": platform.release(), "machine": platform.machine()}


class Agent:
    """The probes of a configuration, installed and counted while the context lasts.

    One thread enters the context, calls ``start`` and leaves the context. Meanwhile any thread may call
    everything else.
    ``reload``, ``disable`` and ``enable`` change probes, one call at a time, under the change lock
    ``_changing``, which they hold during system calls. Scrapes, the reader and the poller do not take that
    lock, so they never wait for a change. A background thread's error is kept in ``error`` and sets ``stop``.
    ``further`` returns metrics of what runs beside the agent.
    """

    def __init__(
        self,
        config: Config,
        files: Tracefs,
        stop: Shutdown,
        further: Callable[[], Sequence[Family]] = tuple,
    ) -> None:
        self.error: BaseException | None = None
        self._further = further
        self._config = config
        self._files = files
        self._stop = stop
        self._stack = ExitStack()
        self._changing = threading.Lock()
        self._started = self._ended = False
        self._read_last = True, time.time()  # whether the last reload succeeded; when one did
        settings = config.settings
        limits = SeriesLimits(settings.max_series, settings.max_series_total, settings.series_ttl)
        self._identities = Identities(nested=settings.nested_containers)
        self._audit = Audit()
        self._programs = ProgramStacks(Programs)
        self._aggregator = Aggregator(
            settings.namespace,
            limits,
            name_of,
            self._identities.cgroups.path,
            self._programs,
            self._identities.processes.fact,
        )
        self._stacks = ProbeStacks(limits, self._programs)
        self._heat = HeatMaps()
        self._supervisor = Supervisor(self._look, self._trip, self.enable)
        self._losses = LossLog(self._supervisor.history.rates)
        self._machine = Machine()
        self._replaced_files = ReplacedFiles()
        containers = RunningContainers(nested=settings.nested_containers)
        self._container_files = ContainerFiles(containers)
        self._container_probes = ContainerProbes(self._container_files)
        self._otlp: OtlpExport | None = None
        places = Places(nested=settings.nested_containers)
        self.recorder = Recorder(self._aggregator.counters, lambda: stop.recordings, places)

    def __enter__(self) -> "Agent":
        try:
            self._open()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise TracefsError(f"{UNEXPECTED}: {error}.") from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def start(self) -> None:
        """Install the probes of the configuration, and begin to watch them."""
        try:
            with self._changing, closing(self._instance.probed_files):  # it is a reload from nothing
                self._apply(self._config, replace(self._config, probes=()))
        except OSError as error:
            raise TracefsError(f"{UNEXPECTED}: {error}.") from error
        self._started = True
        self._stack.callback(self._supervisor.close)
        self._supervisor.start()
        self.recorder.start()

    def failed(self, error: BaseException) -> None:
        """Stop the agent: this error ended a background thread or a change of probes."""
        self.error = self.error or error
        self._stop.set()

    def require_all_up(self) -> None:
        """Raise StartError unless every probe that is not optional works (``--fail-fast``)."""
        for probe in self._probe_set.probes:
            if probe.state == "down" and not probe.absent:
                raise StartError(f"the probe '{probe.name}' is down: {probe.reason}")

    def ready(self) -> str | None:
        """Return None if at least one probe works, or waits for a container; else why none does."""
        if not self._started:
            return STARTING
        probes = self._probe_set.probes
        if any(probe.state == "up" or probe.plan.waiting for probe in probes):
            return None
        return "no probe is up: " + "; ".join(f"{probe.name}: {probe.reason}" for probe in probes)

    def vitals(self) -> tuple[Vital, ...]:
        """Return the threads that the agent needs. The kernel may delay some: they get more patience."""
        poller = Vital("poller", self._probe_set.poller.progress, patience=5)
        supervisor = Vital("supervisor", self._supervisor.progress, patience=5)
        return Vital("reader", self._source.progress), poller, supervisor

    def snapshot(self) -> Snapshot:
        """Return everything that is shown, as fresh as a bounded wait allows."""
        self._source.drain(DRAIN_TIME)
        self._programs.settle(DRAIN_TIME)
        self._probe_set.poller.refresh(POLL_TIME)
        probes, (successful, read_at) = self._probe_set.probes, self._read_last
        numbers = self._aggregator.copy()
        rates, heat = self._supervisor.history.rates, self._heat.of
        statuses = [probe.status(numbers, rates(probe.name), heat(probe.name)) for probe in probes]
        shown = [status for status in statuses if status.state != "absent"]
        age = self._probe_set.poller.age()
        return Snapshot(
            (
                *self_metrics.probe_families(self._config.settings.namespace, shown),
                *numbers.families,
                *self_metrics.agent_families(numbers, BUILD, KERNEL, read_at, age, successful=successful),
                *self_metrics.off_families(statuses),
                *self_metrics.stack_families(self._stacks.lost()),
                *self_metrics.fault_families(self._interference.faults, self._interference.noticed),
                *self_metrics.overrun_families(OVERRUNS.counts()),
                self._audit.family(),
                self._supervisor.overhead.family(probe.name for probe in probes),
                *(self._otlp.families() if self._otlp else ()),
                *self.recorder.families(),
                *self._further(),
            ),
            tuple(statuses),
            self._config.settings.namespace,
            self._identities.notice if self._started else STARTING,
        )

    def profile(self, name: str) -> Profile | None:
        """Return the counted stacks of a probe, as fresh as a bounded wait allows; None if it counts none."""
        self._source.drain(DRAIN_TIME)
        open_stacks = self._pipeline.open_stacks
        return self._stacks.profile(name, lambda one: self._source.call(partial(open_stacks, one)))

    def reload(self, read: Callable[[], Config]) -> str | None:
        """Apply the configuration that ``read`` returns. Return None, or why the old one stays, line by line.

        ``read`` may raise KprobeExporterError. If the kernel refuses a probe, that fails, not the reload.
        """
        with self._changing:
            try:
                reason = "the agent stops." if self._ended or self._stop.is_set() else self._reload(read())
            except KprobeExporterError as error:
                reason = str(error)
            self._read_last = (True, time.time()) if reason is None else (False, self._read_last[1])
        for line in reason.splitlines() if reason is not None else ():
            log.error("the configuration was not reloaded: %s", line)
        return reason

    def disable(self, name: str, reason: str) -> bool:
        """Remove a probe that records from the kernel, and keep its numbers. Return False if none does."""
        make = partial(ProbeState, state="tripped", reason=reason)
        return self._replace(name, lambda probe: probe.records, make)

    def sample(self, name: str, sample: Sample, reason: str) -> bool:
        """Record only the sample's events of a probe that records. Return whether it is up then."""
        make = partial(ProbeState, sample=sample, sampled_because=reason)
        return self._replace(name, lambda probe: probe.records, make)

    def enable(self, name: str) -> bool:
        """Undo ``disable`` or ``sample``: record a probe again, and whole. Return whether it is up then."""
        return self._replace(
            name, lambda probe: probe.state == "tripped" or probe.sample is not None, ProbeState.of
        )

    def _open(self) -> None:
        """Start stage by stage. Started stages are stopped in reverse order, even after an error."""
        for deadlines in (CONTAINERS, HOST_FILES):
            self._stack.enter_context(deadlines.until(self._stop.is_set))
        removal = Removal(gives_up=lambda: self._stop.gives_up)
        acquired = Instance.acquire(self._files, self._config.settings.tracefs_instance, removal)
        self._instance = instance = self._stack.enter_context(acquired)
        self._interference = Interference(instance, self._interrupted)
        settings, exports = self._config.settings, self._config.exports
        symbols = Symbols(self._files)
        by_kernel = instance.counts_tracepoints()
        planned = (recorded(probe, counted_by_kernel=by_kernel) for probe in self._config.probes)
        stacks_wanted = any(probe.stack for probe in planned)
        event_source, buffer_kib = set_up(instance, settings, symbols, stacks_wanted=stacks_wanted)
        self._machine = Machine.measured(instance.marker_seconds())
        if exports is not None:
            # Imported only if needed: OpenTelemetry takes time and memory to import.
            from kprobe_exporter.agent.otlp import OtlpExport  # noqa: PLC0415

            self._otlp = OtlpExport(
                exports, self._config.lines, self._identities.attributes, self._aggregator.exemplify
            )
            self._stack.callback(self._otlp.close)
            if self._config.otlp is not None:
                self.recorder.announce = self._otlp.announce
        known = self._aggregator, self._identities, self._stacks
        self._stack.callback(self._programs.close)
        recorded_stacks = RecordedStacks(self._programs)
        self._pipeline = Pipeline(
            instance, event_source, symbols, buffer_kib, *known, recorded_stacks, self._otlp
        )
        tick = self._otlp.tick if self._otlp is not None else lambda: None
        self._source = Reader(self._pipeline.pipe, self.failed, tick)
        self._stack.callback(self._source.close)
        self._installer = Installer(
            instance, event_source, self._identities, self._container_files, self._stop.is_set
        )
        self._probe_set = ProbeSet(instance, self._installer, self._pipeline, self._source, *known)
        self._source.start()
        self._stack.callback(self._probe_set.off)
        self._stack.callback(self.recorder.close)
        self._stack.callback(self._probe_set.poller.close)
        self._probe_set.poller.start()
        if self._otlp is not None:
            self._stack.callback(self._otlp.stop_pushing)
            self._otlp.start(self.snapshot, time.time_ns())

    def _reload(self, config: Config) -> str | None:
        if (reason := needs_restart(self._config, config)) is not None:
            return reason
        try:
            self._instance.read("tracing_on")  # else new probes would fail, and old ones would stay
            with closing(self._instance.probed_files):
                self._apply(config, self._config)
            self._follow_files()
        except OSError as error:
            return f"{UNEXPECTED}: {error}."
        return None

    def _apply(self, config: Config, old: Config) -> None:
        """Replace the probes by those of ``config``. The steps that may fail come before the first change."""
        config = self._installer.expand(config)
        found = difference(old, config)
        before = {probe.name: probe for probe in self._probe_set.probes}
        kept = {name for name in found.kept if before[name].state != "down"}  # failed ones are tried again
        self._pipeline.prepare(config.probes)
        self._identities.configure(config)
        kept = {name for name in kept if not self._identities.moves(before[name].attachments)}
        coming = [probe for probe in config.probes if probe.name not in kept]
        plans = {plan.probe.name: plan for plan in self._installer.plan(coming, config.settings)}
        settings = config.settings
        self._aggregator.limit(settings.max_series, settings.max_series_total, settings.series_ttl)
        if self._otlp is not None and config.otlp is not None and config.record is not None:
            self._otlp.open("log")
            self._otlp.watch(config.record.condition_probes)
        self.recorder.configure(config.record, self._instance, settings.namespace, settings.buffer_total)
        probes = []
        for probe in config.probes:
            if probe.name in kept:
                state = before[probe.name]
                state.plan = state.plan._replace(probe=probe)
            else:
                state = ProbeState.of(plans[probe.name])
                if probe.name in found.kept and before[probe.name].state == "down":
                    state.older = retained(before[probe.name].older, state.plan)
            probes.append(state)
        self._set_probes(tuple(probes), frozenset(f"{settings.namespace}_{name}" for name in found.reset))
        self._prune()
        self._config = config
        log.info("%s (%s)", summary((probe.name, probe.shown) for probe in probes), found)

    def _look(self) -> Observation:
        self._repair()
        self._pipeline.watch_threads(self._source.call)
        self._heat.update(time.monotonic(), self._aggregator.spreads)
        # Counts that were read before a repair lack the hits that the repair excuses.
        anew = self._audit.excuses
        read = self._probe_set.poller.refresh(POLL_TIME, fresh=anew, watching=True)
        # While probes change, the aggregator ignores the counts that are read.
        age = float("inf") if self._changing.locked() else self._probe_set.poller.age()
        ledger, probes = self._aggregator.ledger(), self._probe_set.probes
        hits = ledger.hits
        self._losses.look(time.monotonic(), ledger, probes)
        if age < float("inf") and (read or not anew):
            self._audit.look(self._aggregator.arrivals(), audited(probes))
        return Observation(hits, probes, self._config.settings.limit, age, self._machine)

    def _trip(self, trip: Trip) -> None:
        if trip.one_in:
            self.sample(trip.probe, Sample.drawn(trip.one_in), str(trip))
        else:
            self.disable(trip.probe, str(trip))

    def _repair(self) -> None:
        """Notice and repair interference; not while probes change, as a change looks like interference."""
        if not self._changing.acquire(blocking=False):
            return
        try:
            if not self._ended:
                probe_set, now = self._probe_set, time.monotonic()
                repair = self.recorder.repair
                repairs = self._interference.look(probe_set.probes, probe_set.own, now, repair)
                for old, new in replacements(probe_set.probes, repairs):
                    self._put(old, new)
                probe_set.follow_again([repair.probe for repair in repairs if repair.action == "enable"])
                self._follow_files()
        finally:
            self._changing.release()

    def _interrupted(self, name: str) -> None:
        """Take into account that another process had stopped the recording of this probe, or of all."""
        self._audit.excuse()
        self._probe_set.interrupted(name)

    def _follow_files(self) -> None:
        """Attach probes to the files that replaced theirs, and leave them attached to the old ones too.

        Those of containers are attached where such a container has started, and released where it has ended.
        """
        probes, now = self._probe_set.probes, time.monotonic()
        replaced = successors(self._replaced_files.look(probes, now), self._plan)
        if changes := {**replaced, **self._container_probes.changes(probes, self._plan, now)}:
            self._set_probes(tuple(changes.get(probe, probe) for probe in probes))
            report(replaced)
        if changes or self._instance.retired:
            self._prune()

    def _prune(self) -> None:
        if self._probe_set.prune():
            self.recorder.wiped()

    def _plan(self, probes: Sequence[Probe]) -> list[ProbePlan]:
        return self._installer.plan(probes, self._config.settings)

    def _set_probes(self, probes: tuple[ProbeState, ...], reset: Collection[str] = ()) -> None:
        try:
            # A probe that goes must not be hit for a recording while its last counts are read.
            self.recorder.follow([probe for probe in self._probe_set.probes if probe in probes])
            self._probe_set.replace(probes, reset)
            self.recorder.follow(self._probe_set.probes)
        except BaseException as error:
            self.failed(error)
            raise

    def _replace(
        self, name: str, fits: Callable[[ProbeState], bool], make: Callable[[ProbePlan], ProbeState]
    ) -> bool:
        """Replace the probe ``name`` if it ``fits``. Return whether its successor did not fail."""
        with self._changing:
            for old in self._probe_set.probes:
                if old.name == name and fits(old) and not self._ended:
                    new = make(old.plan)
                    self._put(old, new)
                    return new.state in ("up", "tripped")
        return False

    def _put(self, old: ProbeState, new: ProbeState) -> None:
        if new.state == "down":
            plan_again(old, new, self._plan)
        self._set_probes(tuple(new if probe is old else probe for probe in self._probe_set.probes))

    def _close(self) -> None:
        changing = self._changing.acquire(timeout=PATIENCE)  # a change may hang in the kernel
        self._ended = True
        if changing:
            self._changing.release()
        self._stack.close()
