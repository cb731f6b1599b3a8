"""Limits on how often probes may fire: which probes to switch off, and when to try them again.

It is pure: numbers and times in, verdicts out.

Each probe has a token bucket: every second adds as many tokens as its limit, each firing takes one, and it
holds BURST seconds' worth. When it is empty, the probe is tripped: twice the limit is tolerated for BURST
seconds, ten times the limit for a third of a second, slightly more than the limit for long. All probes
together have one more bucket, of firings or of the machine's time; when that is empty, the probe that took
most of it is tripped.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kprobe_exporter.util.token_bucket import TokenBucket

BURST = 3.0
"""Seconds' worth of a limit that may fire at once."""

FIRST_PAUSE = 10.0
LONGEST_PAUSE = 600.0
"""Seconds for which a probe is off, the first time and at most; the pause doubles each time. A critical
probe is sampled for FIRST_PAUSE each time."""

FEWEST, MOST = 8, 1024
"""A critical probe that is sampled records one thread in so many: at least, and at most."""

RECOVERED = 600.0
"""Seconds without a trip after which earlier trips of a probe no longer lengthen its pause."""

AT_ONCE = float("-inf")


class Trip(NamedTuple):
    """A probe to disable for ``pause`` seconds, since it fired ``rate`` times per second.

    If ``one_in`` is not 0, it is not to be disabled: for that time, one thread in so many is to be recorded.
    With ``most``, ``rate`` is that of all probes together and ``most`` the probe's own, the highest of all;
    with ``of_time`` these and the limit are shares of the CPUs' time. ``share`` is what share of it a limit
    of firings stands for.
    """

    probe: str
    rate: float
    limit: float
    pause: float
    most: float | None = None
    one_in: int = 0
    of_time: bool = False
    share: float | None = None

    def __str__(self) -> str:
        end = f"it is off for {self.pause:.0f} s"
        if self.one_in:
            end = f"for {self.pause:.0f} s only the events of one thread in {self.one_in} are recorded"
        if self.most is None:
            share = "" if self.share is None else f", which is {_percent(self.share)} of the CPUs' time"
            return (
                f"it fired {self.rate:,.0f} times a second, and its limit is {self.limit:,.0f}{share}: {end}"
            )
        if self.of_time:
            return (
                f"all probes together took an estimated {_percent(self.rate)} of the CPUs' time, and their"
                f" limit is {_percent(self.limit)}; this one took most, {_percent(self.most)}: {end}"
            )
        return (
            f"all probes together fired {self.rate:,.0f} times a second, and their limit is"
            f" {self.limit:,.0f}; this one fired most, {self.most:,.0f} times: {end}"
        )


class Verdict(NamedTuple):
    """The changes to make: disable or sample the probes ``tripped``, enable the probes ``again``."""

    tripped: tuple[Trip, ...] = ()
    again: tuple[str, ...] = ()


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def firings(share: float, cost: float, cpus: int) -> float | None:
    """Return how many firings a second take this share of the time of all CPUs, None for free ones.

    ``cost`` is in seconds of a CPU per firing.
    """
    return share * cpus / cost if cost else None


def _bucket(limit: float | None, now: float) -> TokenBucket | None:
    return TokenBucket(limit, BURST * limit, now) if limit else None


def _take(bucket: TokenBucket, firings: float, now: float) -> bool:
    """Take the firings since the last call out of the bucket. Return whether it is empty then."""
    bucket.level -= firings
    return bucket.refill(now) < 0


@dataclass(slots=True)
class _Probe:
    """A probe that is on, or off or sampled until ``until``; ``by_all`` by the limit of all probes together.

    ``hits`` and ``read_at`` are its last reading.
    """

    bucket: TokenBucket | None
    hits: int | None = None
    read_at: float = 0.0
    on_since: float = 0.0
    until: float | None = None
    pause: float = 0.0
    by_all: bool = False

    @property
    def limit(self) -> float | None:
        return self.bucket.rate if self.bucket else None


