"""The agent: all stages wired together, started in the order of the data flow, stopped in the mirror's.

config ──► plan ──► tracefs (instance, probes) ──► source ──► aggregate ──► export
                             └──────── poller ────────────────┘
"""

import itertools
import logging
import platform
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from kprobe_exporter import __version__
from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.own import agent_families, probe_families
from kprobe_exporter.aggregate.pairing import Pairing
from kprobe_exporter.aggregate.recipes import recipe
from kprobe_exporter.aggregate.series import Limits
from kprobe_exporter.attach import settle
from kprobe_exporter.config.values import Config
from kprobe_exporter.errors import ProbeRefused, StartError, TracefsError
from kprobe_exporter.follow import Identities
from kprobe_exporter.kernel import expanded, known_kernel
from kprobe_exporter.labels import decoders
from kprobe_exporter.labels.errno import name_of
from kprobe_exporter.model import Batch, Layout, Snapshot
from kprobe_exporter.plan import plan_probe, wants_symbols, wants_tgid
from kprobe_exporter.probe_state import ProbeState, warn_of_strings
from kprobe_exporter.reading import PAGE_PARSER, Reading, choose, open_pipe, unreadable
from kprobe_exporter.recipe import Recipe
from kprobe_exporter.source.reader import Pipe, Reader
from kprobe_exporter.stop import Stop
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.poller import Poller, read_counts
from kprobe_exporter.tracefs.probes import Installed, names_in_use
from kprobe_exporter.tracefs.resolve import Resolver
from kprobe_exporter.tracefs.symbols import Symbols

if TYPE_CHECKING:
    from kprobe_exporter.telemetry import Telemetry

log = logging.getLogger(__name__)

DRAIN_TIME = 0.2
"""Seconds that a scrape waits for the reader to deliver what is in the ring buffer."""

POLL_TIME = 0.5
"""Seconds that a scrape waits for fresh counts of the kernel; then the last ones serve."""

BUILD = {
    "version": __version__,
    "python_version": platform.python_version(),
    "page_parser": PAGE_PARSER,
}


