"""The recorder: buffers that no one reads, and a thread that writes one to files when a condition holds."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.agent.recorded_files import Recorded, write_files
from kprobe_exporter.agent.recorded_parts import recorded_events
from kprobe_exporter.aggregate.self_metrics import recording_families
from kprobe_exporter.config.recordings import RecordingSettings, RecordSettings
from kprobe_exporter.errors import KprobeExporterError, TracefsError, one_line
from kprobe_exporter.identity.running import Places
from kprobe_exporter.model.snapshot import Family
from kprobe_exporter.recording.directory import Directory, RecordedFile, TooLarge
from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.tracefs.definitions import SYNTHETIC
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.recording_buffers import RecordingBuffers
from kprobe_exporter.util.trouble import Trouble

log = logging.getLogger(__name__)

TURN = 0.1
"""Seconds between two looks at the conditions."""

CLOSE_TIME_S = 5.0
"""Seconds that the end waits for a file that is being written."""

REQUEST_TIME_S = 30.0
"""Seconds that a request waits for its files."""

RESULTS = ("written", "refused", "failed")


EVENT = "kprobe.recording"
"""The event name of log records about recordings."""

Announce: TypeAlias = Callable[[str, str, Mapping[str, str | float], Collection[str]], object]
"""Sends a log record: its event name, its text, its attributes, and the probes to whose calls it belongs."""


@dataclass(eq=False)
class _Running:
    """A recording in the kernel. ``begun``: nothing before this moment, in nanoseconds, is complete.

    ``seen`` is the value of the counter of its conditions. ``busy``: it is being written. ``emptied``: the
    kernel empties the buffers until the next change of its events.
    """

    config: RecordingSettings
    buffers: RecordingBuffers
    begun: int
    recorded: Recorded = field(default_factory=Recorded)
    seen: float = 0.0
    cut_at: float = float("-inf")
    busy: bool = False
    emptied: bool = False


class _Request(NamedTuple):
    """The names of recordings, all for None, and the lines of the answer once it is ``done``."""

    name: str | None
    lines: list[str]
    done: threading.Event


class Recorder:
    """The recordings of a configuration.

    The thread that holds the change lock calls ``configure``, ``follow``, ``repair`` and ``wiped``; any
    thread the others. Files are written by a thread of its own, which alone waits for the disk.
    ``counters`` returns the values of metrics, and ``signals`` how many requests have come by a signal.
    ``announce``, which may be set before the start, sends a log record of each written recording.
    ``_lock`` guards the recordings, and is held for a few steps.
    """

    def __init__(
        self,
        counters: Callable[[Collection[str]], Mapping[str, float]],
        signals: Callable[[], int],
        places: Places,
    ) -> None:
        self.announce: Announce = lambda event, body, attributes, probes: None
        self._counters, self._signals, self._places = counters, signals, places
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._directory: Directory | None = None
        self._namespace = ""
        self._symbols: Symbols | None = None
        self._results: Counter[tuple[str, str]] = Counter()
        self._requests: deque[_Request] = deque()
        self._signalled = signals()
        self._trouble = Trouble()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kprobe-recorder", daemon=True)

    def configure(
        self, record: RecordSettings | None, instance: Instance, namespace: str, buffer_total: int
    ) -> None:
        """Make these the only recordings; those that stay the same go on. Never raises."""
        wanted = {one.name: one for one in record.recordings} if record is not None else {}
        self._remove(lambda one: wanted.get(one.config.name) != one.config)
        if record is None:
            self._directory = None
            return
        self._namespace, self._symbols = namespace, self._symbols or Symbols(instance.files)
        self._directory = Directory(Path(record.directory), record.max_bytes, record.max_files)
        try:
            self._directory.prepare()
        except OSError as error:
            where = one_line(record.directory)
            log.warning("recordings cannot be written into %s: %s", where, error.strerror)
        cpus = max(1, len(instance.files.names(f"{instance.path}/per_cpu")))
        for name in wanted.keys() - self._running.keys():
            size = min(wanted[name].buffer_size, buffer_total // 2 // cpus)
            try:
                kib, marks = max(4, size // 1024), wanted[name].marks
                buffers = RecordingBuffers(instance, name, kib, marks=marks)
            except (TracefsError, OSError) as error:
                log.warning("the recording '%s' is off: %s", name, error)
                continue
            made = _Running(wanted[name], buffers, time.monotonic_ns())
            made.seen = self._counted([made]).get(name, 0)
            with self._lock:
                self._running[name] = made

    def _remove(self, removes: Callable[[_Running], bool]) -> None:
        """Remove these recordings from the kernel; one that is being written goes once that has ended."""
        with self._lock:
            gone = [one for one in self._running.values() if removes(one)]
            for one in gone:
                del self._running[one.config.name]
            idle = [one for one in gone if not one.busy]
        for one in idle:
            one.buffers.close()

    def follow(self, probes: Sequence[ProbeState]) -> None:
        """Record the events of these probes, as far as they record or count. Never raises."""
        for one in [*self._running.values()]:
            attached = [
                (probe.name, each)
                for probe in probes
                if probe.records and any(fnmatchcase(probe.name, name) for name in one.config.probes)
                for each in probe.attachments
            ]
            wanted, eprobes = recorded_events(one.config.tracepoints, [each for _, each in attached])
            # Soon the agent deletes those that the kernel joined. That empties the buffers.
            going = any(event.startswith(f"{SYNTHETIC}/") for event in {*one.recorded.events} - {*wanted})
            if going or one.emptied:
                one.begun = time.monotonic_ns()
            one.emptied = going
            one.buffers.follow(wanted, eprobes)
            one.recorded = Recorded(
                tuple(wanted), tuple(attached), one.config.tracepoints, marks=one.config.marks
            )

    def repair(self) -> list[str]:
        """Undo what other processes changed of the buffers; return a line for each change. Never raises.

        The next file begins after the repair, because events before it may be missing.
        """
        found: list[str] = []
        for one in [*self._running.values()]:
            if changes := one.buffers.repair():
                one.begun = time.monotonic_ns()
                found += changes
        return found

    def wiped(self) -> None:
        """Note that the kernel has emptied the buffers, as a deleted definition makes it."""
        for one in [*self._running.values()]:
            one.begun = time.monotonic_ns()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and remove the buffers, unless a file is still being written. Never raises."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIME_S)
        self._remove(lambda one: True)

    def record(self, name: str | None) -> tuple[bool, str]:
        """Write a recording, or all; return whether one was written, and the lines about them."""
        request = _Request(name, [], threading.Event())
        self._requests.append(request)
        if not request.done.wait(REQUEST_TIME_S):
            return False, "the files are still being written"
        return any(": wrote " in line for line in request.lines), "\n".join(request.lines)

    def files(self) -> list[RecordedFile]:
        """Return the finished files, the oldest first. Raises OSError."""
        return self._directory.files() if self._directory is not None else []

    def read(self, name: str) -> bytes:
        """Return the content of a finished file. Raises OSError."""
        if self._directory is None:
            raise FileNotFoundError(name)
        return self._directory.read(name)

    def families(self) -> tuple[Family, ...]:
        """Return the metrics about recordings; none without recordings."""
        with self._lock:
            names = [*self._running]
            results = dict.fromkeys(((name, result) for name in names for result in RESULTS), 0)
            results |= self._results
        if not results:
            return ()
        try:
            kept = sum(file.size for file in self.files())
        except OSError:
            kept = 0
        return recording_families(results, kept)

    def _run(self) -> None:
        while not self._closed.wait(TURN):
            try:
                self._look()
            except Exception as error:  # the thread goes on after any error
                if self._trouble.failed():
                    log.exception("the recorder failed: %s", error)

    def _look(self) -> None:
        """Write what is asked for, and the recordings whose conditions were met since the last look."""
        with self._lock:
            running = [*self._running.values()]
        signalled, self._signalled = self._signalled, self._signals()
        counted = self._counted(running)
        for one in running:
            now = counted.get(one.config.name, 0)
            met, one.seen = now > one.seen, now
            if signalled != self._signalled:
                self._cut(one, "SIGUSR1")
            elif met:
                probes = [condition.probe for condition in one.config.when]
                self._cut(one, " or ".join(map(str, one.config.when)), probes)
        while self._requests:
            request = self._requests.popleft()
            for one in running:
                if request.name in (None, one.config.name):
                    request.lines.append(self._cut(one, "a request"))
            if not request.lines:
                request.lines.append("there is no such recording")
            request.done.set()

    def _counted(self, running: Sequence[_Running]) -> dict[str, float]:
        names = {one.config.name: f"{self._namespace}_{one.config.counter}" for one in running}
        values = self._counters([*names.values()])
        return {name: values[counter] for name, counter in names.items() if counter in values}

    def _cut(self, one: _Running, condition: str, probes: Sequence[str] = ()) -> str:
        """Write one recording, or refuse to; return the line that says so.

        ``probes`` are those of the condition.
        """
        name, now = one.config.name, time.monotonic()
        if now - one.cut_at < one.config.every:
            self._count(name, "refused")
            return f"{name}: refused: the last one was {now - one.cut_at:.1f} s ago"
        with self._lock:
            if self._running.get(name) is not one:
                return f"{name}: it is no longer configured"
            one.busy = True
        one.cut_at = now
        try:
            files, seconds = self._write(one)
        except TooLarge as error:
            result, why = "refused", str(error)
        except (OSError, KprobeExporterError) as error:
            result, why = "failed", (isinstance(error, OSError) and error.strerror) or one_line(str(error))
        else:
            self._count(name, "written")
            self._tell(name, files, condition, seconds, probes)
            return f"{name}: wrote {' '.join(files)}"
        finally:
            with self._lock:
                one.busy, gone = False, self._running.get(name) is not one
            if gone:
                one.buffers.close()
        self._count(name, result)
        log.warning("the recording '%s' was not written at %s: %s", name, condition, why)
        return f"{name}: {result}: {why}"

    def _tell(
        self, name: str, files: Sequence[str], condition: str, seconds: float, probes: Sequence[str]
    ) -> None:
        """Log a written recording, and send a log record of it."""
        text = f"the recording '{name}' is in {' and '.join(files)}: {seconds:.1f} s before {condition}"
        log.info("%s", text)
        about = {"name": name, "file": " ".join(files), "condition": condition}
        named: dict[str, str | float] = {f"{EVENT}.{key}": value for key, value in about.items()}
        self.announce(EVENT, text, {**named, f"{EVENT}.seconds": seconds}, probes)

    def _write(self, one: _Running) -> tuple[list[str], float]:
        """Write the files; return their names, and the seconds that they cover."""
        directory, symbols = self._directory, self._symbols
        assert directory is not None
        assert symbols is not None
        stopped = one.buffers.swap()
        recorded = one.recorded._replace(own=one.buffers.own_events(stopped))
        end, begun = time.monotonic_ns(), one.begun
        one.begun = end
        since = max(begun, end - int(one.config.window * 1e9))
        base = f"{one.config.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"[:-3] + "Z"
        formats = one.config.formats
        files = write_files(directory, base, formats, stopped, recorded, symbols, since, self._places)
        return [*files], (end - since) / 1e9

    def _count(self, name: str, result: str) -> None:
        with self._lock:
            self._results[name, result] += 1
