"""Our private trace instance: locked, set up, torn down, and reclaimed after a killed agent."""

import errno
import logging
import os
from collections import Counter
from contextlib import suppress

from kprobe_exporter.errors import RemovalStopped, TracefsError
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs.definitions import delete, delete_group, delete_synthetic
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.kept_settings import KeptSettings, SharedFilters
from kprobe_exporter.tracefs.marker import marker_seconds, marking_thread
from kprobe_exporter.tracefs.ownership import (
    INSTANCES,
    MARKER,
    OF_PAIRS,
    OF_THREADS,
    alone,
    busy,
    contents,
    instances_of,
    is_marked,
    mark,
    refuse_foreign,
)
from kprobe_exporter.tracefs.refusal import cannot_make
from kprobe_exporter.tracefs.removal import Removal, events_on, free_variables, switch_off
from kprobe_exporter.util.rooted_path import ProbedFiles

log = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often ``acquire`` tries while another process makes or removes the same instance."""

MAX_THREADS_KIB = 256
"""The buffer of a CPU for the events about threads, about 5,000, unless that of the probes is smaller."""

NOT_OWN = "common_pid != {tid} || common_flags & 16 || common_flags & 8 && !(common_flags & 64)"
"""Drops the events of one thread, but not those of interrupts over it (in_interrupt() of engine/walk.c)."""


class Instance:
    """A trace instance that this process holds, with our probe group of the same name.

    A marker in the group shows that both are ours (`ownership`), and the flock on the instance's directory
    that their owner is alive; there is no other state. Made by ``acquire``. Not thread-safe: the caller of
    ``acquire`` must let only one thread at a time change its content. ``recording``: its ring buffer may
    hold events that are still needed, so no definition that was ever enabled may be deleted. ``retired`` are
    the events, oldest first, that no probe uses until a definition like theirs is needed again.
    ``filters`` are those of the tracepoints' own events, by their directories. ``guard`` is a filter that
    every recorded event has to pass, besides its own; ``names`` is its part about the names of threads.
    ``settings`` are as ``set_up`` and later writes left them. ``removal`` reports the progress of ``close``,
    and may end it early. ``threads`` is the second instance, and ``pairs`` that of events that the kernel
    joins, of which ``pairs_made`` were defined. ``probed_files`` are open from planning probes in them until
    these are installed; the caller closes them.
    """

    def __init__(self, files: Tracefs, name: str, lock: int | None, removal: Removal | None = None) -> None:
        self.files = files
        self.name = name
        self.group = name
        self.path = f"instances/{name}"
        self.removal = removal or Removal()
        self.recording = False
        self.retired: dict[str, ProbeSpec] = {}
        self.probed_files = ProbedFiles()
        self.filters = SharedFilters()
        self.guard: str | None = None
        self.names: str | None = None
        self.settings = KeptSettings(files, self.path)
        self.threads: Instance | None = None
        self.pairs: Instance | None = None
        self.pairs_made = 0
        self.pipes: dict[int, int] = {}
        self._buffer_kib = 0
        self._uses: Counter[str] = Counter()
        self._lock = lock

    @classmethod
    def top(cls, files: Tracefs) -> "Instance":
        """Return the top level of tracefs as a read-only instance: it has the same files as an instance."""
        made = cls(files, "", None)
        made.path = "."
        return made

    @classmethod
    def acquire(cls, files: Tracefs, name: str, removal: Removal | None = None) -> "Instance":
        """Make the instance and lock it, after removing what a killed agent left under this name.

        Raises InstanceBusy if another live agent holds it, and TracefsError if the kernel refuses, or if
        something that is not ours has this name; RemovalStopped if ``removal`` gave up.
        """
        with alone(files):
            try:
                return cls._acquire(files, name, removal)
            except TracefsError:
                if contents(files, name) == [f"{name}/{MARKER}"]:
                    delete(files, name, MARKER)
                raise

    @classmethod
    def _acquire(cls, files: Tracefs, name: str, removal: Removal | None) -> "Instance":
        path = f"instances/{name}"
        for _ in range(ATTEMPTS):
            if not is_marked(files, name):
                refuse_foreign(files, name)
                mark(files, name)
            fresh = True
            try:
                files.mkdir(path)
            except FileExistsError:
                fresh = False
            except OSError as error:
                raise TracefsError(cannot_make(path, error)) from None
            try:
                lock = files.lock(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if fresh:
                    _rmdir(files, name)
                raise TracefsError(f"{path} cannot be locked: {error.strerror}.") from None
            if lock is None:
                raise busy(name)
            instance = cls(files, name, lock, removal)
            try:
                if fresh and instances_of(files, name) == [name]:
                    instance._sweep(logging.INFO)
                    return instance
                instance._reclaim()
            except RemovalStopped:
                os.close(lock)
                raise
        raise TracefsError(f"{path} is made and removed over and over by another process.")

    def __enter__(self) -> "Instance":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def set_up(
        self,
        buffer_kib: int,
        record_tgid: bool,
        *,
        recording: bool = True,
        keys: str = "global.buffer_size or global.buffer_total",
    ) -> None:
        """Set clock, buffer size and options before anything is recorded. ``buffer_kib`` is per CPU.

        The clock is set first, as writing it clears the instance's buffer (tracing_set_clock, trace.c).
        ``keys`` are those of the configuration that give the size.
        """
        self.write("trace_clock", "mono")
        self._buffer_kib = buffer_kib
        try:
            self.write("buffer_size_kb", str(buffer_kib))
        except OSError as error:
            raise TracefsError(
                f"the kernel refuses a ring buffer of {buffer_kib} KiB per CPU ({error.strerror}): "
                f"lower {keys}."
            ) from None
        if record_tgid:
            self.write("options/record-tgid", "1")
        self.write("tracing_on", str(int(recording)))
        self.settings.keep()

    def open_threads(self) -> "Instance":
        """Return the second instance, for events that the agent records about threads. Raises TracefsError.

        The kernel counts lost events by buffer. In a buffer of their own, lost events about threads are not
        counted as lost events of probes. A flood of either loses none of the others. The instance stays until
        ``close``. The reader of the first one also reads its ``pipes``, and closes them.
        """
        if self.threads is not None:
            return self.threads
        files, made = self.files, Instance(self.files, f"{self.name}{OF_THREADS}", None, self.removal)
        try:
            files.mkdir(made.path)
        except OSError as error:
            raise TracefsError(cannot_make(made.path, error)) from None
        made.group, made.recording = self.group, True
        try:
            made.set_up(min(self._buffer_kib, MAX_THREADS_KIB), record_tgid=False)
            made.pipes = made.open_raw()
        except BaseException:
            _rmdir(files, made.name)
            raise
        self.threads = made
        return made

    def open_pairs(self) -> "Instance":
        """Return the instance in which the kernel joins events. Raises OSError.

        A hist trigger that uses times sets the clock of its instance, which empties the buffer
        (event_hist_trigger_parse() of kernel/trace/trace_events_hist.c). Nothing is recorded in this one.
        """
        if self.pairs is None:
            files, made = self.files, Instance(self.files, f"{self.name}{OF_PAIRS}", None, self.removal)
            files.mkdir(made.path)
            made.group = self.group
            self.pairs = made
        return self.pairs

    @property
    def both(self) -> tuple["Instance", ...]:
        """This instance, and that of the threads if there is one."""
        return (self,) if self.threads is None else (self, self.threads)

    def exclude_own_threads(self) -> bool:
        """Exclude this thread, and every thread that it will start, from what the instance records.

        The interrupts that the kernel handles while such a thread runs are excluded too. Return False if the
        kernel cannot do this (before 5.7). The option event-fork adds new threads and removes those that end
        (kernel/trace/trace_events.c), so the agent need not add them itself. The caller must not have started
        another thread yet.
        """
        if not self.files.exists(f"{self.path}/set_event_notrace_pid"):
            return False
        self.write("options/event-fork", "1")
        self.write("set_event_notrace_pid", f"{self.own_tid()}\n")
        return True

    def exclude_own_thread(self) -> None:
        """Exclude this thread from what the instance records, but not the interrupts over it.

        Only filters that are written from now on do so.
        """
        self.guard = NOT_OWN.format(tid=self.own_tid())

    def own_tid(self) -> int:
        """Return this thread's id as the kernel prints it.

        In a container gettid() returns another number. So this method writes a marker and reads its trace
        line back. Nothing else is recorded yet, so reading loses no events.
        """
        try:
            return marking_thread(self.write, self.read_pipe) or os.getpid()
        except OSError as error:
            log.debug("no marker in %s: %s", self.path, error)
            return os.getpid()

    def read_pipe(self) -> bytes:
        """Return the text of all unread events, and remove them. Raises TracefsError or OSError."""
        lines, pipe = b"", self.open_pipe()
        try:
            with suppress(BlockingIOError):
                while more := os.read(pipe, 65536):
                    lines += more
        finally:
            os.close(pipe)
        return lines

    def marker_seconds(self) -> float | None:
        """Return what `marker_seconds` does before anything else is recorded, None if that is unknown."""
        try:
            return marker_seconds(self.files, self.path)
        except OSError as error:
            log.debug("no marker in %s: %s", self.path, error)
            return None

    def keep_marker(self) -> None:
        """Define the marker again if another process deleted it. Never raises."""
        if not self.files.exists(f"{self.path}/events/{self.group}/{MARKER}/enable"):
            with suppress(TracefsError):
                mark(self.files, self.group)

    def open_pipe(self) -> int:
        """Return a non-blocking descriptor of our trace_pipe. Raises TracefsError."""
        try:
            return self.files.open_pipe(f"{self.path}/trace_pipe")
        except OSError as error:
            raise TracefsError(self.cannot_read(error)) from None

    def open_raw(self) -> dict[int, int]:
        """Return a non-blocking descriptor of each CPU's trace_pipe_raw. Raises TracefsError."""
        pipes: dict[int, int] = {}
        try:
            for name in self.files.names(f"{self.path}/per_cpu"):
                cpu = int(name.removeprefix("cpu"))
                pipes[cpu] = self.files.open_pipe(f"{self.path}/per_cpu/{name}/trace_pipe_raw")
        except BaseException as error:
            for pipe in pipes.values():
                os.close(pipe)
            if isinstance(error, OSError):
                raise TracefsError(self.cannot_read(error)) from None
            raise
        return pipes

    def close_pipes(self) -> None:
        """Close ``pipes``, which no reader has adopted: an instance with open files cannot be removed."""
        pipes, self.pipes = self.pipes, {}
        for pipe in pipes.values():
            os.close(pipe)

    def cannot_read(self, error: OSError) -> str:
        """Return a sentence that says why our trace_pipe could not be opened or read."""
        if error.errno == errno.EBUSY:
            return f"another process is reading {self.path}/trace_pipe: end that reader."
        return f"{self.path}/trace_pipe cannot be read: {error.strerror}."

    def counts_tracepoints(self) -> bool:
        """Return whether the kernel has hist triggers, which count an event's hits despite its filter."""
        return self.files.exists(f"{self.path}/events/sched/sched_process_exec/hist")

    def event_format(self, system: str, event: str) -> str | None:
        """Return the text of an event's ``format``, or None if this kernel has no such event."""
        try:
            text = self.read(f"events/{system}/{event}/format")
        except OSError:
            return None
        return text.decode(errors="replace")

    def share(self, what: str) -> None:
        """Count one more probe of ours that uses a switch or trigger of an event that several may use."""
        self._uses[what] += 1

    def release(self, what: str) -> None:
        """Count one probe less."""
        self._uses[what] -= 1
        if self._uses[what] <= 0:
            del self._uses[what]

    def shares(self, what: str) -> bool:
        """Return whether a probe of ours still uses it, so that it must stay."""
        return self._uses[what] > 0

    def shares_any(self, beginning: str) -> bool:
        """Return whether a probe of ours still uses anything whose name begins so."""
        return any(what.startswith(beginning) for what in self._uses)

    def read(self, path: str) -> bytes:
        return self.files.read(f"{self.path}/{path}")

    def write(self, path: str, text: str) -> None:
        self.files.write(f"{self.path}/{path}", text)
        self.settings.written(path)

    def stop_recording(self) -> None:
        """Stop recording at once; hits are still counted. Never raises."""
        for instance in self.both:
            with suppress(OSError):
                instance.write("tracing_on", "0")

    def close(self) -> None:
        """Remove the instance, then the group's definitions, then release the lock. Never raises.

        Definitions are deleted after the instance. To delete one that was ever enabled resets the buffer of
        every instance in which it was, and the kernel waits for that. Ours no longer exists by then.
        """
        self.probed_files.close()
        if self._lock is None:
            return
        try:
            self._close()
        except RemovalStopped as error:
            log.warning("%s", error)
        os.close(self._lock)
        self._lock = None

    def _close(self) -> None:
        removed, removal = False, self.removal
        there = self.files.exists("trace_clock")
        if not there:
            log.warning(
                "tracefs is not where it was mounted: %s and its probes stay in the kernel; mount it and "
                "run 'kprobe-exporter cleanup'",
                self.path,
            )
        elif events := events_on(self.files, self.path):
            log.info(
                "removing %d events from the kernel; a second signal leaves the rest to "
                "'kprobe-exporter cleanup'",
                len(events),
            )
            removal.begin()
            switch_off(self.files, self.path, removal)
        with alone(self.files):
            if there and not (removed := _rmdir(self.files, self.name)):
                log.warning("%s is still in use by another process and stays.", self.path)
            try:
                self._sweep(logging.DEBUG, unmark=removed)
            except OSError as error:
                log.warning("the definitions cannot be read, and may stay: %s", error)

    def _sweep(self, level: int, *, unmark: bool = False) -> None:
        """Delete the group's definitions. The marker goes last, once nothing remains that it marks."""
        deleted, remaining = delete_group(self.files, self.group, MARKER, self.removal)
        remaining += delete_synthetic(self.files, self.group)
        if deleted:
            log.log(level, "deleted %d definitions of the group '%s'", deleted, self.group)
        if unmark and not remaining and (reason := delete(self.files, self.group, MARKER)):
            remaining = [f"{self.group}/{MARKER} could not be deleted: {reason}."]
        for sentence in remaining:
            log.warning("%s", sentence)

    def _reclaim(self) -> None:
        """Remove what a killed agent left under this name, and release the lock."""
        number = len(events_on(self.files, self.path))
        log.info("removing what a killed agent left: %s, with %d events", self.path, number)
        self.removal.begin()
        switch_off(self.files, self.path, self.removal)
        removed = _rmdir(self.files, self.name)
        self._sweep(logging.INFO, unmark=removed)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if not removed:
            raise TracefsError(
                f"{self.path} was left by a killed agent and cannot be removed, because another process has "
                "a file in it open (EBUSY): end that reader (fuser -v finds it)."
            )


def _rmdir(files: Tracefs, name: str) -> bool:
    """Remove the instances of an agent, with their triggers and events. Return False if one is in use."""
    removed = True
    for each in reversed(instances_of(files, name)):
        if each.endswith(OF_PAIRS):
            free_variables(files, f"{INSTANCES}/{each}")
        try:
            files.rmdir(f"{INSTANCES}/{each}")
        except FileNotFoundError:
            continue
        except OSError as error:
            log.debug("rmdir %s: %s", each, error)
            removed = False
    return removed