class Agent:
    """The probes of one configuration, in the kernel and counted, while the context lasts.

    One thread enters and leaves it; ``snapshot``, ``ready`` and ``failed`` may be called from any,
    once it is entered: the list of probes does not change after that. An error of a background
    thread is kept in ``error`` and sets ``stop``.
    """

    def __init__(self, config: Config, files: Tracefs, stop: Stop) -> None:
        self.error: BaseException | None = None
        self._config = config
        self._files = files
        self._stop = stop
        self._stack = ExitStack()
        self._probes: list[ProbeState] = []
        self._loaded_at = time.time()
        settings = config.settings
        limits = Limits(settings.max_series, settings.max_series_total, settings.series_ttl)
        self._identities = Identities(config)
        self._aggregator = Aggregator(settings.namespace, limits, name_of, self._identities.cgroups.path)
        self._pairing = Pairing(nested=any(probe.export for probe in config.probes))
        self._symbols = Symbols(files)
        self._telemetry: Telemetry | None = None
        self._reading = Reading(None)
        self._buffer_kib = 0
        self._source: Reader
        self._poller: Poller

    def __enter__(self) -> "Agent":
        try:
            self._open()
        except OSError as error:
            self._stack.close()
            raise TracefsError(f"the kernel gave an answer that nobody expected: {error}.") from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def failed(self, error: BaseException) -> None:
        """A background thread ended by this error: stop the agent."""
        self.error = error
        self._stop.set()

    def insist(self) -> None:
        """Raise StartError unless every probe that is not optional works (``--fail-fast``)."""
        for probe in self._probes:
            if probe.state == "failed" and not probe.absent:
                raise StartError(f"the probe '{probe.name}' is down: {probe.reason}")

    def ready(self) -> str | None:
        """None if at least one probe works, else why not."""
        if any(probe.state == "up" for probe in self._probes):
            return None
        return "no probe is up: " + "; ".join(f"{p.name}: {p.reason}" for p in self._probes)

    def snapshot(self) -> Snapshot:
        """Everything that is shown, as fresh as a bounded wait allows."""
        self._source.drain(DRAIN_TIME)
        self._poller.refresh(POLL_TIME)
        numbers = self._aggregator.copy()
        statuses = [probe.status(numbers) for probe in self._probes]
        shown = [s for s, p in zip(statuses, self._probes, strict=True) if not p.absent]
        return Snapshot(
            (
                *probe_families(self._config.settings.namespace, shown),
                *numbers.families,
                *agent_families(numbers, BUILD, self._loaded_at, self._poller.age()),
                *(self._telemetry.families() if self._telemetry else ()),
            ),
            tuple(statuses),
        )

    def _open(self) -> None:
        """Start stage by stage. Each is undone in the mirror's order, whatever comes in between.

        ``stop`` is looked at before each probe, so that a signal during a long start is heeded.
        """
        name = self._config.settings.tracefs_instance
        instance = self._stack.enter_context(Instance.acquire(self._files, name))
        self._set_up(instance)
        self._connect()
        self._install(instance)
        if (following := self._identities.following) is not None:
            self._stack.callback(following.disable)
            following.enable()
        pipe = self._pipe(instance)
        if self._telemetry is not None:
            self._stack.callback(self._telemetry.close)
            pipe = self._telemetry.ticking(pipe)
        self._source = Reader(pipe, self.failed)
        self._stack.callback(self._source.close)
        self._source.start()
        self._stack.callback(self._disable)
        self._enable()
        self._poller = Poller(
            lambda: read_counts(instance, self._installed()), self._aggregator.update_kernel
        )
        self._stack.callback(self._poller.close)
        self._poller.start()
        if self._telemetry is not None:
            self._stack.callback(self._telemetry.stop_pushing)
            self._telemetry.start(self.snapshot, time.time_ns())
        up = sum(probe.state == "up" for probe in self._probes)
        log.info("%d of %d probes are up", up, len(self._probes))

    def _connect(self) -> None:
        """Get ready to send, if anything is to be sent. Raises StartError."""
        if self._config.otlp is None:
            return
        # Imported now: OpenTelemetry takes a while and some memory.
        from kprobe_exporter.telemetry import Telemetry  # noqa: PLC0415

        attributes = self._identities.attributes
        self._telemetry = Telemetry(self._config.otlp, attributes, self._aggregator.exemplify)

    def _set_up(self, instance: Instance) -> None:
        settings, probes = self._config.settings, self._config.probes
        cpus = max(1, len(instance.files.names(f"{instance.path}/per_cpu")))
        self._buffer_kib = max(4, min(settings.buffer_size, settings.buffer_total // cpus) // 1024)
        instance.set_up(self._buffer_kib, record_tgid=wants_tgid(probes))
        stacks_wanted = any(probe.stack for probe in probes)
        self._reading = choose(instance, settings, self._symbols, stacks_wanted=stacks_wanted)
        if self._reading.geometry is None:
            log.info("events are read as text: %s", self._reading.because)
        if not instance.keep_own_threads_out():
            log.warning("this kernel cannot keep the agent's own threads out of its events")

    def _install(self, instance: Instance) -> None:
        slots = itertools.count()
        taken = names_in_use(instance)
        settings = self._config.settings
        binary = self._reading.geometry is not None
        resolver = Resolver.of(self._files)
        probes = expanded(self._config.probes, resolver, settings.max_matches)
        kernel = known_kernel(instance, probes, resolver, settings.max_matches, binary=binary)
        self._identities.follow(instance, kernel, slots)
        symbols = Symbols(self._files)  # another one: the reader's is not thread-safe
        if wants_symbols(probes):
            symbols.text(0)  # loaded now: it takes a while, and events would have to wait
        known = decoders(symbols.text, self._identities.pods)
        for probe in probes:
            plan = plan_probe(probe, settings.namespace, known, kernel, slots, settings.max_series)
            self._aggregator.declare(plan.metrics)
            state = ProbeState(plan)
            self._probes.append(state)
            if not probe.enabled:
                state.state, state.reason = "disabled", "'enabled: false' in the configuration"
            elif not self._stop.is_set():
                self._settle(instance, state, taken, resolver)

    def _settle(self, instance: Instance, state: ProbeState, taken: set[str], resolver: Resolver) -> None:
        """Install the first alternative that this kernel takes."""
        there = [part.spec for part in self._installed()]
        there += following.specs if (following := self._identities.following) else []
        state.attached, refused = settle(
            instance, state.plan, taken, there, resolver.explain, partial(self._unreadable, instance)
        )
        state.reason = " ".join(f"{target}: {reason}" for target, reason in refused.items())
        if state.attached is None:
            state.complain()
        elif self._reading.geometry is None and state.attached.spec.plan == "events":
            warn_of_strings(state.attached)

    def _unreadable(self, instance: Instance, part: Installed) -> str | None:
        return unreadable(instance, self._reading, part.system, part.layout)

    def _pipe(self, instance: Instance) -> Pipe:
        layouts: dict[Layout, str] = {}
        recipes: dict[int, Recipe] = {}
        for state in self._probes:
            attached = state.attached
            if attached is None or attached.spec.plan != "events":
                continue
            layouts |= {part.layout: part.system for part in attached.parts}
            export = state.plan.probe.export
            if self._telemetry is not None and export is not None:
                counted = not attached.counted_by_kernel
                self._telemetry.add(attached, export, self._pairing, counted=counted)
            elif attached.joined is not None:
                self._pairing.add(attached.joined, counted=not attached.counted_by_kernel)
            elif made := recipe(attached.layout, state.plan.metrics, attached.only):
                recipes[attached.layout.slot] = made
        if (following := self._identities.following) is not None:
            layouts |= following.layouts
            for slot, handle in following.handlers.items():
                self._aggregator.watch(slot, handle)
        if any(layout.caller or layout.stack for layout in layouts):
            self._symbols.name(0)  # loaded now: it takes a while, and events would have to wait
        return open_pipe(
            instance,
            self._reading,
            self._symbols,
            layouts,
            recipes,
            self._consume,
            self._buffer_kib,
            tgid=wants_tgid(self._config.probes),
        )

    def _consume(self, batch: Batch) -> None:
        """In the reader's thread, which owns the pairing and what is known of threads."""
        self._identities.before(batch)
        batch = self._pairing.pair(batch)
        self._aggregator.consume(batch)
        if self._telemetry is not None:
            self._telemetry.consume(batch)
            self._identities.after()

    def _enable(self) -> None:
        for state in self._probes:
            attached = state.attached
            if attached is None or self._stop.is_set():
                continue
            self._aggregator.attach(
                attached.layout,
                count_hits=not attached.counted_by_kernel,
                only=attached.only,
                tables=attached.tables,
                begins=attached.joined.begins if attached.joined else (),
            )
            if state.plan.probe.export is not None and (note := self._identities.note) is not None:
                self._aggregator.also(attached.layout.slot, note)
            try:
                attached.enable()
            except ProbeRefused as error:
                self._aggregator.detach(attached.layout)
                attached.remove()
                state.attached, state.reason = None, str(error)
                state.complain()
            else:
                state.state = "up"
                log.info("%s: %s", state.name, attached.spec.target)

    def _disable(self) -> None:
        for part in self._installed():
            part.disable()

    def _installed(self) -> list[Installed]:
        return [part for probe in self._probes if probe.attached for part in probe.attached.parts]
