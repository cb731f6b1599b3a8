"""Loads configuration files into one checked Config, or reports all their problems at once."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kprobe_exporter.config.alternatives import alternatives
from kprobe_exporter.config.checks import (
    DISABLED,
    IDLE,
    NOWHERE,
    export_of,
    fill_in,
    outstanding_of,
    stacks_of,
    within_of,
    worst_of,
    wrong_with_otlp,
)
from kprobe_exporter.config.definitions import DefinitionReader, defined_name, wrong_keys
from kprobe_exporter.config.explain import explain
from kprobe_exporter.config.expressions import with_lets
from kprobe_exporter.config.fields import Decoders, threshold
from kprobe_exporter.config.files import Unusable, expand, read
from kprobe_exporter.config.kernel_aggregation import counts_powers_of_2, refuse_metric, refuse_probe
from kprobe_exporter.config.metrics import MetricBuilder, duration_buckets, return_buckets
from kprobe_exporter.config.model import MAXACTIVE, Config, Export, LinesExport, Metric, Otlp, Probe, Settings
from kprobe_exporter.config.names import MetricNames, wrong_with_space
from kprobe_exporter.config.otlp import ExportModel, LinesModel, OtlpModel
from kprobe_exporter.config.record import RecordModel
from kprobe_exporter.config.record_checks import Conditions, condition_metrics, record_of
from kprobe_exporter.config.schema import Document, GlobalModel, MetricModel, ProbeModel
from kprobe_exporter.config.sites import Alternatives
from kprobe_exporter.config.time_probe import TimeModel, time_probe
from kprobe_exporter.config.wording import quote
from kprobe_exporter.config.yaml_source import Report, YamlSource
from kprobe_exporter.errors import ConfigError, Problem

MAX_PROBLEMS = 100

Model = TypeVar("Model", bound=BaseModel)


def load(paths: Sequence[Path], decoders: Decoders, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and check configuration files; a directory stands for the YAML files in it.

    ``decoders`` maps the names of the decoders that labels may use to functions. These take the options, or
    None, and raise ValueError for bad ones. ``environ`` has the variables that `otlp` names as
    ``${NAME}``. Raises ConfigError with all problems at once.
    """
    return _Loading(decoders, environ).config(lambda loading: loading.read_files(paths))


def load_text(text: str, decoders: Decoders, environ: Mapping[str, str] = os.environ) -> Config:
    """Check a configuration that is in no file, such as a terminal tool's. Raises ConfigError.

    Messages about its probes have no line number.
    """
    return _Loading(decoders, environ).config(
        lambda loading: [loading.report_of(YamlSource("", text.encode()))]
    )


