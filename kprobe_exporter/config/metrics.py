"""One metric of a probe: defaults filled in, and checked against the fields of the probe's events."""

import re
from collections.abc import Iterable, Iterator
from math import frexp
from typing import Any

from kprobe_exporter.config.expressions import check_expression, labels_meant, missing_field, with_labels
from kprobe_exporter.config.fields import LabelModel, bounds
from kprobe_exporter.config.model import (
    DURATION_BUCKETS,
    KERNEL_DURATION_BUCKETS,
    NAMED,
    RETURN_BUCKETS,
    Decode,
    Label,
    Metric,
)
from kprobe_exporter.config.names import wrong_with_label, wrong_with_metric
from kprobe_exporter.config.schema import MetricModel, ProbeModel
from kprobe_exporter.config.sites import BUILT_IN, Alternatives
from kprobe_exporter.config.wording import Path, listed, quote
from kprobe_exporter.config.yaml_source import Report
from kprobe_exporter.grammar.evaluate import COMPUTED, FLOAT
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import Comparison, Node, Operation
from kprobe_exporter.grammar.lexis import NAME
from kprobe_exporter.model.hist import BucketForm, bucket_form
from kprobe_exporter.model.specs import BY_THREAD, OF_EXIT, OF_PROCESS, OF_PROGRAM, UNBOUNDED

UNBOUNDED_LABEL = (
    "{} differs for nearly every process, and arguments may hold secrets: export it, as"
    " export: {{as: log, attributes: [argv]}}"
)

EARLY = (
    "{} is known once a thread ends, which none has done at {}: attach to tracepoint:sched:sched_process_exit"
)

KEPT_ARGUMENTS = "arguments may hold secrets, and all who may scrape would see them: keep exe or comm"

SHORT = frozenset({"u16", "s16", "x16"})

_MEMBER = re.compile(r"\+\w+\((?P<base>.+)\):(?P<type>\w+)(\[\d+\])?")


def return_buckets(probe: ProbeModel, alternatives: Alternatives = ()) -> tuple[float, ...]:
    """Return the bounds of the probe's built-in histogram of return values.

    Empty for no histogram, as where the filters of all alternatives let only errors or 0 through.
    """
    if probe.return_buckets is not None:
        return bounds(probe.return_buckets)
    filters = [one.attach.filter for one in alternatives]
    errors = [text is not None and _is_at_most_0(parse_filter(text, fractions=True)) for text in filters]
    return () if errors and all(errors) else RETURN_BUCKETS


def duration_buckets(probe: ProbeModel, metrics: Iterable[Metric] = ()) -> tuple[float, ...]:
    """Return the bounds of the probe's built-in histogram of durations, in seconds.

    Empty for no histogram, as where one of ``metrics`` is a histogram of the duration already.
    """
    if probe.duration_buckets is not None:
        return bounds(probe.duration_buckets)
    own = any(metric.kind == "histogram" and metric.value == "duration" for metric in metrics)
    return () if own else usual_durations(probe)


def usual_durations(probe: ProbeModel) -> tuple[float, ...]:
    """Return the bounds of a histogram of durations for which the configuration has none."""
    return KERNEL_DURATION_BUCKETS if probe.aggregate == "kernel" else DURATION_BUCKETS


def _is_at_most_0(passing: Node) -> bool:
    """Whether only return values up to 0 pass the filter, as far as its comparisons with numbers tell."""
    match passing:
        case Comparison(name="return", operator="<" | "<=" | "==" as operator, value=int() as value):
            return value <= 0 or (operator == "<" and value == 1)
        case Operation("&&", operands):
            return any(map(_is_at_most_0, operands))
        case Operation("||", operands):
            return all(map(_is_at_most_0, operands))
    return False


def keeps_powers_of_2(scale: float) -> bool:
    """Return whether each power of two times ``scale`` is a power of two."""
    return frexp(scale)[0] == 0.5


def labels_of(model: MetricModel, key: str = "labels") -> Iterator[tuple[str, LabelModel, Path, Path]]:
    """Yield each label's name, what it shows, and the paths of the label and of its field in the metric."""
    if isinstance(model.labels, list):
        for index, name in enumerate(model.labels):
            yield name, LabelModel(field=name), (key, index), (key, index)
        return
    for name, label in model.labels.items():
        path = (key, name)
        if isinstance(label, str):
            yield name, LabelModel(field=label), path, path
        else:
            yield name, label, path, (*path, "field")


