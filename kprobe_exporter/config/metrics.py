"""One metric of a probe: defaults filled in, and checked against the fields of the probe's events."""

from collections.abc import Iterable, Iterator
from typing import Any

from kprobe_exporter.config.fields import bounds
from kprobe_exporter.config.names import wrong_with_label, wrong_with_metric
from kprobe_exporter.config.schema import LabelModel, MetricModel, ProbeModel
from kprobe_exporter.config.sites import Alternative, Report, odd_duration
from kprobe_exporter.config.values import DURATION_BUCKETS, RETURN_BUCKETS, Decode, Label, Metric, MetricKind
from kprobe_exporter.config.wording import Path, listed, quote
from kprobe_exporter.grammar.condition import And, Comparison, Filter, Or
from kprobe_exporter.grammar.evaluate import wrong_comparison
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.model.values import OF_THREAD

MEASURED = (
    "a duration is measured, and each one would be a series of its own: make it the `value` of a histogram"
)


def return_buckets(probe: ProbeModel, alternatives: tuple[Alternative, ...] = ()) -> tuple[float, ...]:
    """Return the bounds of the probe's built-in histogram of return values.

    Empty for no histogram, as where the filters of all alternatives let only errors or 0 through.
    """
    if probe.return_buckets is not None:
        return () if probe.return_buckets == "none" else bounds(probe.return_buckets)
    filters = [one.attach.filter for one in alternatives]
    errors = [text is not None and _is_at_most_0(parse_filter(text, fractions=True)) for text in filters]
    return () if errors and all(errors) else RETURN_BUCKETS


def duration_buckets(probe: ProbeModel, metrics: Iterable[Metric] = ()) -> tuple[float, ...]:
    """Return the bounds of the probe's built-in histogram of durations, in seconds.

    Empty for no histogram, as where one of ``metrics`` is a histogram of the duration already.
    """
    if probe.duration_buckets is not None:
        return () if probe.duration_buckets == "none" else bounds(probe.duration_buckets)
    own = any(metric.kind == "histogram" and metric.value == "duration" for metric in metrics)
    return () if own else DURATION_BUCKETS


def _is_at_most_0(passing: Filter) -> bool:
    """Whether only return values up to 0 pass the filter, as far as its comparisons with numbers tell."""
    match passing:
        case Comparison(name="return", operator="<" | "<=" | "==" as operator, value=int() as value):
            return value <= 0 or (operator == "<" and value == 1)
        case And():
            return any(map(_is_at_most_0, passing.operands))
        case Or():
            return all(map(_is_at_most_0, passing.operands))
    return False


def write_out(
    model: MetricModel, probe: ProbeModel, alternatives: tuple[Alternative, ...], report: Report
) -> Metric:
    """Return a metric with all its defaults. Problems go to ``report``, by paths within the metric."""
    return _Written(model, probe, alternatives, report).metric()


def _kind_and_name(model: MetricModel) -> tuple[MetricKind, str]:
    if model.counter is not None:
        return "counter", model.counter
    if model.histogram is not None:
        return "histogram", model.histogram
    assert model.gauge is not None  # the model has exactly one
    return "gauge", model.gauge