class _Loading:
    """One run of ``load``. Well-formed parts are checked further even if other parts are invalid."""

    def __init__(self, decoders: Decoders, environ: Mapping[str, str]) -> None:
        self.context = {"decoders": decoders}
        self.environ = environ
        self.has_otlp = False
        self.native = False
        self.conditions: Conditions = {}
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def config(self, read_in: Callable[["_Loading"], Iterable[Report]]) -> Config:
        """Check the files that are read in. Raises ConfigError."""
        files = list(read_in(self))
        with_otlp = [file for file in files if "otlp" in _whole(file)]
        # A file that could not be read as a whole may be the one with `otlp`.
        self.has_otlp = bool(self.problems or with_otlp or any(file.source.readable for file in files))
        for file in files:
            self._check_shape(file)
        settings = self._settings(files)
        self.native = settings.native_histograms
        otlp = self._otlp(files) if with_otlp else None
        lines = LinesExport(**dict(self._merged(files, "lines", LinesModel)))
        _check_probe_names(files)
        names = MetricNames(settings.namespace)
        recorded = next((file for file in files if "recordings" in _mapping(file, "record")), None)
        record = self._merged(files, "record", RecordModel)
        if recorded is not None:
            self.conditions = condition_metrics(record, recorded)
        probes = list(self._probes(files, names))
        if timed := [file for file in files if isinstance(_whole(file).get("time"), dict)]:
            probes.append(self._time(files, timed[0], probes, names))
        checked = record_of(record, probes, recorded) if recorded and not self.problems else None
        if not probes and not self.problems:
            where = files[0].source.file if files else "(none)"
            sentence = "there is no probe: write at least one, as {name: exec, attach: …}"
            self.problems.append(Problem(where, 1, 1, "probes", sentence))
        if self.problems:
            raise ConfigError(_first(self.problems))
        if otlp and self.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            with_otlp[0].warn(("otlp",), DISABLED)
            otlp, probes = None, [_without_otlp(probe) for probe in probes]
        elif otlp and not (otlp.metrics or checked or any(_exports(p, "log", "span") for p in probes)):
            with_otlp[0].warn(("otlp",), IDLE)
        return Config(
            settings,
            tuple(probes),
            tuple(file.source.file for file in files),
            tuple(map(str, sorted(set(self.warnings)))),
            otlp,
            lines if any(_exports(probe, "line") for probe in probes) else None,
            checked if checked is not None and checked.recordings else None,
        )

    def report_of(self, source: YamlSource) -> Report:
        """Return the collector of a file's problems, once variables are filled in."""
        file = Report(source, (), self.problems, self.warnings)
        fill_in(file, self.environ)
        return file

    def read_files(self, paths: Sequence[Path]) -> Iterator[Report]:
        """Read the files, or those in directories; files that cannot be read become problems."""
        for path in paths:
            current = path
            try:
                for current in expand(path):
                    yield self.report_of(YamlSource(str(current), read(current)))
            except Unusable as error:
                self.problems.append(Problem(str(current), 1, 1, "(file)", str(error)))
            except ConfigError as error:
                self.problems += error.problems

    def _check_shape(self, file: Report) -> None:
        self.problems += file.source.readable
        try:
            Document.model_validate(file.source.data, context=self.context)
        except ValidationError as error:
            self.problems += explain(file.source, error)
        for report, probe in _written_probes([file]):
            for key, sentence in wrong_keys(probe):
                report((key,), sentence)

    def _settings(self, files: Sequence[Report]) -> Settings:
        """Return the valid settings below ``global`` in all files."""
        model = self._merged(files, "global", GlobalModel)
        found = Settings(**dict(model) | {"limit": threshold(model.limit)})
        _refuse(files, "global", _wrong_with_settings(found))
        return found

    def _otlp(self, files: Sequence[Report]) -> Otlp:
        """Return the valid settings below ``otlp`` in all files."""
        model = self._merged(files, "otlp", OtlpModel)
        found = Otlp(**dict(model) | {"metrics": model.metrics and model.metrics.interval})
        _refuse(files, "otlp", wrong_with_otlp(found))
        return found

    def _time(
        self, files: Sequence[Report], timed: Report, probes: Sequence[Probe], names: MetricNames
    ) -> Probe:
        """Return the probe that ``time`` stands for."""
        probe = time_probe(self._merged(files, "time", TimeModel))
        if any(one.name == probe.name for one in probes):
            timed(("time",), f"there is a probe {quote(probe.name)}, whose name this needs: rename it")
        for metric in probe.metrics:
            if sentence := names.add(metric, f"`time` at {timed.where(('time',))}"):
                timed(("time",), f"its metric {metric.name}: {sentence}")
        return probe

    def _merged(self, files: Sequence[Report], top: str, kind: type[Model]) -> Model:
        """Merge the well-formed keys below ``top``. Files that share a key must agree on its value."""
        merged: dict[str, object] = {}
        first: dict[str, str] = {}
        for file in files:
            for key, value in _mapping(file, top).items():
                if key in merged and merged[key] != value:
                    other = "what is" if top == "otlp" else quote(merged[key])  # it may be a secret
                    file((top, key), f"differs from {other} in {first[key]}: keep one")
                elif key not in merged and self._valid(kind, {key: value}):
                    merged[key], first[key] = value, file.where((top, key))
        return kind.model_validate(merged)

    def _probes(self, files: Sequence[Report], names: MetricNames) -> Iterator[Probe]:
        """Check and yield the well-formed probes."""
        for report, written in _written_probes(files):
            # Problems in metrics, export and unknown keys must hide no others, so these are left out.
            known = {key: written[key] for key in written if key in ProbeModel.model_fields}
            bare = known | {"metrics": [], "export": None}
            model = self._valid(ProbeModel, bare)
            # Nor must others: without them a probe has the same fields.
            if model := model or self._valid(ProbeModel, _of_fields(bare)):
                yield self._probe(model, known, names, report)

    def _probe(
        self, model: ProbeModel, written: Mapping[str, object], names: MetricNames, report: Report
    ) -> Probe:
        defined = None
        if model.definition is not None and model.attach is None:
            model, defined = DefinitionReader(model, model.definition, report).probe_and_target()
        attached = alternatives(model, report, defined)
        if model.aggregate == "kernel":
            refuse_probe(model, attached, report)
        attached = with_lets(model.let or {}, attached, report.below(("let",)))
        metrics = self._metrics(written.get("metrics"), model, attached, names, report)
        conditions = self.conditions.get(model.name or "", ())
        for counter, here in conditions:
            metric = MetricBuilder(counter, model, attached, here).metric()
            if sentence := names.add(metric, f"a recording at {here.where(())}"):
                here((), sentence)
            metrics[metric.name] = metric
        kept = model.model_dump(include={"help", "enabled", "optional", "stack", "aggregate", "critical"})
        if conditions and model.aggregate == "auto":
            kept["aggregate"] = "events"  # the kernel's own counts are read once a second
        return Probe(
            name=model.name or "",
            attach=tuple(one.attach for one in attached),
            let=model.let or {},
            metrics=tuple(metrics.values()),
            maxactive=model.maxactive or MAXACTIVE,
            return_buckets=return_buckets(model, attached),
            # The exemplars of exported calls are in the built-in histogram.
            duration_buckets=duration_buckets(model, () if written.get("export") else metrics.values()),
            limit=threshold(model.limit),
            native=self.native and (model.aggregate != "kernel" or counts_powers_of_2(model, attached)),
            stacks=stacks_of(model, attached, report),
            outstanding=outstanding_of(model, attached, report),
            worst=worst_of(model, attached, report),
            within=within_of(model, attached, report),
            export=self._export(written.get("export"), model, attached, report),
            **kept,
        )

    def _metrics(
        self, written: object, probe: ProbeModel, attached: Alternatives, names: MetricNames, report: Report
    ) -> dict[str, Metric]:
        """Check and return the well-formed metrics of a probe, by their names."""
        found: dict[str, Metric] = {}
        for index, data in enumerate(written if isinstance(written, list) else []):
            if not (model := self._valid(MetricModel, data)):
                continue
            here = report.below(("metrics", index))
            metric = MetricBuilder(model, probe, attached, here, self.native).metric()
            if probe.aggregate == "kernel":
                refuse_metric(model, metric, attached, here)
            if metric.name in found:
                here((metric.kind,), "this probe has this metric already: keep one")
            elif sentence := names.add(metric, f"probe {probe.name} at {here.where((metric.kind,))}"):
                here((metric.kind,), sentence)
            found[metric.name] = metric
        return found

    def _export(
        self, written: object, probe: ProbeModel, attached: Alternatives, report: Report
    ) -> Export | None:
        if written is None:
            return None
        short = isinstance(written, str)
        model = self._valid(ExportModel, {"as": written} if short else written)
        if probe.enabled and not self.has_otlp and (model is None or model.signal != "line"):
            report(("export",), NOWHERE, at_key=True)
        return export_of(model, probe, attached, report.below(("export",)), short=short) if model else None

    def _valid(self, kind: type[Model], data: object) -> Model | None:
        """Return the model of a well-formed part, or None: _check_shape has reported its problems."""
        try:
            return kind.model_validate(data, context=self.context)
        except ValidationError:
            return None


