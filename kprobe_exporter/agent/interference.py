"""Noticing interference with the agent's instance, its probes and the machine's tracing; and repairing it."""

import errno
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.kept_settings import SHOWN, parse_filters
from kprobe_exporter.tracefs.pair_triggers import PairTriggers
from kprobe_exporter.tracefs.probes import NO_FILTER, Installed
from kprobe_exporter.util.deadline import CONTAINERS, HOST_FILES

log = logging.getLogger(__name__)

OfTheInstance: TypeAlias = Literal["tracefs_gone", "instance_gone", "locked_down", "descriptors_exhausted"]
"""Faults because of which the instance's files cannot be read."""

OfTheMachine: TypeAlias = Literal["ftrace_off", "kprobes_off"]
OfAProbe: TypeAlias = Literal["module_gone", "probe_disabled", "probe_gone", "filter_changed"]

OfFiles: TypeAlias = Literal["container_hangs", "file_hangs"]

Fault: TypeAlias = (
    OfTheInstance
    | OfTheMachine
    | OfAProbe
    | OfFiles
    | Literal["tracing_off", "setting_changed", "recording_changed"]
)

OF_THE_INSTANCE: tuple[Fault, ...] = get_args(OfTheInstance)

MEANING: Mapping[Fault, str] = {
    "tracefs_gone": "tracefs is not where it was mounted: the last counts stay until it is mounted again",
    "instance_gone": "the agent's tracefs instance was removed from outside: restart the agent",
    "locked_down": "the kernel was locked down, which forbids all tracing: the last counts stay",
    "descriptors_exhausted": "no file descriptor is left (EMFILE): raise the limit of open files",
    "tracing_off": "another process wrote 0 to the instance's tracing_on: it is 1 again",
    "setting_changed": "another process changed a setting of the agent's instance: it is set again",
    "ftrace_off": "kernel.ftrace_enabled is 0: probes at the start of functions do not fire until it is 1",
    "kprobes_off": "all kprobes are off (debug/kprobes/enabled is 0): none fires until it is 1",
    "module_gone": "the module of the function was unloaded: it fires when that is loaded again",
    "probe_disabled": "another process disabled it in the agent's instance: it is enabled again",
    "probe_gone": "another process deleted its definition: it is installed again",
    "container_hangs": "a container's file system does not answer: new probes in there wait until it does",
    "file_hangs": "the file system of a probed file does not answer: probes in the file wait until it does",
    "filter_changed": "another process changed its filter in the agent's instance: it is set again",
    "recording_changed": "another process changed a recording's instance: it is as before again",
}

SWITCHES: Mapping[Fault, Path] = {
    "ftrace_off": Path("/proc/sys/kernel/ftrace_enabled"),
    "kprobes_off": Path("/sys/kernel/debug/kprobes/enabled"),
}
"""Switches of the whole machine (kernel/trace/ftrace.c, kernel/kprobes.c): the agent never changes them."""

REPAIRED: tuple[Fault, ...] = (
    "tracing_off",
    "setting_changed",
    "probe_disabled",
    "probe_gone",
    "filter_changed",
    "recording_changed",
)
"""Faults that the agent repairs as soon as it notices them."""

PARTS_A_LOOK = 20
"""Events that one look examines. With 50 probes each is examined every 5 s; a look takes at most 1 ms.

If the kernel shows all filters in one file, one look sees each changed filter."""

REPAIRS, WITHIN = 3, 60.0
"""The agent repairs a probe at most REPAIRS times within WITHIN seconds; after that it leaves it alone."""

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
"""Seconds before a probe that was left alone or not installed is tried again. They double each time."""

RENEWED = 600.0
"""Seconds between two renewals of a pair whose table of open calls is full: the kernel never frees a row."""

RECOVERED = 1200.0
"""Seconds without a fault of the probe after which its pauses start again from FIRST_PAUSE."""

_target = lru_cache(maxsize=1024)(parse_target)

Action: TypeAlias = Literal["enable", "replace", "leave", "again"]


class Repair(NamedTuple):
    """A repair of a probe: ``enable`` it if it was disabled, or ``replace`` it by a new one. Or ``leave`` it
    alone for a while, for this ``reason``, and try it ``again`` after that."""

    probe: str
    action: Action
    reason: str = ""


@dataclass(slots=True)
class _History:
    """The repairs of one probe: when they were made, and until when the probe is left alone."""

    repaired: list[float] = field(default_factory=list)
    last: float = 0.0
    pause: float = 0.0
    until: float | None = None

    def wait(self, now: float) -> None:
        self.pause = min(2 * self.pause, LONGEST_PAUSE) or FIRST_PAUSE
        self.until = now + self.pause


