"""What must hold of a measurement for its figures to be shown."""

import re
from collections.abc import Iterable

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
PROBE = re.compile(r'probe="([^"]*)"')
OVER_LIMIT = re.compile(r"the probe '\w+' is (?:tripped|sampled): .*")

UP = "kprobe_up"
TRIPPED = "kprobe_exporter_probe_tripped"


class Missed(Exception):
    """What was measured is not what the table says: a probe was off, or something was lost unnoticed."""


def saw_all(seen: int, calls: int) -> None:
    """Raises Missed if fewer were seen than made."""
    if seen < calls:
        raise Missed(f"of {calls} calls {seen} were seen")


def require_up(metrics: str, log: str = "", probes: int = 1) -> None:
    """Raises Missed unless all ``probes`` of the agent are up and, by its log, none ever exceeded a limit."""
    if (tripped := OVER_LIMIT.search(log)) is not None:
        raise Missed(tripped[0])
    up = _by_probe(metrics, UP)
    if down := [name for name, value in up if not value]:
        raise Missed(f"these probes are not up: {', '.join(down)}")
    if len(up) < probes:
        raise Missed(f"of {probes} probes {len(up)} are up")
    if tripped_now := [name for name, value in _by_probe(metrics, TRIPPED) if value]:
        raise Missed(f"these probes are tripped: {', '.join(tripped_now)}")


def require_all_told(made: int, delivered: int, lost: int) -> None:
    """Raises Missed unless what was made is what was delivered and what was told as lost.

    Of ``lost`` some may be events of other processes, so it may be more than what is missing.
    """
    if delivered > made:
        raise Missed(f"{delivered:,} were delivered of {made:,} that were made")
    if delivered + lost < made:
        raise Missed(
            f"of {made:,} that were made {delivered:,} were delivered, and only {lost:,} were told as lost"
        )


def _by_probe(metrics: str, name: str) -> list[tuple[str, float]]:
    samples: Iterable[re.Match[str]] = SAMPLE.finditer(metrics)
    found = ((PROBE.search(sample[2] or ""), sample[3]) for sample in samples if sample[1] == name)
    return [(probe[1], float(value)) for probe, value in found if probe is not None]
