"""Planning probes and installing them, at the start and at each change."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from kprobe_exporter.agent.probe import ProbeState, warn_of_strings
from kprobe_exporter.agent.replaced_files import moved
from kprobe_exporter.agent.thread_events import Identities
from kprobe_exporter.config.model import Config, Probe, Settings
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.labels import decoders
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel, ProbePlan, narrowed, plan_probe, wants_symbols
from kprobe_exporter.probing.attach import settle
from kprobe_exporter.probing.container_files import ContainerFiles
from kprobe_exporter.probing.event_source import EventSource, unreadable
from kprobe_exporter.probing.kernel_info import expanded, known_kernel
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.resolve import Resolver
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kernel_files import running_kernel
from kprobe_exporter.tracefs.probes import names_in_use
from kprobe_exporter.tracefs.refusal import REPLACED

log = logging.getLogger(__name__)

UNEXPECTED = "unexpected error from the kernel"


@dataclass(eq=False)
class Installer:
    """Plans and installs probes in one instance. Only the thread that holds the change lock calls it.

    ``stopping`` is called before each probe, so that a request to stop takes effect at once.
    """

    _instance: Instance
    _event_source: EventSource
    _identities: Identities
    _containers: ContainerFiles
    stopping: Callable[[], bool]

    def __post_init__(self) -> None:
        self._layout_ids: Iterator[int] = itertools.count()
        self._resolver = Resolver.of(running_kernel(self._instance.files))
        self._symbols = Symbols(self._instance.files)
        self._loaded = False
        self._kernel: Kernel | None = None

    def expand(self, config: Config) -> Config:
        """Replace each pattern by one probe per function or tracepoint that it matches now.

        The files of programs stay open; the caller closes them if ``install`` is not reached.
        """
        self._resolver = Resolver.of(running_kernel(self._instance.files))
        files, most = self._instance.probed_files, config.settings.max_matches
        return replace(config, probes=tuple(expanded(config.probes, self._resolver, most, files)))

    def plan(self, probes: Sequence[Probe], settings: Settings) -> list[ProbePlan]:
        """Plan how to collect these; also install or disable the agent's own tracepoints.

        The files in which these probes are stay open until ``install`` has ended.
        """
        most, binary = settings.max_matches, self._event_source.geometry is not None
        with ExitStack() as after_an_error:
            after_an_error.callback(self._instance.probed_files.close)
            kernel = known_kernel(self._instance, probes, self._resolver, most, binary=binary)
            self._kernel = kernel
            self._identities.follow(self._instance, kernel, self._layout_ids)
            if wants_symbols(probes) and not self._loaded:
                self._symbols = Symbols(self._instance.files)  # a new object: the old one is in use
                self._symbols.text(0)  # loads the symbols now, else events would wait for that
                self._loaded = True
            identities, enum = self._identities, kernel.types.words
            known = decoders(self._symbols.text, identities.pods, enum, nested=identities.nested)
            given = settings.namespace, known, kernel, self._layout_ids, settings.max_series
            plans = [
                self._containers.plan(probe, lambda placed: plan_probe(placed, *given)) for probe in probes
            ]
            after_an_error.pop_all()
        return plans

    def install(self, probes: Sequence[ProbeState], beside: Iterable[ProbeState]) -> None:
        """Install each by the first alternative that the kernel accepts, without enabling it."""
        with closing(self._instance.probed_files):
            if not probes:
                return
            try:
                taken = names_in_use(self._instance)
            except OSError as error:
                for probe in probes:
                    probe.fail(f"{UNEXPECTED}: {error}.")
                return
            there = [part.spec for probe in beside if probe.attached for part in probe.attached.parts]
            for probe in probes:
                if self.stopping():
                    break
                try:
                    self._settle(probe, taken, there)
                except OSError as error:
                    probe.fail(f"{UNEXPECTED}: {error}.")
                if probe.attached is not None:
                    there += [part.spec for part in probe.attached.parts]
            if self._kernel is not None:
                layouts = [spec.layout for spec in there if spec.plan == "events"]
                self._identities.follow_names(layouts, self._instance, self._kernel, self._layout_ids)
            try:
                self._instance.read("tracing_on")
            except OSError as error:  # tracefs is gone, so the probes were not refused
                for probe in probes:
                    if probe.attached is None:
                        probe.fail(f"{UNEXPECTED}: {error}.")
            # A new one frees the lists of this one; modules may come and go.
            self._resolver = Resolver.of(running_kernel(self._instance.files))

    def enable(self, probe: ProbeState) -> bool:
        """Start recording; return True. If the kernel refuses, remove the probe and return False."""
        assert probe.attached is not None
        try:
            if (path := moved(probe.attached)) is not None:
                raise ProbeRefused(f"{path} {REPLACED}.")
            probe.attached.enable()
        except ProbeRefused as error:
            probe.attached.remove()
            probe.attached = None
            probe.fail(str(error))  # unexpected: the kernel accepted it a moment ago
            return False
        probe.state = "up"
        log.info("%s: %s", probe.name, probe.attached.spec.target)
        return True

    def _settle(self, probe: ProbeState, taken: set[str], there: list[ProbeSpec]) -> None:
        probe.attached, refused = settle(
            self._instance,
            probe.plan if probe.sample is None else narrowed(probe.plan, probe.sample),
            taken,
            there,
            self._resolver.explain,
            lambda part: unreadable(self._instance, self._event_source, part.system, part.layout),
        )
        probe.reason = " ".join(f"{target}: {reason}" for target, reason in refused.items())
        if probe.attached is None:
            probe.fail(probe.reason, unexpected=REPLACED in probe.reason)
            return
        if probe.plan.probe.aggregate == "kernel" and probe.attached.spec.plan == "events":
            log.info("the probe '%s': %s", probe.name, probe.attached.spec.because)
        for target in {part.spec.target for part in probe.attached.parts}:
            if why := self._resolver.never_fires(parse_target(target)):
                log.warning("the probe '%s': %s", probe.name, why)
                probe.reason = f"{probe.reason} {target}: {why}.".lstrip()
        if self._event_source.geometry is None and probe.attached.spec.plan == "events":
            warn_of_strings(probe.attached)