class _Written:
    """Builds one metric."""

    def __init__(
        self,
        model: MetricModel,
        probe: ProbeModel,
        alternatives: tuple[Alternative, ...],
        report: Report,
    ) -> None:
        self.model, self.probe, self.report = model, probe, report
        self.alternatives = alternatives
        self.kind, self.name = _kind_and_name(model)

    def metric(self) -> Metric:
        """Check the model and return the metric."""
        for sentence in wrong_with_metric(self.kind, self.name):
            self.report((self.kind,), sentence)
        self._check_value()
        self._check_scale()
        check_where(self.model.where, self.alternatives, self.report)
        labels = sorted(self._labels(), key=lambda label: label.name)
        about = self.name.removesuffix("_total").replace("_", " ")
        help_ = self.model.help or f"{about[:1].upper()}{about[1:]}, from kernel events."
        return Metric(
            kind=self.kind,
            name=self.name,
            help=help_,
            value=self.model.value,
            labels=tuple(labels),
            buckets=self._buckets(),
            where=self.model.where,
            scale=1.0 if self.model.scale is None else self.model.scale,
        )

    def _check_value(self) -> None:
        path = ("value",)
        if self.model.value is not None:
            self._check_field(self.model.value, path, number=True)
            pointers = [
                str(one.attach.target)
                for one in self.alternatives
                if one.attach.returns and one.attach.returns.pointer
            ]
            if self.model.value == "return" and pointers:
                self.report(path, f"{listed(pointers)} returns a pointer, which measures nothing")
        elif self.kind != "counter":
            self.report(path, f"a {self.kind} needs `value`: the field whose number it takes")

    def _check_scale(self) -> None:
        if self.model.scale is None:
            return
        if self.model.value is None:
            self.report(("scale",), "there is no `value` to multiply: add one, or leave scale out")
        elif self.kind == "histogram" and self.model.buckets is None:
            self.report(("scale",), "the usual buckets do not suit a scaled value: write `buckets`")

    def _buckets(self) -> tuple[float, ...] | None:
        if self.kind != "histogram":
            if self.model.buckets is not None:
                self.report(("buckets",), f"only a histogram has buckets, not a {self.kind}")
            return None
        if self.model.buckets is not None:
            return bounds(self.model.buckets)
        if self.model.value == "duration":
            return duration_buckets(self.probe) or DURATION_BUCKETS
        return (return_buckets(self.probe) if self.model.value == "return" else ()) or RETURN_BUCKETS

    def _labels(self) -> Iterator[Label]:
        written = self.model.labels
        if isinstance(written, list):
            for index, name in enumerate(written):
                path = ("labels", index)
                if name in written[:index]:
                    self.report(path, f"the label {name!r} is there already: keep one")
                else:
                    yield self._label(name, name, path)
        else:
            for name, value in written.items():
                yield self._label(name, value, ("labels", name))

    def _label(self, name: str, value: str | LabelModel, path: Path) -> Label:
        for sentence in wrong_with_label(name):
            self.report(path, sentence, at_key=True)
        if isinstance(value, str):
            self._check_field(value, path, label=True)
            return Label(name, value)
        steps = tuple(_decoding(value.decode))
        of_thread = [step.name for step in steps if step.name in OF_THREAD]
        self._check_field(value.field, (*path, "field"), label=True, number=bool(of_thread))
        if of_thread and steps[0].name not in OF_THREAD:
            sentence = f"{of_thread[0]} takes a thread's id: let it be the first, with field: tid"
            self.report((*path, "decode"), sentence)
        return Label(name, value.field, steps)

    def _check_field(self, name: str, path: Path, *, number: bool = False, label: bool = False) -> None:
        """Refuse a field that in some alternative is missing, no ``number``, or not usable as a ``label``."""
        if sentence := _missing(name, self.alternatives):
            self.report(path, sentence)
        elif label and name == "duration":
            self.report(path, MEASURED)
        elif number and (
            text := [str(one.attach.target) for one in self.alternatives if _is_text(one, name)]
        ):
            self.report(path, f"{quote(name)} is text at {listed(text)}: this needs a number")


def check_where(where: str | None, alternatives: tuple[Alternative, ...], report: Report) -> None:
    """Check the filter ``where``, which the agent evaluates, against the fields of every alternative."""
    if where is None:
        return
    for part in parse_filter(where, fractions=True).comparisons:
        if why := _missing(part.name, alternatives) or _uncomparable(part, alternatives):
            report(("where",), why, column=part.column)
        elif odd := odd_duration(part):
            report.warn(("where",), odd, column=part.column)


def _uncomparable(part: Comparison, alternatives: tuple[Alternative, ...]) -> str | None:
    """Return why a comparison cannot be made with its field in an alternative."""
    for one in alternatives:
        known = one.fields[part.name]
        if known and (why := wrong_comparison(part, known)):
            at = f" (at {one.attach.target})" if len(alternatives) > 1 else ""
            return f"{why}{at}"
    return None


def _missing(name: str, alternatives: tuple[Alternative, ...]) -> str | None:
    """Return the sentence for a missing field, if an alternative does not yield it."""
    without = [str(one.attach.target) for one in alternatives if name not in one.fields]
    if not without:
        return None
    if name == "duration":
        return f"there is no 'duration' at {listed(without)}: only a call or a pair takes time"
    known = {field for one in alternatives for field in one.fields} - {name}
    hint = closest(name, known) or ": every alternative must yield it, see `fetch`"
    return f"there is no field {quote(name)} at {listed(without)}{hint}"


def _is_text(one: Alternative, name: str) -> bool:
    known = one.fields[name]
    return known is not None and (known.is_string or known.kind == "other")


def _decoding(
    written: str | dict[str, Any] | list[str | dict[str, Any]] | None,
) -> Iterator[Decode]:
    for step in written if isinstance(written, list) else [written]:
        if isinstance(step, str):
            yield Decode(step)
        elif isinstance(step, dict):
            [(name, options)] = step.items()
            yield Decode(name, options)
