"""Draws probes: a point and a kind, what they fetch, filter and return, and their metrics."""

from collections.abc import Collection
from dataclasses import replace
from random import Random

from tests.kernel.differential.points import CALLS, POINTS, RETURNS, WITHOUT_FPROBES
from tests.kernel.differential.probes import Comparison, Condition, Fetch, Label, Metric, Probe
from tests.kernel.differential.types import RANGES

WIDTHS = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "x16", "x64")
RETURN_TYPES = ("int", "long", "ssize_t", "u32", "s16", "u8", "void")
CONSTANTS = (-4095, -22, -2, -1, 0, 1, 2, 3, 5, 8, 99, 100, 128, 1000, 65535, 2**31, 2**40)
OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "&")
PATTERNS = (
    *(("==", "relative"), ("!=", "/nonexistent"), ("~", "/*"), ("~", "*x"), ("~", "*quote*")),
    ("~", "relative"),
)
BUCKETS = (
    *((1, 4, 16, 256), (-100.5, -2.5, -0.5, 0.5), (-8, -1, 0, 1, 100), (0.5, 2.5, 1e6), (0,)),
    (1, 10, 100, 1000, 1e9),
)
POWERS = ((1, 2, 4, 8), (1, 64, 4096), (-1, 0, 1, 16))
DURATIONS = ((1e-6, 1e-3, 1e-2), (1e-4, 5e-3, 1.0), (1e-9, 10.0))


