"""What a drawn configuration consists of, and how it is written as YAML."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from tests.conftest import has
from tests.kernel.differential.points import CALLS, POINTS
from tests.vm.kernels import HIST

Value = int | bytes


@dataclass(frozen=True)
class Comparison:
    """A field compared with a constant, as the kernel and the agent write it."""

    field: str
    operator: str
    constant: int | str

    def __str__(self) -> str:
        constant = f'"{self.constant}"' if isinstance(self.constant, str) else self.constant
        return f"{self.field} {self.operator} {constant}"


@dataclass(frozen=True)
class Condition:
    """Comparisons of which all must hold, or any."""

    comparisons: tuple[Comparison, ...]
    every: bool = True

    def __str__(self) -> str:
        return (" && " if self.every else " || ").join(map(str, self.comparisons))


@dataclass(frozen=True)
class Fetch:
    """A parameter that is read as a type, under its own name."""

    name: str
    type: str


@dataclass(frozen=True)
class Label:
    """A label, with a decoder or ""."""

    name: str
    field: str
    decode: str = ""

    def yaml(self) -> Any:
        return {"field": self.field, "decode": self.decode} if self.decode else self.field


@dataclass(frozen=True)
class Metric:
    """A configured metric."""

    kind: str
    name: str
    value: str = ""
    labels: tuple[Label, ...] = ()
    where: Condition | None = None
    buckets: tuple[float, ...] = ()
    scale: float = 1

    def yaml(self) -> dict[str, Any]:
        written: dict[str, Any] = {self.kind: self.name}
        if self.value:
            written["value"] = self.value
        if self.labels:
            written["labels"] = {label.name: label.yaml() for label in self.labels}
        if self.where is not None:
            written["where"] = str(self.where)
        if self.buckets:
            written["buckets"] = list(self.buckets)
        if self.scale != 1:
            written["scale"] = self.scale
        return written


RETURN_BOUNDS = tuple(4.0**power for power in range(11))
DURATION_BOUNDS = tuple(4.0**power / 1e6 for power in range(13))
"""The bounds of the built-in histograms, as docs/configuration.md has them."""


@dataclass(frozen=True)
class Probe:
    """A configured probe on a point. A "pair" is from the point pair_begin to pair_end, by ``keys``."""

    name: str
    kind: str
    point: str
    fetch: tuple[Fetch, ...] = ()
    returns: str = ""
    filter: Condition | None = None
    kernel: bool = False
    metrics: tuple[Metric, ...] = ()
    keys: tuple[str, ...] = ()
    enabled: bool = True

    @property
    def joined(self) -> bool:
        return self.kind in CALLS or self.kind == "pair"

    @property
    def points(self) -> tuple[str, ...]:
        """The points of the load that it is attached to."""
        return ("pair_begin", "pair_end") if self.kind == "pair" else (self.point,)

    @property
    def has_return(self) -> bool:
        """Whether its events have a return value."""
        return self.returns not in ("", "void")

    @property
    def counts_only(self) -> bool:
        """Whether the kernel only counts, and writes no event: tracepoints, by hist triggers alone."""
        if self.kind in ("enter", "exit") and not has(HIST):
            return False
        return not (self.joined or self.metrics or self.filter or self.has_return or self.kernel)

    def yaml(self, program: str) -> dict[str, Any]:
        written: dict[str, Any] = {"name": self.name}
        if self.kind == "pair":
            begin, end = POINTS["pair_begin"], POINTS["pair_end"]
            first = {
                "to": begin.attach("uprobe", program),
                "fetch": {"key": "$arg1:s64", "value": "$arg2:s64"},
            }
            last = {"to": end.attach("uprobe", program), "fetch": {"key": "$arg1:s64", "other": "$arg2:s64"}}
            written["attach"] = {"pair": {"from": first, "to": last, "key": list(self.keys)}}
        else:
            point = POINTS[self.point]
            written["attach"] = point.attach(self.kind, program)
            fetch = {
                one.name: point.expression(self.kind, parameter, one.type)
                for one in self.fetch
                for parameter in point.parameters
                if parameter.name == one.name
            }
            if self.kind == "exit" and self.has_return:
                fetch["return"] = "ret"
            if fetch:
                written["fetch"] = fetch
        if self.returns:
            written["returns"] = self.returns
        # Unset, a probe that passes errors alone, or with a histogram of its own, has no built-in histogram.
        if self.has_return and self.filter is not None:
            written["return_buckets"] = list(RETURN_BOUNDS)
        if self.joined and any(metric.kind == "histogram" for metric in self.metrics):
            written["duration_buckets"] = list(DURATION_BOUNDS)
        if self.filter is not None:
            written["filter"] = str(self.filter)
        if self.kernel:
            written["aggregate"] = "kernel"
        if not self.enabled:
            written["enabled"] = False
        if self.metrics:
            written["metrics"] = [metric.yaml() for metric in self.metrics]
        return written


RESIDENT = Probe("resident", "uprobe", "take_value", metrics=(Metric("counter", "resident_total"),))
"""A probe of every configuration, which needs at least one, and which no reload touches."""


def configuration(probes: Iterable[Probe], program: str, *, buffer: str = "4MiB") -> str:
    """The text of a configuration file with these probes and this ring buffer of a CPU."""
    written = {
        "global": {"buffer_size": buffer, "limit": "none", "max_series_total": 100_000},
        "probes": [{**probe.yaml(program), "limit": "none"} for probe in (RESIDENT, *probes)],
    }
    return yaml.safe_dump(written, sort_keys=False, default_flow_style=None, width=110)