class MetricBuilder:
    """Builds one metric with all its defaults. Problems go to ``report``, by paths within the metric.

    ``native``: histograms without a ``native`` of their own have native buckets, too. ``key`` is that of the
    labels.
    """

    def __init__(
        self,
        model: MetricModel,
        probe: ProbeModel,
        alternatives: Alternatives,
        report: Report,
        native: bool = False,
        key: str = "labels",
    ) -> None:
        self.native, self.key = native, key
        self.model, self.probe, self.alternatives, self.report = model, probe, alternatives, report
        [(self.kind, self.name)] = model.given.items()
        self.times = {name for one in alternatives for name, type_ in one.fields.items() if type_ is FLOAT}

    def metric(self) -> Metric:
        """Check the model and return the metric."""
        for sentence in wrong_with_metric(self.kind, self.name):
            self.report((self.kind,), sentence)
        self._check_value()
        self._check_scale()
        labels = tuple(sorted(self.labels(), key=lambda label: label.name))
        about = self.name.removesuffix("_total").replace("_", " ")
        metric = Metric(
            kind=self.kind,
            name=self.name,
            help=self.model.help or f"{about[:1].upper()}{about[1:]}, from kernel events.",
            value=self.model.value,
            labels=labels,
            buckets=self._buckets(),
            where=self.model.where,
            scale=1.0 if self.model.scale is None else self.model.scale,
            selecting=self._check_where(labels),
            native=self._is_native(),
        )
        self._hint_at_ports(metric)
        return metric

    def _check_where(self, labels: tuple[Label, ...]) -> frozenset[str]:
        """Check ``where``; return the names in it that mean labels."""
        text = self.model.where
        if text is None:
            return frozenset()
        meant = labels_meant(text, labels, self.alternatives)
        others = {label.name for label in labels if missing_field(label.name, self.alternatives)}
        check_expression(text, ("where",), with_labels(meant | others, self.alternatives), self.report)
        return meant

    def _check_value(self) -> None:
        value, path = self.model.value, ("value",)
        if value is None:
            if self.kind != "counter":
                self.report(path, f"a {self.kind} needs `value`: the field whose number it takes")
            return
        if not NAME.fullmatch(value):
            check_expression(value, ("value",), self.alternatives, self.report)
            return
        self.check_number(value, path)

    def check_number(self, name: str, path: Path) -> None:
        """Report a field that does not measure anything."""
        self._check_field(name, path, number=True)
        attached = [one.attach for one in self.alternatives]
        pointers = [str(one.target) for one in attached if one.returns and one.returns.pointer]
        if name == "return" and pointers:
            self.report(path, f"{listed(pointers)} returns a pointer, which measures nothing")

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
        if self.model.value in self.times:
            return duration_buckets(self.probe) or usual_durations(self.probe)
        return (return_buckets(self.probe) if self.model.value == "return" else ()) or RETURN_BUCKETS

    def _is_native(self) -> bool:
        if self.kind != "histogram":
            if self.model.native is not None:
                self.report(("native",), f"only a histogram can be a native one, not a {self.kind}")
            return False
        if self.model.native is not None:
            return self.model.native
        # The kernel counts by powers of two of the value, which are to be powers of two of the product.
        scale, of_powers = self.model.scale or 1.0, self.probe.aggregate == "kernel"
        fits = keeps_powers_of_2(scale) and bucket_form(self._buckets() or (), scale) == BucketForm()
        return self.native and ((fits and self.model.value not in self.times) or not of_powers)

    def labels(self) -> Iterator[Label]:
        """Check and yield the labels."""
        names: set[str] = set()
        for name, written, path, field_path in labels_of(self.model, self.key):
            label = written
            if name in names:
                self.report(path, f"the label {name!r} is there already: keep one")
                continue
            names.add(name)
            for sentence in wrong_with_label(name):
                self.report(path, sentence, at_key=True)
            steps = tuple(_decoding(label.decode)) or self._usual(label.field)
            if is_fact(label.field, self.alternatives):
                if label.field in OF_EXIT and (early := self._before_exit()):
                    self.report(path, EARLY.format(label.field, listed(early)))
                steps = (Decode(label.field), *_decoding(label.decode))
                label = LabelModel(field="tid")
            of_thread = [step.name for step in steps if step.name in BY_THREAD]
            self._check_field(label.field, field_path, label=True, number=bool(of_thread))
            if self.key == "labels" and UNBOUNDED.intersection(of_thread):
                self.report(path, UNBOUNDED_LABEL.format(of_thread[0]))
            if self.key == "keep" and "argv" in of_thread:
                self.report(path, KEPT_ARGUMENTS)
            if of_thread and steps[0].name not in BY_THREAD:
                sentence = f"{of_thread[0]} takes a thread's id: let it be the first, with field: tid"
                self.report((*path, "decode"), sentence)
            for sentence in self._wrong_with_address(label.field, steps):
                self.report((*path, "decode"), sentence)
            for at, sentence in self._wrong_with_name(label, steps):
                self.report((*path, "decode", *at), sentence)
            yield Label(name, label.field, steps)

    def _before_exit(self) -> list[str]:
        """Return the targets at which no thread has begun to end."""
        events = (one for each in self.alternatives for one in (each.attach, *each.attach.single))
        targets = dict.fromkeys(one.target for one in events)
        return [str(one) for one in targets if one.precedes_exit]

    def _usual(self, field: str) -> tuple[Decode, ...]:
        """Return the decoding of a field for which none is written."""
        in_file = any(one.attach.target.kind.in_file for one in self.alternatives)
        return (Decode(OF_PROGRAM),) if field == "caller" and in_file else ()

    def _wrong_with_address(self, field: str, steps: tuple[Decode, ...]) -> Iterator[str]:
        """Yield why an address in a program cannot be decoded like this."""
        names = [step.name for step in steps]
        if OF_PROGRAM in names[1:]:
            yield "usym takes an address itself: let it be the first"
            return
        known = OF_PROGRAM in names and missing_field(field, self.alternatives) is None
        if text := _where_it_is_text(field, self.alternatives) if known else ():
            yield f"{quote(field)} is text at {listed(text)}: usym takes an address in a program"

    def _wrong_with_name(self, label: LabelModel, steps: tuple[Decode, ...]) -> Iterator[tuple[Path, str]]:
        """Yield why ``decode: name``, without an enum, has no words here, and where below ``decode``."""
        field, listed_ = label.field, isinstance(label.decode, list)
        for index, step in enumerate(steps):
            computed = any(one.fields.get(field) is COMPUTED for one in self.alternatives)
            if step != NAMED or not (index or computed or field in BUILT_IN - {"return"}):
                continue
            what = "computed" if computed else "built in"
            hint = "name an enum, as {name: {enum: skb_drop_reason}}"
            sentence = f"{field!r} is {what}, so the kernel has no words for it: {hint}"
            if index:
                sentence = "without an enum, name takes the field itself: let it be the first"
            yield (index,) if listed_ else (), sentence

    def _check_field(self, name: str, path: Path, *, number: bool = False, label: bool = False) -> None:
        """Refuse a field that in some alternative is missing, no ``number``, or not usable as a ``label``."""
        if sentence := missing_field(name, self.alternatives):
            self.report(path, sentence)
        elif label and name in self.times:
            sentence = "a duration is measured, and each one would be a series of its own"
            hint = "let `by` name it" if self.key == "keep" else "make it the `value` of a histogram"
            self.report(path, f"{sentence}: {hint}")
        elif number and (null := _where_it_is_null(name, self.alternatives)):
            self.report(path, f"{quote(name)} is null at {listed(null)}: this needs a number")
        elif number and (text := _where_it_is_text(name, self.alternatives)):
            self.report(path, f"{quote(name)} is text at {listed(text)}: this needs a number")

    def _hint_at_ports(self, metric: Metric) -> None:
        """Warn of a plain 16-bit label from the structure that holds an address: it is in network order."""
        addresses = [label.field for label in metric.labels if "ip" in [step.name for step in label.decode]]
        beside: set[str] = set()
        for part in (part for one in self.alternatives for part in one.attach.single):
            parsed = {name: _MEMBER.fullmatch(text.replace(" ", "")) for name, text in part.fetch.items()}
            members = {name: found for name, found in parsed.items() if found}
            bases = {members[name]["base"] for name in addresses if name in members}
            short = {name: found for name, found in members.items() if found["type"] in SHORT}
            beside |= {name for name, found in short.items() if found["base"] in bases}
        for field in sorted({label.field for label in metric.labels if not label.decode} & beside):
            what = f"{quote(field)} has 16 bits and lies beside an address: if it is a port"
            self.report.warn(("labels",), f"{what}, it is in network order: {{field: {field}, decode: port}}")


def is_fact(name: str, alternatives: Alternatives) -> bool:
    """Return whether a name means a fact of the thread's process: no alternative has a field of this name."""
    return name in OF_PROCESS and not any(name in one.fields for one in alternatives)


def _where_it_is_text(name: str, alternatives: Alternatives) -> list[str]:
    types = [(str(one.attach.target), one.fields[name]) for one in alternatives]
    return [target for target, type_ in types if type_ and (type_.is_string or type_.kind == "other")]


def _where_it_is_null(name: str, alternatives: Alternatives) -> list[str]:
    return [str(one.attach.target) for one in alternatives if name in one.attach.absent]


def _decoding(written: str | dict[str, Any] | list[str | dict[str, Any]] | None) -> Iterator[Decode]:
    for step in written if isinstance(written, list) else [written]:
        if isinstance(step, str):
            yield Decode(step)
        elif isinstance(step, dict):
            [(name, options)] = step.items()
            yield Decode(name, options)
