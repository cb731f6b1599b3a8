"""Compares hits with events at quiet moments: what is neither an event nor told as lost is unexplained."""

import logging
from collections.abc import Iterable, Iterator

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.aggregate.numbers import Arrivals
from kprobe_exporter.aggregate.self_metrics import PREFIX
from kprobe_exporter.model.values import Family

log = logging.getLogger(__name__)

NAME = f"{PREFIX}_unexplained_events"
HELP = "Hits that were neither delivered as events nor counted as lost, when the probe was last quiet."


def audited(probes: Iterable[ProbeState]) -> Iterator[tuple[str, int]]:
    """Yield the name and the layout_id of each probe whose hits must all be recorded.

    A filter in the kernel drops hits uncounted. A profile's hits include those of the agent's own threads,
    which are not recorded.
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
