"""What is to be done with a probe that others meddled with, and doing it."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.errors import ProbeRefused

log = logging.getLogger(__name__)

Action: TypeAlias = Literal["enable", "replace", "leave", "again"]


class Mend(NamedTuple):
    """What is to be done with a probe: ``enable`` what was disabled, ``replace`` it by another one, ``leave``
    it alone for a while, or try it ``again`` after that. ``reason`` is for people."""

    probe: str
    action: Action
    reason: str = ""


def exchanges(probes: Sequence[ProbeState], mends: Iterable[Mend]) -> Iterator[tuple[ProbeState, ProbeState]]:
    """Which probe is to go, and what comes in its place; what needs no other one is mended in passing."""
    named = {probe.name: probe for probe in probes}
    for mend in mends:
        if mend.probe not in named:
            continue  # no probe's: see `look`
        if (new := mended(named[mend.probe], mend)) is not None:
            yield named[mend.probe], new


def mended(probe: ProbeState, mend: Mend) -> ProbeState | None:
    """What is to come in the place of this probe; None if it stays."""
    if mend.action == "enable":
        assert probe.attached is not None
        with suppress(ProbeRefused):  # it is looked at again
            probe.attached.enable()
        return None
    if mend.action == "leave":
        log.warning("the probe '%s' is down: %s", probe.name, mend.reason)
        return ProbeState(probe.plan, "contested", mend.reason)
    return ProbeState.of(probe.plan)