def _exports(probe: Probe, *signals: str) -> bool:
    return probe.enabled and probe.export is not None and probe.export.signal in signals


def _without_otlp(probe: Probe) -> Probe:
    return replace(probe, export=probe.export if _exports(probe, "line") else None)


def _whole(file: Report) -> dict[str, object]:
    return file.source.data if isinstance(file.source.data, dict) else {}


def _mapping(file: Report, key: str) -> dict[str, object]:
    found = _whole(file).get(key)
    return found if isinstance(found, dict) else {}


def _written_probes(files: Iterable[Report]) -> Iterator[tuple[Report, dict[object, object]]]:
    """Yield each probe as it is written, if it is a mapping, with the collector of its problems."""
    for file in files:
        found = _whole(file).get("probes")
        for index, probe in enumerate(found if isinstance(found, list) else []):
            if isinstance(probe, dict):
                yield file.below(("probes", index)), probe


def _of_fields(probe: Mapping[str, object]) -> dict[str, object]:
    """Return the keys of a probe on which its fields depend, with a key for each pair that lacks it."""
    attach = probe.get("attach")
    made = [_with_key(one) for one in attach] if isinstance(attach, list) else _with_key(attach)
    kept = {key: probe[key] for key in ("name", "definition", "fetch", "let", "returns") if key in probe}
    return kept | ({"attach": made} if "attach" in probe else {})


