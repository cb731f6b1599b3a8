"""Lost events of probes that go: hits that the kernel counted but did not record."""

from collections.abc import Iterable, Mapping

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Ledger
from kprobe_exporter.probing.attach import Attached, each_hit_is_an_event, is_sampled

REASON, SAMPLED = "disabled", "sampled"

SHARED = ("overrun", "commit_overrun", "dropped", "wiped")
"""The losses for which the probe is unknown."""


class SwitchLosses:
    """Hits less events less known losses, by probe: what grows while a probe is switched off was lost.

    While the kernel removes a kprobe from the code, some 50 ms, the probe still fires and counts, but records
    nothing (``__disable_trace_kprobe()`` in kernel/trace/trace_kprobe.c): under a flood that is thousands of
    hits without an event. Of a probe that is sampled, all hits without an event were lost.

    The thread that holds the change lock owns it. It may under-report if the ring buffer also lost events
    since the probe was attached. It over-reports only the agent's own firings in that time, which are hits
    without events.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._begun: dict[str, int] = {}

    def begin(self, coming: Iterable[Attached]) -> None:
        """Note the difference of these probes, which are about to be enabled, unless they record already."""
        names = [one.spec.probe for one in coming if each_hit_is_an_event(one)]
        names = [name for name in names if name not in self._begun]
        if names:
            ledger = self._aggregator.ledger()
            self._begun |= {name: _untold(ledger, name) for name in names}

    def look(self, going: Iterable[Attached], hits: Mapping[str, int]) -> None:
        """Note it again before these are switched off; ``hits`` were read before the last events were. Events
        that are missing already had another reason, such as a definition that another process deleted."""
        ledger = self._aggregator.ledger()._replace(hits=dict(hits))
        for name in [attached.spec.probe for attached in going if not is_sampled(attached)]:
            if name in self._begun and name in hits:
                self._begun[name] = max(self._begun[name], _untold(ledger, name))

    def end(self, removed: Iterable[Attached], before: Mapping[str, int]) -> None:
        """Count the losses of these, which are off and read completely. ``before`` are the earlier hits."""
        ledger = self._aggregator.ledger()
        for attached in removed:
            name = attached.spec.probe
            begun = self._begun.pop(name, None)
            if begun is None or name not in before or name not in ledger.hits:
                continue
            lost, sampled = _untold(ledger, name) - begun, is_sampled(attached)
            if not sampled:
                lost = min(ledger.hits[name] - before[name], lost)
            if lost > 0:
                self._aggregator.lose(SAMPLED if sampled else REASON, lost, name)


def _untold(ledger: Ledger, name: str) -> int:
    shared = sum(ledger.lost.get(reason, 0) for reason in SHARED)
    return ledger.hits.get(name, 0) - ledger.events.get(name, 0) - shared