class ProbeDrawing:
    """Draws the probes of one case."""

    def __init__(self, random: Random, *, fprobes: bool, eprobes: bool, excluded: Collection[str]) -> None:
        self._random, self._fprobes, self._eprobes, self._excluded = random, fprobes, eprobes, excluded

    def probe(self, name: str) -> Probe:
        """Draw a probe; one in eight is a pair."""
        if self._random.random() < 0.12:
            return self._pair(name)
        point = POINTS[self._random.choice(sorted(POINTS))]
        kind = self._random.choice(point.kinds)
        if point.name == "execve" and kind == "syscall" and self._random.random() < 0.5:
            kind = "enter"
        kind = kind if self._fprobes else WITHOUT_FPROBES.get(kind, kind)
        probe = Probe(name, kind, point.name)
        if kind in RETURNS | CALLS:
            probe = replace(probe, returns=self._random.choice(RETURN_TYPES))
        if kind == "exit":
            types = ["" if one == "void" else one for one in RETURN_TYPES]
            probe = replace(probe, returns=self._random.choice(types))
        probe = replace(probe, fetch=self._fetch(probe))
        if self._random.random() < 0.4:
            probe = replace(probe, filter=self._condition(probe))
        kernel = not probe.joined and self._random.random() < 0.25
        probe = replace(probe, kernel=kernel)
        number = self._random.choice((0, 1, 1, 2, 3))
        return replace(probe, metrics=tuple(self._metric(probe, f"{name}_m{n}") for n in range(number)))

    def changed(self, probe: Probe) -> Probe | None:
        """Draw what a reload makes of a probe: mostly nothing, None if it goes."""
        choice = self._random.random()
        if choice < 0.6:
            return probe
        if choice < 0.65:
            return None
        if choice < 0.72 and probe.kind != "pair":
            return replace(probe, filter=self._condition(probe) if probe.filter is None else None)
        if choice < 0.8:
            return replace(probe, enabled=False)
        if choice < 0.92 and not probe.kernel:
            return replace(probe, metrics=(*probe.metrics, self._metric(probe, f"{probe.name}_more")))
        return self.probe(probe.name)

    def _pair(self, name: str) -> Probe:
        keys = self._random.choice((("key",), ("key", "tid")))
        fetch = (Fetch("key", "s64"), Fetch("value", "s64"), Fetch("other", "s64"))
        probe = Probe(name, "pair", "pair_begin", fetch, keys=keys)
        number = self._random.choice((0, 1, 2))
        return replace(probe, metrics=tuple(self._metric(probe, f"{name}_m{n}") for n in range(number)))

    def _fetch(self, probe: Probe) -> tuple[Fetch, ...]:
        if probe.kind in RETURNS:
            return ()
        chosen = []
        for parameter in POINTS[probe.point].parameters:
            if self._random.random() < 0.3:
                continue
            if probe.kind in ("syscall", "enter"):
                if parameter.type != "string":  # of a string, a tracepoint has only the address
                    chosen.append(Fetch(parameter.name, parameter.type))
            elif parameter.type == "string":
                chosen.append(Fetch(parameter.name, "string"))
            else:
                chosen.append(Fetch(parameter.name, self._random.choice(WIDTHS)))
        return tuple(chosen)

    def _numbers(self, probe: Probe) -> dict[str, str]:
        """The numeric fields that a filter may use, with their types."""
        fields = {one.name: one.type for one in probe.fetch if one.type != "string"}
        if probe.has_return:
            fields["return"] = probe.returns
        return fields

    def _condition(self, probe: Probe) -> Condition | None:
        comparisons = []
        texts = [one.name for one in probe.fetch if one.type == "string"]
        numbers = self._numbers(probe)
        for _ in range(self._random.choice((1, 1, 2))):
            if texts and self._random.random() < 0.4:
                comparisons.append(Comparison(texts[0], *self._random.choice(PATTERNS)))
            elif numbers:
                field = self._random.choice(sorted(numbers))
                low, high = RANGES[numbers[field]]
                constant = self._random.choice([one for one in CONSTANTS if low <= one <= high])
                comparisons.append(Comparison(field, self._random.choice(OPERATORS), constant))
        return Condition(tuple(comparisons), self._random.random() < 0.5) if comparisons else None

    def _metric(self, probe: Probe, name: str) -> Metric:
        values = sorted(self._numbers(probe))
        if probe.kernel and probe.kind in ("enter", "exit") and "wide_sums" in self._excluded:
            narrow = {"s8", "s16", "s32", "u8", "u16", "u32", "x16", "int"}
            values = [field for field in values if self._numbers(probe)[field] in narrow]
        if probe.joined:
            values.append("duration")
        kinds = ["counter"]
        if values:
            kinds += ["counter", "histogram"] if probe.kernel else ["counter", "histogram", "gauge"]
        kind = self._random.choice(kinds)
        value = (
            self._random.choice(values)
            if values and (kind != "counter" or self._random.random() < 0.5)
            else ""
        )
        if kind == "gauge" and value == "duration":
            kind = "histogram"
        metric = Metric(kind, f"{name}_total" if kind == "counter" else name, value)
        if kind == "histogram":
            buckets = POWERS if probe.kernel else DURATIONS if value == "duration" else BUCKETS
            metric = replace(metric, buckets=self._random.choice(buckets))
        unscaled = value in ("", "duration") or (kind == "histogram" and probe.kernel)
        if not unscaled and self._random.random() < 0.2:
            metric = replace(metric, scale=self._random.choice((0.001, 512, 2.5)))
        if self._random.random() < 0.3:
            metric = replace(metric, where=self._condition(self._for_where(probe)))
        return replace(metric, labels=self._labels(probe))

    @staticmethod
    def _for_where(probe: Probe) -> Probe:
        """The probe without what the kernel's tables cannot compare: texts, and a return of unknown width."""
        if not probe.kernel:
            return probe
        fetch = tuple(one for one in probe.fetch if one.type != "string")
        return replace(probe, fetch=fetch, returns="" if probe.returns == "long" else probe.returns)

    def _labels(self, probe: Probe) -> tuple[Label, ...]:
        thread = ["tid"] if POINTS[probe.point].thread_changes else ["tid", "cpu", "comm"]
        if not self._eprobes and probe.kind in ("enter", "exit"):
            # The names of a tracepoint's threads are looked up later, when a short one of the load has ended.
            thread = [field for field in thread if field != "comm"]
        fields = [*thread, *sorted(self._numbers(probe))]
        if not probe.kernel:
            if probe.kind not in {"enter", "exit", "pair"}:
                fields.append("symbol")
            fields += [one.name for one in probe.fetch if one.type == "string"]
        number = min(
            len(fields), self._random.choice((0, 0, 1, 1, 2) if probe.kernel else (0, 0, 1, 1, 2, 3))
        )
        labels = []
        for field in sorted(self._random.sample(fields, number)):
            name = f"label_{field}" if self._random.random() < 0.2 else field
            decode = "errno" if field == "return" and self._random.random() < 0.4 else ""
            if field in self._numbers(probe) and not decode and self._random.random() < 0.2:
                decode = "hex"
            labels.append(Label(name, field, decode))
        return tuple(labels)
