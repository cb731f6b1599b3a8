"""Repairs of probes after interference by other processes, and carrying them out."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.errors import ProbeRefused

log = logging.getLogger(__name__)

Action: TypeAlias = Literal["enable", "replace", "leave", "again"]


class Repair(NamedTuple):
    """A repair of a probe: ``enable`` it if it was disabled, ``replace`` it by a new one, ``leave`` it alone
    for a while, or try it ``again`` after that. ``reason`` is for users."""

    probe: str
    action: Action
    reason: str = ""


def replacements(
    probes: Sequence[ProbeState], repairs: Iterable[Repair]
) -> Iterator[tuple[ProbeState, ProbeState]]:
    """Yield each probe to replace with its successor; carry out repairs that need no successor at once."""
    named = {probe.name: probe for probe in probes}
    for repair in repairs:
        if repair.probe not in named:
            continue  # an event of the agent itself: see ``own`` in `Interference.look`
        if (new := repaired(named[repair.probe], repair)) is not None:
            yield named[repair.probe], new


def repaired(probe: ProbeState, repair: Repair) -> ProbeState | None:
    """Return the successor of this probe; None if it stays."""
    if repair.action == "enable":
        for attached in probe.attachments:
            with suppress(ProbeRefused):  # the next look at it tries again
                attached.enable()
        return None
    if repair.action == "leave":
        log.warning("the probe '%s' is down: %s", probe.name, repair.reason)
        return ProbeState(probe.plan, "contested", repair.reason)
    return ProbeState.of(probe.plan)