class Budget:
    """The buckets of all probes. Times are seconds of a monotonic clock. Not thread-safe."""

    def __init__(self) -> None:
        self._read_at = 0.0
        self._all: TokenBucket | None = None
        self._probes: dict[str, _Probe] = {}
        self._critical: Collection[str] = ()

    def watch(
        self,
        now: float,
        hits: Mapping[str, int],
        limits: Mapping[str, float | None],
        limit: float | None = None,
        up: Collection[str] = (),
        critical: Collection[str] = (),
        shares: Mapping[str, float] | None = None,
    ) -> Verdict:
        """Return what to do, given the ``hits`` that were read at the time ``now``.

        ``limits`` name all current probes; others are forgotten. ``limit`` is that of all together. They are
        in firings per second, None for none. A probe whose limit changed gets a new bucket, and is tried
        again at once if the limit was raised. If that of all was raised, the probes that are off because of
        it are tried again. A probe without ``hits`` is left as it is. A probe in ``up`` that was off here was
        enabled elsewhere, and counts as on. Those that are ``critical`` are to be sampled, not disabled. If
        ``shares`` are given, ``limit`` is a share of the CPUs' time: they say what share of a second of it
        one firing of each probe takes.
        """
        self._know(limits, limit)
        self._critical = critical
        for name, probe in self._probes.items():
            if name in up and probe.until is not None:
                self._on(probe, now)
        tripped: list[Trip] = []
        rates: dict[str, float] = {}
        fired = 0.0
        for name, probe in self._probes.items():
            if (count := hits.get(name)) is None:
                continue
            more, seconds = (0 if probe.hits is None else count - probe.hits), now - probe.read_at
            probe.hits, probe.read_at = count, now
            if probe.until is not None:
                continue  # It fired on until the kernel had disabled it; no other probe is to pay for that.
            weight = 1.0 if shares is None else shares.get(name, 0.0)
            fired += weight * more
            if seconds > 0:
                rates[name] = weight * more / seconds
                if probe.bucket is not None and _take(probe.bucket, more, now):
                    tripped.append(self._off(name, now, more / seconds, probe.bucket.rate))
        together = self._together(fired, rates, now, enough=bool(tripped))
        tripped += (trip._replace(of_time=shares is not None) for trip in together)
        due = {name: one for name, one in self._probes.items() if one.until is not None and one.until <= now}
        for probe in due.values():
            self._on(probe, now)
        return Verdict(tuple(tripped), tuple(due))

    def _together(self, fired: float, rates: Mapping[str, float], now: float, *, enough: bool) -> list[Trip]:
        """Return the trip for the limit of all. ``enough``: a probe was tripped already, which suffices."""
        self._read_at = now
        if self._all is None:
            return []
        over, limit = _take(self._all, fired, now), self._all.rate
        if over or enough:
            self._all = _bucket(limit, now)
        if enough or not over or not rates:
            return []
        most = max(rates, key=rates.__getitem__)
        return [self._off(most, now, sum(rates.values()), limit, rates[most])]

    def _on(self, probe: _Probe, now: float) -> None:
        probe.until, probe.on_since = None, now
        probe.bucket = _bucket(probe.limit, now)

    def _know(self, limits: Mapping[str, float | None], of_all: float | None) -> None:
        before = self._all.rate if self._all else None
        if before != of_all:
            self._all = _bucket(of_all, self._read_at)
        for probe in self._probes.values():
            if probe.until is not None and probe.by_all and _is_raised(before, of_all):
                probe.until = AT_ONCE
        for name in self._probes.keys() - limits.keys():
            del self._probes[name]
        for name, limit in limits.items():
            known = self._probes.setdefault(name, _Probe(None))
            if known.until is not None and _is_raised(known.limit, limit):
                known.until = AT_ONCE
            if known.limit != limit:
                known.bucket = _bucket(limit, known.read_at)

    def _off(self, name: str, now: float, rate: float, limit: float, most: float | None = None) -> Trip:
        probe = self._probes[name]
        recovered = now - probe.on_since > RECOVERED or name in self._critical
        probe.pause = FIRST_PAUSE if recovered or not probe.pause else min(2 * probe.pause, LONGEST_PAUSE)
        probe.until, probe.by_all = now + probe.pause, most is not None
        one_in = _one_in((rate if most is None else most) / limit) if name in self._critical else 0
        return Trip(name, rate, limit, probe.pause, most, one_in)


def _one_in(times: float) -> int:
    """Return the power of two by which to divide what fires this many times its limit."""
    return min(max(FEWEST, 1 << math.ceil(math.log2(max(1.0, times)))), MOST)


def _is_raised(before: float | None, limit: float | None) -> bool:
    return before is not None and (limit is None or limit > before)