@dataclass(eq=False)
class Interference:
    """The faults that hold now, and their repairs. One thread calls ``look``; any may read the attributes.

    ``faults`` hold now, ``noticed`` counts how often each fault began: both are replaced as a whole.
    ``interrupted`` is called with the name of a probe, or '' for all probes, whose recording may have been
    interrupted, before recording resumes: an entry from before it and a return from after it may belong to
    different calls.
    """

    _instance: Instance
    _interrupted: Callable[[str], object]
    _switches: Mapping[Fault, Path] = field(default_factory=lambda: SWITCHES)
    _modules: Path = Path("/sys/module")

    def __post_init__(self) -> None:
        self.faults: frozenset[Fault] = frozenset()
        self.noticed: Mapping[str, int] = dict.fromkeys(MEANING, 0)
        self._holding: set[tuple[Fault, str]] = set()  # with the probe's name, '' for the machine
        self._counts: Counter[Fault] = Counter()
        self._turn = 0
        self._loaded: set[str] = set()
        self._histories: dict[str, _History] = {}
        self._renewed: dict[str, float] = {}

    def look(
        self,
        probes: Sequence[ProbeState],
        own: Sequence[Installed],
        now: float,
        repair_recordings: Callable[[], Sequence[str]] = tuple,
    ) -> list[Repair]:
        """Return the repairs of the interference until ``now``, in seconds of a monotonic clock.

        It reads some small files. ``own`` are events that the agent needs for itself. ``repair_recordings``
        repairs the instances of recordings, and returns a line for each change.
        """
        repairs: list[Repair] = []
        names = {"", *(probe.name for probe in probes), *(part.name for part in own)}
        self._holding = {(fault, name) for fault, name in self._holding if name in names}
        self._histories = {name: history for name, history in self._histories.items() if name in names}
        for fault, path in self._switches.items():
            off = False
            with suppress(OSError):  # it is missing, or may not be read
                off = path.read_bytes().strip() == b"0"
            if off and (fault, "") not in self._holding:
                self._interrupted("")
            self._set(fault, "", holds=off)
        self._set("container_hangs", "", holds=bool(CONTAINERS.refused()))
        self._set("file_hangs", "", holds=bool(HOST_FILES.refused()))
        if self._instance_is_well():
            repairs += self._waiting(probes, now)
            repairs += self._modules_of(probes)
            repairs += self._full(probes, now)
            repairs += self._broken_pairs(probes, now)
            for name, part in self._next(probes):
                if all(repair.probe != name for repair in repairs):
                    repairs += self._examine(name, part, now)
            for part in own:
                repairs += self._examine(part.name, part, now)
            changed = repair_recordings()
            for line in changed:
                log.warning("changed in a recording: %s", line)
            self._set("recording_changed", "", holds=bool(changed))
        self.faults = frozenset(fault for fault, _ in self._holding)
        self.noticed = {fault: self._counts[fault] for fault in MEANING}
        return repairs

    def _instance_is_well(self) -> bool:
        """Return whether its files can be read. Undo what another process changed of its settings."""
        found: Fault | None = None
        try:
            both = self._instance.both
            off = [instance for instance in both if instance.read("tracing_on").strip() == b"0"]
            self._set("tracing_off", "", holds=bool(off))
            changed = {instance: words for instance in both if (words := instance.settings.changed())}
            self._set("setting_changed", "", holds=bool(changed))
            if off or changed:
                self._interrupted("")
            for instance in off:
                instance.write("tracing_on", "1")
            for instance, words in changed.items():
                log.warning("changed in %s: %s", instance.path, ", ".join(words))
                instance.settings.restore(words)
            self._instance.keep_marker()
        except OSError as error:
            found = _why(self._instance, error)
        for fault in OF_THE_INSTANCE:
            self._set(fault, "", holds=fault == found)
        return found is None

    def _next(self, probes: Iterable[ProbeState]) -> list[tuple[str, Installed]]:
        """Return the next PARTS_A_LOOK events, in turn, with the names of their probes.

        If one file shows all filters, return those with a changed filter too.
        """
        attached = [(probe.name, one) for probe in probes if probe.records for one in probe.attachments]
        parts = [(name, part) for name, one in attached for part in one.parts]
        if self._turn >= len(parts):
            self._turn = 0
        chosen = parts[self._turn : self._turn + PARTS_A_LOOK]
        self._turn += len(chosen)
        with suppress(OSError):  # before Linux 7.0
            shown = parse_filters(self._instance.read(SHOWN).decode(errors="replace"))
            changed = [row for row in parts if row[1].filter_differs(shown.get(row[1].name, NO_FILTER))]
            chosen += [row for row in changed if row not in chosen]
        return chosen

    def _examine(self, name: str, part: Installed, now: float) -> Iterator[Repair]:
        try:
            enabled = part.shown_enabled()
            filtered = part.restore_filter()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                self._interrupted("")  # deleting it wiped the unread buffer
                yield self._repair(name, "probe_gone", "replace", now)
            return
        self._set("probe_gone", name, holds=False)
        self._set("filter_changed", name, holds=filtered)
        if filtered:
            self._interrupted(name)
        if part.records and not enabled.startswith(b"1"):
            self._interrupted(name)
            yield self._repair(name, "probe_disabled", "enable", now)
        elif (part.counted_softly or part.hist) and b"*" not in enabled:
            yield self._repair(name, "probe_disabled", "replace" if part.hist else "enable", now)
        else:
            self._set("probe_disabled", name, holds=False)

    def _repair(self, name: str, fault: Fault, action: Action, now: float) -> Repair:
        history = self._histories.setdefault(name, _History())
        if now - history.last > RECOVERED:
            history.pause = 0.0
        history.repaired = [then for then in history.repaired if now - then < WITHIN]
        history.last = now
        self._set(fault, name, holds=True)
        if len(history.repaired) < REPAIRS:
            history.repaired.append(now)
            return Repair(name, action)
        history.repaired.clear()
        history.wait(now)
        what, _, _ = MEANING[fault].partition(":")
        times = f"{REPAIRS + 1} times within {WITHIN:.0f} s"
        return Repair(name, "leave", f"{what}, {times}: it is left alone for {history.pause:.0f} s")

    def _waiting(self, probes: Iterable[ProbeState], now: float) -> Iterator[Repair]:
        """Yield repairs of probes whose pause is over: of those left alone, and of those not installed."""
        for probe in probes:
            if probe.state == "down" and probe.unexpected:
                self._histories.setdefault(probe.name, _History())
            history = self._histories.get(probe.name)
            if history is None:
                continue
            if probe.state not in ("down", "contested"):
                history.until = None
            elif history.until is None:
                history.wait(now)
            elif history.until <= now:
                history.wait(now)
                yield Repair(probe.name, "again")

    def _modules_of(self, probes: Iterable[ProbeState]) -> Iterator[Repair]:
        """Yield repairs for modules that are loaded again: the kernel arms only kprobes itself."""
        for probe in probes:
            for part in probe.attached.parts if probe.attached is not None else ():
                module = _target(part.spec.target).module if part.spec.file is not None else ""
                if not module:
                    continue
                there = (self._modules / module).exists()
                if there:
                    self._loaded.add(module)
                elif module not in self._loaded:
                    continue
                was_gone = ("module_gone", probe.name) in self._holding
                self._set("module_gone", probe.name, holds=not there)
                if was_gone and there and part.spec.file == "dynamic_events" and probe.state == "up":
                    yield Repair(probe.name, "replace")
                    break

    def _full(self, probes: Iterable[ProbeState], now: float) -> Iterator[Repair]:
        """Yield renewals of pairs whose table of open calls is full, so that new keys have room again."""
        for name, pair in _pairs(probes):
            if pair.is_full and now - self._renewed.get(name, -RENEWED) >= RENEWED:
                self._renewed[name] = now
                log.info("the probe '%s': its table of open calls is full, and begins anew", name)
                yield Repair(name, "replace")

    def _broken_pairs(self, probes: Iterable[ProbeState], now: float) -> Iterator[Repair]:
        """Yield repairs of pairs of which a trigger was removed: the kernel joins none any more."""
        for name, pair in _pairs(probes):
            with suppress(OSError):
                if not pair.are_whole():
                    yield self._repair(name, "probe_disabled", "replace", now)

    def _set(self, fault: Fault, probe: str, *, holds: bool) -> None:
        """Note whether the fault holds; log its begin and end, the end of REPAIRED ones at debug level."""
        key = fault, probe
        if holds == (key in self._holding):
            return
        whose = f"the probe '{probe}': " if probe else ""
        if holds:
            self._holding.add(key)
            self._counts[fault] += 1
            log.warning("%s%s [%s]", whose, MEANING[fault], fault)
        else:
            self._holding.discard(key)
            level = logging.DEBUG if fault in REPAIRED else logging.INFO
            log.log(level, "%sit is over [%s]", whose, fault)