def _with_key(attach: object) -> object:
    if isinstance(attach, dict) and isinstance(pair := attach.get("pair"), dict):
        return attach | {"pair": {"key": "tid"} | pair}
    return attach


def _check_probe_names(files: Iterable[Report]) -> None:
    """Refuse a name that two probes have, including probes with other problems."""
    first: dict[str, str] = {}
    for report, probe in _written_probes(files):
        key, name = "name", probe.get("name")
        if name is None:
            key, name = "definition", defined_name(probe.get("definition"))
        if isinstance(name, str) and name in first:
            report((key,), f"there is a probe {quote(name)} already, at {first[name]}")
        elif isinstance(name, str):
            first[name] = report.where((key,))


def _wrong_with_settings(found: Settings) -> Iterator[tuple[str, str]]:
    """Yield each key that is invalid or conflicts with another one, with a sentence."""
    for sentence in wrong_with_space(found.namespace):
        yield "namespace", sentence
    if found.buffer_total < found.buffer_size:
        sentence = f"buffer_total, {found.buffer_total} bytes, is less than buffer_size for a CPU"
        yield from ((key, sentence) for key in ("buffer_total", "buffer_size"))
    if found.max_series_total < found.max_series:
        sentence = f"max_series_total, {found.max_series_total}, is less than max_series for one metric"
        yield from ((key, sentence) for key in ("max_series_total", "max_series"))


def _refuse(files: Sequence[Report], top: str, wrong: Iterable[tuple[str, str]]) -> None:
    """Refuse keys below ``top``, each in the first file that has it."""
    for key, sentence in wrong:
        if file := next((file for file in files if key in _mapping(file, top)), None):
            file((top, key), sentence)


def _first(problems: list[Problem]) -> list[Problem]:
    """Return the problems sorted, without repetitions, and at most MAX_PROBLEMS of them."""
    every = sorted(set(problems))
    shown = every[:MAX_PROBLEMS]
    if more := len(every) - len(shown):
        sentence = f"and {more} more problems, here and below"
        shown.append(shown[-1]._replace(column=shown[-1].column + 1, path="(file)", message=sentence))
    return shown
