"""The ring buffers of a recording: two instances of which one records and is overwritten, and is not read."""

import logging
from collections.abc import Mapping
from contextlib import suppress

from kprobe_exporter.errors import TracefsError
from kprobe_exporter.tracefs.files import Tracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.marker import copy_marks
from kprobe_exporter.tracefs.refusal import cannot_make

log = logging.getLogger(__name__)


class RecordingBuffers:
    """Two instances with the same events: one records, while the other one may be read out.

    A kernel needs CONFIG_TRACER_SNAPSHOT for a snapshot of one instance; every kernel has two of them. The
    name of ``owner``, which makes them ours, is the beginning of their names. ``marks``: they record what
    programs write to their ``trace_marker``, and to that of the top level since Linux 6.15. ``follow``
    and ``close`` belong to the thread that changes probes, ``swap`` to the one that reads. Raises
    TracefsError.
    """

    def __init__(self, owner: Instance, name: str, buffer_kib: int, *, marks: bool = False) -> None:
        self._files: Tracefs = owner.files
        self._events: dict[str, str] = {}
        self._made: list[Instance] = []
        self._now = 0  # the index of the one that records
        self._copies = False
        try:
            for end in "ab":
                made = Instance(self._files, f"{owner.name}.{name}.{end}", None)
                try:
                    self._files.mkdir(made.path)
                except OSError as error:
                    raise TracefsError(cannot_make(made.path, error)) from None
                self._made.append(made)
                made.write("options/overwrite", "1")
                with suppress(FileNotFoundError):
                    made.write("options/markers", str(int(marks)))
                made.set_up(buffer_kib, record_tgid=True, recording=end == "a", keys="its buffer_size")
            self._copies = marks and self._copy(self._made[0], on=True)
        except BaseException:
            self.close()
            raise

    def follow(self, events: Mapping[str, str]) -> None:
        """Record these events, ``SYSTEM/EVENT`` with their filters, and no others. Never raises."""
        for event in self._events.keys() - events.keys():
            self._write(event, "enable", "0")
        for event, text in events.items():
            if self._events.get(event) != text:
                self._write(event, "filter", text)
                self._write(event, "enable", "1")
        self._events = dict(events)

    def swap(self) -> Instance:
        """Let the other instance record, and return the one that did. Raises OSError.

        For some microseconds both record, so that no event is lost.
        """
        before, after = self._made[self._now], self._made[1 - self._now]
        after.write("tracing_on", "1")
        if self._copies:
            self._copy(after, on=True)
            self._copy(before, on=False)
        before.write("tracing_on", "0")
        self._now = 1 - self._now
        return before

    def close(self) -> None:
        """Remove both. Never raises: the owner's removal removes one that is still read."""
        for made in self._made:
            with suppress(OSError):
                self._copy(made, on=False)
            with suppress(OSError):
                made.write("tracing_on", "0")
            with suppress(OSError):
                self._files.rmdir(made.path)

    def _copy(self, made: Instance, *, on: bool) -> bool:
        return copy_marks(self._files, made.path, on=on)

    def _write(self, event: str, file: str, text: str) -> None:
        for made in self._made:
            try:
                made.write(f"events/{event}/{file}", text)
            except OSError as error:
                log.debug("%s/events/%s/%s: %s", made.path, event, file, error)
