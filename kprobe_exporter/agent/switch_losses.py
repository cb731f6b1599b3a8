"""What the kernel counts of a probe that it no longer records, told as lost when the probe goes."""

from collections.abc import Iterable, Mapping

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Ledger
from kprobe_exporter.probing.attach import Attached, each_hit_is_an_event

REASON = "disabled"

SHARED = ("overrun", "commit_overrun", "dropped", "wiped")
"""The losses of which nobody knows whose events they were."""


class Balance:
    """Hits less events less losses of single probes, where the three should be even at any end.

    While a kprobe is taken out of the code, some 50 ms, it goes on firing and counting, and records
    nothing any more (``__disable_trace_kprobe()`` in kernel/trace/trace_kprobe.c): under a flood that is
    thousands of hits without an event. Whoever changes probes owns it. Where the ring buffer lost events
    as well, since the probe was attached, it may tell less than there was; never more, but for the agent's
    own firings in that time, which are hits and no events.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._begun: dict[str, int] = {}

    def begin(self, coming: Iterable[Attached]) -> None:
        """These are about to be enabled."""
        names = [attached.spec.probe for attached in coming if each_hit_is_an_event(attached)]
        if names:
            ledger = self._aggregator.ledger()
            self._begun |= {name: _untold(ledger, name) for name in names}

    def look(self, going: Iterable[Attached], hits: Mapping[str, int]) -> None:
        """These are about to be switched off; ``hits`` were read before the last events were. What is missing
        already was lost untold, as when somebody deletes a definition."""
        ledger = self._aggregator.ledger()._replace(hits=dict(hits))
        for name in [attached.spec.probe for attached in going]:
            if name in self._begun and name in hits:
                self._begun[name] = max(self._begun[name], _untold(ledger, name))

    def end(self, gone: Iterable[Attached], before: Mapping[str, int]) -> None:
        """These are off and all that they left was read; ``before`` are the hits from before that."""
        ledger = self._aggregator.ledger()
        for name in [attached.spec.probe for attached in gone]:
            begun = self._begun.pop(name, None)
            if begun is None or name not in before or name not in ledger.hits:
                continue
            lost = min(ledger.hits[name] - before[name], _untold(ledger, name) - begun)
            if lost > 0:
                self._aggregator.lose(REASON, lost)


def _untold(ledger: Ledger, name: str) -> int:
    shared = sum(ledger.lost.get(reason, 0) for reason in SHARED)
    return ledger.hits.get(name, 0) - ledger.events.get(name, 0) - shared
