"""What the kernel counts of a probe that it no longer records, told as lost when the probe goes."""

from collections.abc import Iterable, Mapping

from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.attach import Attached
from kprobe_exporter.plan import JoinedSpec

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
        names = [attached.spec.probe for attached in coming if _even(attached)]
        if names:
            numbers = self._aggregator.copy()
            self._begun |= {name: _untold(numbers, name) for name in names}

    def look(self, going: Iterable[Attached], hits: Mapping[str, int]) -> None:
        """These are about to be switched off; ``hits`` were read before the last events were. What is missing
        already was lost untold, as when somebody deletes a definition."""
        numbers = self._aggregator.copy()._replace(hits=dict(hits))
        for name in [attached.spec.probe for attached in going]:
            if name in self._begun and name in hits:
                self._begun[name] = max(self._begun[name], _untold(numbers, name))

    def end(self, gone: Iterable[Attached], before: Mapping[str, int]) -> None:
        """These are off and all that they left was read; ``before`` are the hits from before that."""
        numbers = self._aggregator.copy()
        for name in [attached.spec.probe for attached in gone]:
            begun = self._begun.pop(name, None)
            if begun is None or name not in before or name not in numbers.hits:
                continue
            lost = min(numbers.hits[name] - before[name], _untold(numbers, name) - begun)
            if lost > 0:
                self._aggregator.lose(REASON, lost)


def _even(attached: Attached) -> bool:
    """Whether each hit is to be an event."""
    spec = attached.spec
    if isinstance(spec, JoinedSpec) or attached.only is not None:
        return False
    return spec.plan == "events" and spec.filter is None


def _untold(numbers: Numbers, name: str) -> int:
    shared = sum(numbers.lost.get(reason, 0) for reason in SHARED)
    return numbers.hits.get(name, 0) - numbers.events.get(name, 0) - shared
