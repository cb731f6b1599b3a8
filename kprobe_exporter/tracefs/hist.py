"""Counting a tracepoint's firings in the kernel, by a hist trigger that writes no event."""

from collections.abc import Iterable

from kprobe_exporter.tracefs.hist_tables import Shown, parse_hist, share_name
from kprobe_exporter.tracefs.instance import Instance

TRIGGERS = ("hist:keys=common_cpu", "hist:keys=cpu")
"""Any key will do: the total counts every firing. The CPU's number is ``cpu`` before 5.13."""


class HitCounter:
    """A hist trigger of ours on one event; its total is the number of firings, unfiltered.

    Hist triggers see every firing, whatever the event's filter (kernel/trace/trace_events_hist.c).
    Reading is left to one thread, attaching and detaching to another; no state is shared.
    """

    def __init__(self, instance: Instance, event: str, trigger: str) -> None:
        self._instance = instance
        self._event = event
        self._trigger = trigger
        self._before = 0
        self._detached = False

    @classmethod
    def attach(cls, instance: Instance, event: str) -> "HitCounter | None":
        """Put the trigger on ``events/SYSTEM/EVENT``; None where the kernel has no hist triggers."""
        if not instance.files.exists(f"{instance.path}/{event}/hist"):
            return None
        for trigger in TRIGGERS:
            made = cls(instance, event, trigger)
            try:
                instance.write(f"{event}/trigger", trigger)
            except FileExistsError:  # another probe's, which has counted for a while
                made._before = made.read() or 0
            except OSError:
                continue
            instance.share(_shared(event, trigger))
            return made
        return None

    def total(self, shown: Iterable[Shown]) -> int | None:
        """Firings since it was attached, by the tables of its event; None if it is not among them."""
        keys = self._trigger.removeprefix("hist:keys=")
        for one in shown:
            if (one.keys, one.vals, one.condition) == (keys, "hitcount", None):
                return max(0, one.reading.hits + one.reading.dropped - self._before)
        return None

    def read(self) -> int | None:
        """The total, read anew; None if the event is gone."""
        try:
            return self.total(parse_hist(self._instance.read(f"{self._event}/hist")))
        except OSError:
            return None

    def detach(self) -> None:
        """Take the trigger away, unless another probe counts by it; one that is gone is as good."""
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
    """The trigger as a kernel-side table spells it, whose probe may have it as well."""
    return share_name(event, trigger.removeprefix("hist:keys="), "hitcount", None)
