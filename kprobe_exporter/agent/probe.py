"""One configured probe while the agent runs: how it is attached, and the state that users see."""

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kprobe_exporter.agent.overhead import cost
from kprobe_exporter.aggregate.numbers import Numbers
from kprobe_exporter.model.records import COMMON_COMM
from kprobe_exporter.model.snapshot import HeatMap, ProbeStatus, ShownState
from kprobe_exporter.plan import ProbePlan, Sample
from kprobe_exporter.probing.attach import Attached, each_hit_is_an_event, is_sampled

log = logging.getLogger(__name__)

LOSSES = ("overrun", "commit_overrun", "dropped", "unparsed", "disabled", "sampled", "wiped")
"""The reasons for which a single event may be lost. A call or a pair may also be ``unpaired``."""

State: TypeAlias = Literal["up", "down", "disabled", "tripped", "contested"]


@dataclass(slots=True, eq=False)
class ProbeState:
    """One configured probe, from its installation to its removal.

    The thread that holds the change lock owns it; other threads may read it.
    """

    plan: ProbePlan
    state: State = "down"
    reason: str = "not installed yet"
    attached: Attached | None = None
    unexpected: bool = False
    """Whether it failed for a reason that may pass, such as a lack of descriptors, and was not refused."""
    older: tuple[Attached, ...] = ()
    """How it is attached to files that were replaced, the newest first, or to other containers' files: calls
    there count too."""
    logged: str = ""
    """The explanation that was logged last, also for predecessors on earlier files."""
    sample: Sample | None = None
    """The threads whose events are recorded; None for all."""
    sampled_because: str = ""

    @classmethod
    def of(cls, plan: ProbePlan) -> "ProbeState":
        """Return the state of a probe to install, or of one that its configuration disables."""
        if plan.probe.enabled:
            return cls(plan)
        return cls(plan, "disabled", "'enabled: false' in the configuration")

    @property
    def name(self) -> str:
        return self.plan.probe.name

    @property
    def attachments(self) -> tuple[Attached, ...]:
        """All that records or counts for it in the kernel, the newest first."""
        return self.older if self.attached is None else (self.attached, *self.older)

    @property
    def records(self) -> bool:
        """Whether it is attached and enabled, be it only to a file that was replaced."""
        return self.state == "up" or bool(self.older)

    @property
    def records_events(self) -> bool:
        """Whether events of it are written to the ring buffer, so that sampling makes them fewer."""
        return any(part.records for one in self.attachments for part in one.parts)

    @property
    def explanation(self) -> str:
        """Why it is down or which alternatives failed, for users; "" if there is nothing to say."""
        if self.sample is not None and self.state == "up":
            return f"{self.reason} {self.sampled_because}.".lstrip()
        if self.state != "down" or not self.older:
            return self.reason
        which = "the file that was replaced" if self.plan.probe.within is None else "the other files"
        counted = f"only calls in processes that still run {which} are counted"
        return f"{self.reason.rstrip('.')}; {counted}."

    @property
    def absent(self) -> bool:
        """Return whether it is optional and failed, or waits for a container: it then causes no warning, and
        has no ``kprobe_up``."""
        return (self.plan.probe.optional or self.plan.waiting) and self.state == "down"

    @property
    def sampling(self) -> float | None:
        """The share of threads whose events a critical probe records; None if it is not critical."""
        if not self.plan.probe.critical:
            return None
        return 1.0 if self.sample is None or self.attached is None else self.sample.ratio(self.attached.spec)

    @property
    def shown(self) -> ShownState:
        """The state in the words that users see."""
        if self.absent:
            return "absent"
        return "down" if self.state == "contested" else self.state

    @property
    def cost(self) -> float:
        """The estimated seconds that one hit costs the thread that causes it."""
        return cost(part.spec for part in self.attached.parts) if self.attached else 0.0

    def status(
        self, numbers: Numbers, rates: tuple[float, ...] = (), heat: tuple[HeatMap, ...] = ()
    ) -> ProbeStatus:
        """Return the probe as its page shows it; ``rates`` are its last hits a second."""
        spec = self.attached.spec if self.attached else None
        first, returns = self.plan.probe.attach[0].target, self.plan.metrics.returns
        return ProbeStatus(
            name=self.name,
            state=self.shown,
            kind=spec.kind if spec else first.kind.value,
            target=spec.target if spec else str(first),
            plan=spec.plan if spec else "",
            reason=self.explanation,
            hits=numbers.hits.get(self.name),
            misses=numbers.misses.get(self.name),
            events=numbers.events.get(self.name, 0),
            because=spec.because if spec else "",
            help=(spec.help if spec else "") or self.plan.probe.help,
            rates=rates,
            lost=_lost(self.attached, numbers) if self.attached else None,
            unpaired=int(numbers.lost_of.get((self.name, "unpaired"), 0)),
            sampling=self.sampling,
            optional=self.plan.probe.optional or self.plan.probe.within is not None,
            returns=returns is not None and returns.fetch is not None,
            heat=heat,
            stacks=self.plan.probe.stacks is not None,
            metrics=tuple(metric.name for metric in self.plan.probe.metrics),
            worst=numbers.worst.get(self.name),
            worst_of=self.plan.metrics.worst.value if self.plan.metrics.worst else "",
            worst_window=self.plan.metrics.worst.window if self.plan.metrics.worst else 0.0,
        )

    def fail(self, reason: str, *, unexpected: bool = True) -> None:
        """Note why it is down; log it, once while that is the same."""
        self.reason, self.unexpected = reason, unexpected
        if self.explanation == self.logged:
            return
        self.logged = self.explanation
        if self.plan.waiting:
            log.info("the probe '%s' waits: %s", self.name, self.explanation)
        elif self.plan.probe.optional and not self.older:
            log.info("the optional probe '%s' is absent: %s", self.name, self.explanation)
        else:
            log.warning("the probe '%s' is down: %s", self.name, self.explanation)


def _lost(attached: Attached, numbers: Numbers) -> int | None:
    """Return an upper bound of a probe's lost events; None if the probe has no events, or is sampled.

    All probes share the ring buffers, which do not say whose events they lost. If all lost none, this probe
    lost none. Otherwise the bound is the loss of all probes, and at most the number of its hits without an
    event, where each hit is one. Those hits include the agent's own threads' and those whose events are
    unread. Events without a counterpart arrived, and so are not lost.
    """
    spec = attached.spec
    if spec.plan != "events" or is_sampled(attached):
        return None
    lost = sum(numbers.lost.get(reason, 0) for reason in LOSSES)
    if not (each_hit_is_an_event(attached) and attached.counted_by_kernel and spec.probe in numbers.hits):
        return lost
    return min(lost, max(0, numbers.hits[spec.probe] - numbers.events.get(spec.probe, 0)))


def warn_of_strings(attached: Attached) -> None:
    """Warn that a user who chooses a string can forge text events; a thread's name is too short for that."""
    args = (arg for part in attached.parts for arg in part.layout.args)
    names = [
        arg.name for arg in args if arg.kind in ("str", "texts") and arg.name not in ("comm", COMMON_COMM)
    ]
    if names:
        log.warning(
            "the probe '%s' reads %s from the kernel's text, in which a string with a newline can forge "
            "events of this probe: do not trust it where users choose it (docs/operating.md)",
            attached.spec.probe,
            " and ".join(f"'{name}'" for name in names),
        )
