"""Logs losses of events and overflows of label sets: when they begin, once a minute, and when they end."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.aggregate.numbers import Ledger
from kprobe_exporter.errors import counted

log = logging.getLogger(__name__)

AGAIN = 60.0
"""Seconds from one line about a loss that lasts to the next, and without a loss until it has ended."""

REMEDIES: Mapping[str, str] = {
    "overrun": "raise global.buffer_size, narrow a filter, or let the kernel add up (aggregate: kernel)",
    "commit_overrun": "raise global.buffer_size",
    "dropped": "raise global.buffer_size",
    "table_full": "raise global.max_series, or use fewer labels",
    "unparsed": "docs/metrics.md names the causes",
}
"""The remedy for each loss that is logged, by reason. The other losses have a line of their own, such as that
of a disabled probe. Or they belong to normal operation, such as an event without its counterpart."""


@dataclass(slots=True)
class _Loss:
    """A loss that lasts. ``before`` and ``told`` are counts; the others are times in seconds."""

    before: int
    told: int
    began_at: float
    told_at: float
    grew_at: float


class LossLog:
    """Compares the counts of each look with the last ones. One thread uses it.

    ``rates`` returns the last hits a second of a probe.
    """

    def __init__(self, rates: Callable[[str], Sequence[float]]) -> None:
        self._rates = rates
        self._last: dict[str, int] = {}
        self._losses: dict[str, _Loss] = {}

    def look(self, now: float, ledger: Ledger, probes: Iterable[ProbeState]) -> None:
        """Log the losses that have begun, last or have ended at this time of a monotonic clock."""
        for reason, remedy in REMEDIES.items():
            what, count = f"events are lost ({reason})", ledger.lost.get(reason, 0)
            self._watch(now, reason, count, what, remedy, lambda: self._busiest(ledger.hits))
        feeding = _feeding(probes)
        for metric, count in ledger.overflows.items():
            who = f"fed by {feeding.get(metric, 'no probe')}"
            what = f"events fall into the label set __overflow__ of {metric}"
            self._watch(now, metric, count, what, REMEDIES["table_full"], who.__str__)

    def _watch(
        self, now: float, key: str, count: int, what: str, remedy: str, who: Callable[[], str]
    ) -> None:
        grown, loss = count - self._last.get(key, 0), self._losses.get(key)
        self._last[key] = count
        if grown <= 0:
            if loss is not None and now - loss.grew_at >= AGAIN:
                del self._losses[key]
                number, seconds = counted(count - loss.before, "event"), loss.grew_at - loss.began_at
                log.info("%s: this has ended, after %s in %.0f s", what, number, seconds)
            return
        if loss is None:
            self._losses[key] = _Loss(count - grown, count, now, now, now)
            log.warning("%s: %s, %s: %s", what, counted(grown, "event"), who(), remedy)
            return
        loss.grew_at = now
        if (seconds := now - loss.told_at) >= AGAIN:
            number = counted(count - loss.told, "event")
            log.warning("%s: %s in the last %.0f s, %s: %s", what, number, seconds, who(), remedy)
            loss.told, loss.told_at = count, now

    def _busiest(self, hits: Mapping[str, int]) -> str:
        """Return a clause about the busiest probe. Ring buffers do not tell whose events were lost."""
        rates = {name: found[-1] for name in hits if (found := self._rates(name))}
        if rates:
            name = max(rates, key=rates.__getitem__)
            return f"the busiest probe is '{name}' with {rates[name]:,.0f} hits a second"
        name = max(hits, key=hits.__getitem__, default="")
        return f"the busiest probe is '{name}'" if name else "of an unknown probe"


def _feeding(probes: Iterable[ProbeState]) -> dict[str, str]:
    """Return the names of the probes that feed each metric."""
    found: dict[str, list[str]] = {}
    for probe in probes:
        for metric in probe.plan.metrics.metrics:
            found.setdefault(metric.name, []).append(f"'{probe.name}'")
    return {metric: " and ".join(names) for metric, names in found.items()}
