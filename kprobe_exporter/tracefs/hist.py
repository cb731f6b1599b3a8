"""Counts a tracepoint's hits in the kernel, by a hist trigger that writes no event."""

from collections.abc import Iterable

from kprobe_exporter.tracefs.hist_tables import Shown, parse_hist, share_name
from kprobe_exporter.tracefs.instance import Instance

TRIGGERS = ("hist:keys=common_cpu", "hist:keys=cpu")
"""Any key works, because the total counts every hit. The CPU's number is ``cpu`` before 5.13."""


class HitCounter:
    """Our hist trigger on one event; its total is the number of hits, unfiltered.

    Hist triggers see every hit, regardless of the event's filter (kernel/trace/trace_events_hist.c). The
    kernel cannot start or stop a trigger and the recording of its event at once. So hits are counted between
    ``begin``, after recording has started, and ``freeze``, before it stops: what was recorded outside of that
    is an event without a hit, and the aggregator counts a hit for it.

    One thread may read while another attaches, begins and detaches.
    """

    def __init__(self, instance: Instance, event: str, trigger: str) -> None:
        self._instance = instance
        self._event = event
        self._trigger = trigger
        self._before: int | None = None
        self._final: int | None = None
        self._detached = False

    @classmethod
    def attach(cls, instance: Instance, event: str) -> "HitCounter | None":
        """Attach the trigger to ``events/SYSTEM/EVENT``; None if the kernel has no hist triggers."""
        if not instance.files.exists(f"{instance.path}/{event}/hist"):
            return None
        for trigger in TRIGGERS:
            try:
                instance.write(f"{event}/trigger", trigger)
            except FileExistsError:
                pass  # another probe's trigger, which has counted before
            except OSError:
                continue
            instance.share(_shared(event, trigger))
            return cls(instance, event, trigger)
        return None

    def begin(self) -> None:
        """Count from now on, unless it counts already."""
        if self._before is None:
            self._before = self._read() or 0

    def freeze(self) -> None:
        """Count no more: the total stays as it is now."""
        if self._final is None and (now := self._read()) is not None:
            self._final = max(0, now - (now if self._before is None else self._before))

    def total(self, shown: Iterable[Shown]) -> int | None:
        """Return the hits since it began, from its event's tables; None if it is not among them."""
        if self._final is not None:
            return self._final
        now = self._count(shown)
        if now is None:
            return None
        return 0 if self._before is None else max(0, now - self._before)

    def read(self) -> int | None:
        """Read and return the total; None if the event no longer exists."""
        try:
            return self.total(parse_hist(self._instance.read(f"{self._event}/hist")))
        except OSError:
            return None

    def _count(self, shown: Iterable[Shown]) -> int | None:
        keys = self._trigger.removeprefix("hist:keys=")
        for one in shown:
            if (one.keys, one.vals, one.condition) == (keys, "hitcount", None):
                return one.reading.hits + one.reading.dropped
        return None

    def _read(self) -> int | None:
        """Read all that its trigger counted; None if the event no longer exists."""
        try:
            return self._count(parse_hist(self._instance.read(f"{self._event}/hist")))
        except OSError:
            return None

    def detach(self) -> None:
        """Remove the trigger unless another probe uses it. A trigger that no longer exists is no error."""
        if self._detached:
            return
        self._detached = True
        shared = _shared(self._event, self._trigger)
        self._instance.release(shared)
        if self._instance.shares(shared):
            return
        try:
            self._instance.write(f"{self._event}/trigger", f"!{self._trigger}")
        except OSError:
            return


def _shared(event: str, trigger: str) -> str:
    """Return the trigger's name for ``share``; a probe with ``HistTables`` may use the same trigger."""
    return share_name(event, trigger.removeprefix("hist:keys="), "hitcount", None)
