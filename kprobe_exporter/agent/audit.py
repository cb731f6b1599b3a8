"""Compares hits with events, when a probe is quiet and when it is switched off: what is missing, and why."""

import logging
from collections.abc import Iterable, Iterator, Mapping

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.aggregate.aggregator import Aggregator
from kprobe_exporter.aggregate.numbers import Arrivals, Ledger
from kprobe_exporter.aggregate.self_metrics import PREFIX
from kprobe_exporter.model.snapshot import Family
from kprobe_exporter.probing.attach import Attached, each_hit_is_an_event, is_sampled

log = logging.getLogger(__name__)

NAME = f"{PREFIX}_unexplained_events"
HELP = "Hits that were neither delivered as events nor counted as lost, when the probe was last quiet."

REASON, SAMPLED = "disabled", "sampled"

SHARED = ("overrun", "commit_overrun", "dropped", "wiped")
"""The losses for which the probe is unknown."""


def audited(probes: Iterable[ProbeState]) -> Iterator[tuple[str, int]]:
    """Yield the name and the layout_id of each probe whose hits must all be recorded.

    A filter in the kernel drops hits uncounted. A profile's hits include those of the agent's own threads,
    which are not recorded where events are read as text.
    """
    for probe in probes:
        if probe.state != "up" or probe.attached is None or probe.attached.spec.plan != "events":
            continue
        begins = [part for part in probe.attached.parts if part.spec.role in ("whole", "begin")]
        if all(part.hits is not None and part.spec.kernel_filter is None for part in begins):
            yield probe.name, probe.attached.layout.layout_id


class Audit:
    """Checks that hits = recorded events + losses, for each probe that is audited.

    The losses of the ring buffer name no probe, so each probe is granted all of them since it was attached. A
    probe is quiet if two looks in a row see the same numbers, and no event waits. The supervisor's thread
    owns it; any thread may read ``family``.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int, int]] = {}
        self._granted: dict[int, int] = {}  # the losses before it was attached, less hits that are excused
        self._interrupted = False
        self._excused: set[int] = set()
        self._before = 0
        self._unexplained: dict[str, int] = {}

    @property
    def excuses(self) -> bool:
        """Whether hits are excused: ``look`` then needs counts that were read after ``excuse``."""
        return self._interrupted or bool(self._excused)

    def excuse(self) -> None:
        """Excuse what is missing now: another process had stopped recording, and a fault tells of it."""
        self._interrupted = True

    def look(self, arrivals: Arrivals, probes: Iterable[tuple[str, int]]) -> None:
        """Compare once. ``arrivals`` must be of one moment."""
        last, granted, unexplained = self._last, self._granted, self._unexplained
        self._last, self._granted, self._unexplained = {}, {}, {}
        for name, layout_id in probes:
            if layout_id not in arrivals.counts:
                continue
            hits, recorded = arrivals.counts[layout_id]
            now = hits, recorded, arrivals.lost
            if self._interrupted:
                self._excused.add(layout_id)
            before = granted.get(layout_id, self._before)
            missing = self._unexplained[name] = unexplained.get(name, 0)
            if now == last.get(layout_id) and not arrivals.waiting:
                missing = max(0, hits - recorded - (arrivals.lost - before))
                if layout_id in self._excused:
                    self._excused.discard(layout_id)
                    before, missing = before - missing, 0
                self._unexplained[name] = missing
                if missing > unexplained.get(name, 0):
                    log.warning(
                        "the probe '%s' has %d hits that are neither events nor counted as lost: please "
                        "report this with its configuration and the kernel's version",
                        name,
                        missing,
                    )
            self._last[layout_id], self._granted[layout_id] = now, before
        self._before, self._interrupted = arrivals.lost, False
        self._excused &= self._last.keys()

    def family(self) -> Family:
        """Return the metric."""
        unexplained = self._unexplained
        return Family(NAME, "gauge", HELP, ("probe",), {(name,): n for name, n in unexplained.items()})


class SwitchLosses:
    """Hits less events less known losses, by probe: what grows while a probe is switched off was lost.

    While the kernel removes a kprobe from the code, about 50 ms, the probe still fires and counts, but
    records nothing (``__disable_trace_kprobe()`` in kernel/trace/trace_kprobe.c): under a flood that is
    thousands of hits without an event. For a sampled probe, all hits without an event were lost.

    The thread that holds the change lock owns it. It may under-report if the ring buffer also lost events
    since the probe was attached. If events are read as text, it over-reports the agent's own firings in that
    time, which are hits without events.
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
