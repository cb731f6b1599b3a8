"""Counts a tracepoint's hits in the kernel, by a hist trigger that writes no event."""

from collections.abc import Iterable

from kprobe_exporter.tracefs.hist_tables import Shown, parse_hist, share_name
from kprobe_exporter.tracefs.instance import Instance

TRIGGERS = ("hist:keys=common_cpu", "hist:keys=cpu")
"""Any key works, because the total counts every hit. The CPU's number is ``cpu`` before 5.13."""


class HitCounter:
    """Our hist trigger on one event; its total is the number of hits, unfiltered.

    Hist triggers see every hit, regardless of the event's filter (kernel/trace/trace_events_hist.c).
    One thread may read while another attaches and detaches; they share no state.
    """

    def __init__(self, instance: Instance, event: str, trigger: str) -> None:
        self._instance = instance
        self._event = event
        self._trigger = trigger
        self._before = 0
        self._detached = False

    @classmethod
    def attach(cls, instance: Instance, event: str) -> "HitCounter | None":
        """Attach the trigger to ``events/SYSTEM/EVENT``; None if the kernel has no hist triggers."""
        if not instance.files.exists(f"{instance.path}/{event}/hist"):
            return None
        for trigger in TRIGGERS:
            made = cls(instance, event, trigger)
            try:
                instance.write(f"{event}/trigger", trigger)
            except FileExistsError:  # another probe's trigger, which has counted before
                made._before = made.read() or 0
            except OSError:
                continue
            instance.share(_shared(event, trigger))
            return made
        return None

    def total(self, shown: Iterable[Shown]) -> int | None:
        """Return the hits since it was attached, from its event's tables; None if it is not among them."""
        keys = self._trigger.removeprefix("hist:keys=")
        for one in shown:
            if (one.keys, one.vals, one.condition) == (keys, "hitcount", None):
                return max(0, one.reading.hits + one.reading.dropped - self._before)
        return None

    def read(self) -> int | None:
        """Read and return the total; None if the event no longer exists."""
        try:
            return self.total(parse_hist(self._instance.read(f"{self._event}/hist")))
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
