"""One configured probe while the agent runs: what it settled on, and what people are told of it."""

import logging
from dataclasses import dataclass
from typing import Literal

from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.attach import Attached
from kprobe_exporter.model import ProbeStatus
from kprobe_exporter.plan import ProbePlan

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProbeState:
    """One configured probe; the thread that starts and stops the agent owns it."""

    plan: ProbePlan
    state: Literal["up", "failed", "disabled"] = "failed"
    reason: str = "not installed yet"
    attached: Attached | None = None

    @property
    def name(self) -> str:
        return self.plan.probe.name

    @property
    def absent(self) -> bool:
        """Whether it is optional and not there: no complaint, and no ``kprobe_up``."""
        return self.plan.probe.optional and self.state == "failed"

    def status(self, numbers: Numbers) -> ProbeStatus:
        """As the status page shows it."""
        spec = self.attached.spec if self.attached else None
        first = self.plan.probe.attach[0].target
        return ProbeStatus(
            name=self.name,
            state=self.state,
            kind=spec.kind if spec else first.kind.value,
            target=spec.target if spec else str(first),
            plan=spec.plan if spec else "",
            reason=self.reason,
            hits=numbers.hits.get(self.name),
            misses=numbers.misses.get(self.name),
            events=numbers.events[self.name],
            because=spec.because if spec else "",
        )

    def complain(self) -> None:
        """Log why it is down."""
        level = logging.DEBUG if self.plan.probe.optional else logging.WARNING
        log.log(level, "the probe '%s' is down: %s", self.name, self.reason)


def warn_of_strings(attached: Attached) -> None:
    """Of what whoever chooses a string can do to a reader of text; a thread's name is too short for it."""
    args = (arg for part in attached.parts for arg in part.layout.args)
    names = [arg.name for arg in args if arg.kind in ("str", "texts") and arg.name != "comm"]
    if names:
        log.warning(
            "the probe '%s' reads %s from the kernel's text, in which a string with a newline can forge "
            "events of this probe: do not trust it where users choose it (README, Safety)",
            attached.spec.probe,
            " and ".join(f"'{name}'" for name in names),
        )