def _pairs(probes: Iterable[ProbeState]) -> Iterator[tuple[str, PairTriggers]]:
    """Yield the pairs that the kernel joins, by the names of their probes, which are up."""
    for probe in probes:
        if probe.attached is not None and probe.state == "up" and probe.attached.pair is not None:
            yield probe.name, probe.attached.pair


def replacements(
    probes: Iterable[ProbeState], repairs: Iterable[Repair]
) -> Iterator[tuple[ProbeState, ProbeState]]:
    """Yield each probe to replace with its successor; carry out repairs that need no successor at once."""
    named = {probe.name: probe for probe in probes}
    for name, action, reason in repairs:
        if (probe := named.get(name)) is None:
            continue  # an event of the agent itself: see ``own`` in `Interference.look`
        if action == "enable":
            for attached in probe.attachments:
                with suppress(ProbeRefused):  # the next look at it tries again
                    attached.enable()
        elif action == "leave":
            log.warning("the probe '%s' is down: %s", name, reason)
            yield probe, ProbeState(probe.plan, "contested", reason)
        else:
            yield probe, ProbeState.of(probe.plan)


def _why(instance: Instance, error: OSError) -> Fault:
    """Return the fault because of which a file of the instance cannot be read."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "descriptors_exhausted"
    if error.errno in (errno.EPERM, errno.EACCES):
        return "locked_down"
    return "instance_gone" if instance.files.exists("trace_clock") else "tracefs_gone"
