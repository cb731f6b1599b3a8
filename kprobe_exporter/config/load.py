"""Loads configuration files into one checked Config, or reports all their problems at once."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kprobe_exporter.config.alternatives import alternatives
from kprobe_exporter.config.definitions import defined_name, spell_out, wrong_keys
from kprobe_exporter.config.environment import fill_in
from kprobe_exporter.config.explain import explain
from kprobe_exporter.config.exported import IDLE, NOWHERE, export_of, located, otlp_of, wrong_with_otlp
from kprobe_exporter.config.fields import Decoders, hits_per_second
from kprobe_exporter.config.files import Unusable, expand, read
from kprobe_exporter.config.hints import hint_at_ports
from kprobe_exporter.config.kernel import refuse_metric, refuse_probe
from kprobe_exporter.config.metrics import duration_buckets, return_buckets, write_out
from kprobe_exporter.config.names import MetricNames, wrong_with_space
from kprobe_exporter.config.otlp import ExportModel, OtlpModel
from kprobe_exporter.config.schema import Document, GlobalModel, MetricModel, ProbeModel
from kprobe_exporter.config.sites import Alternative
from kprobe_exporter.config.values import MAXACTIVE, Config, Export, Metric, Otlp, Probe, Settings
from kprobe_exporter.config.wording import Path as Place
from kprobe_exporter.config.wording import quote
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.errors import ConfigError, Problem

MAX_PROBLEMS = 100

Model = TypeVar("Model", bound=BaseModel)


def load(paths: Sequence[Path], decoders: Decoders, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and check configuration files; a directory stands for the YAML files in it.

    ``decoders`` maps the names of the decoders that labels may use to functions that take the options
    (None without any) and raise ValueError for bad ones. ``environ`` holds the variables of `otlp`.
    Raises ConfigError with all problems at once.
    """
    return _Loading(decoders, environ).config(paths)


@dataclass(frozen=True, slots=True)
class _Report:
    """Collects the problems and warnings of one probe or metric, by their paths within it."""

    source: YamlSource
    place: Place
    problems: list[Problem]
    warnings: list[Problem]

    def __call__(self, path: Place, message: str, *, column: int = 0, at_key: bool = False) -> None:
        problem = self.source.problem((*self.place, *path), message, column=column, at_key=at_key)
        self.problems.append(problem)

    def warn(self, path: Place, message: str, *, column: int = 0) -> None:
        """Record a warning."""
        message = f"warning: {message}"
        self.warnings.append(self.source.problem((*self.place, *path), message, column=column))

    def below(self, path: Place) -> "_Report":
        """Return the collector for the part of the probe at ``path``."""
        return _Report(self.source, (*self.place, *path), self.problems, self.warnings)


class _Loading:
    """One run of ``load``. Well-formed parts are checked further even if other parts are invalid."""

    def __init__(self, decoders: Decoders, environ: Mapping[str, str]) -> None:
        self.context = {"decoders": decoders}
        self.environ = environ
        self.has_otlp = False
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def config(self, paths: Sequence[Path]) -> Config:
        """Load and check the files. Raises ConfigError."""
        sources = list(self._sources(paths))
        # A file that could not be read may be the one with `otlp`.
        self.has_otlp = bool(self.problems) or any("otlp" in _whole(source) for source in sources)
        for source in sources:
            self._check_shape(source)
        settings, otlp = self._settings(sources), self._otlp(sources)
        self._check_probe_names(sources)
        taken = MetricNames(settings.namespace)
        probes = [probe for source in sources for probe in self._probes(source, taken)]
        if not probes and not self.problems:
            where = sources[0].file if sources else "(none)"
            sentence = "there is no probe: write at least one, as {name: exec, attach: …}"
            self.problems.append(Problem(where, 1, 1, "probes", sentence))
        if self.problems:
            raise ConfigError(_first(self.problems))
        if otlp and otlp.metrics is None and not any(probe.export and probe.enabled for probe in probes):
            self._warn_of_otlp(sources)
        return Config(
            settings,
            tuple(probes),
            tuple(source.file for source in sources),
            tuple(map(str, sorted(set(self.warnings)))),
            otlp,
        )

    def _sources(self, paths: Sequence[Path]) -> Iterator[YamlSource]:
        for path in paths:
            current = path
            try:
                for current in expand(path):
                    source = YamlSource(str(current), read(current))
                    self.problems += fill_in(source, "otlp", self.environ)
                    yield source
            except Unusable as error:
                self.problems.append(Problem(str(current), 1, 1, "(file)", str(error)))
            except ConfigError as error:
                self.problems += error.problems

    def _check_shape(self, source: YamlSource) -> None:
        self.problems += source.duplicates
        try:
            Document.model_validate(source.data, context=self.context)
        except ValidationError as error:
            self.problems += explain(source, error)
        for index, probe in enumerate(_list(source, "probes")):
            for key, sentence in wrong_keys(probe) if isinstance(probe, dict) else ():
                self._refuse(source, ("probes", index, key), sentence)

    def _settings(self, sources: list[YamlSource]) -> Settings:
        """Return the settings below ``global`` in all files, without the invalid ones."""
        written = [(source, _mapping(source, "global")) for source in sources]
        merged = self._merged(written, "global", GlobalModel)
        model = GlobalModel.model_validate(merged)
        limit = hits_per_second(model.limit)
        found = Settings(**model.model_dump(exclude={"limit"}), limit=limit)
        self._check_settings(found, sources)
        return found

    def _otlp(self, sources: list[YamlSource]) -> Otlp | None:
        """Return the valid settings below ``otlp`` in all files, or None if no file has this key."""
        if not any("otlp" in _whole(source) for source in sources):
            return None
        written = [(source, located(_mapping(source, "otlp"), source.file)) for source in sources]
        found = otlp_of(self._merged(written, "otlp", OtlpModel))
        for key, sentence in wrong_with_otlp(found):
            self._refuse_setting(sources, key, sentence, "otlp")
        return found

    def _merged(
        self, written: Sequence[tuple[YamlSource, Mapping[str, object]]], top: str, kind: type[BaseModel]
    ) -> dict[str, object]:
        """Merge the well-formed keys below ``top``. Files that share a key must agree on its value."""
        merged: dict[str, object] = {}
        first: dict[str, str] = {}
        for source, mapping in written:
            for key, value in mapping.items():
                if key in merged and merged[key] != value:
                    other = "what is" if top == "otlp" else quote(merged[key])  # it may be a secret
                    self._refuse(source, (top, key), f"differs from {other} in {first[key]}: keep one")
                elif key not in merged and self._valid(kind, {key: value}):
                    merged[key], first[key] = value, source.where((top, key))
        return merged

    def _check_settings(self, found: Settings, sources: list[YamlSource]) -> None:
        for sentence in wrong_with_space(found.namespace):
            self._refuse_setting(sources, "namespace", sentence)
        if found.buffer_total < found.buffer_size:
            sentence = f"buffer_total, {found.buffer_total} bytes, is less than buffer_size for a CPU"
            self._refuse_setting(sources, "buffer_total", sentence)
            self._refuse_setting(sources, "buffer_size", sentence)
        if found.max_series_total < found.max_series:
            sentence = f"max_series_total, {found.max_series_total}, is less than max_series for one metric"
            self._refuse_setting(sources, "max_series_total", sentence)
            self._refuse_setting(sources, "max_series", sentence)

    def _refuse_setting(
        self, sources: list[YamlSource], key: str, sentence: str, top: str = "global"
    ) -> None:
        for source in sources:
            if key in _mapping(source, top):
                self._refuse(source, (top, key), sentence)
                return

    def _warn_of_otlp(self, sources: list[YamlSource]) -> None:
        source = next(source for source in sources if "otlp" in _whole(source))
        self.warnings.append(source.problem(("otlp",), f"warning: {IDLE}", at_key=True))

    def _check_probe_names(self, sources: list[YamlSource]) -> None:
        """Refuse a name that two probes have, including probes with other problems."""
        first: dict[str, str] = {}
        for source in sources:
            for index, probe in enumerate(_list(source, "probes")):
                if not isinstance(probe, dict):
                    continue
                key, name = "name", probe.get("name")
                if name is None:
                    key, name = "definition", defined_name(probe.get("definition"))
                if not isinstance(name, str):
                    continue
                place = ("probes", index, key)
                if name in first:
                    sentence = f"there is a probe {quote(name)} already, at {first[name]}"
                    self._refuse(source, place, sentence)
                else:
                    first[name] = source.where(place)

    def _probes(self, source: YamlSource, taken: MetricNames) -> Iterator[Probe]:
        """Check and yield the well-formed probes of one source."""
        for index, data in enumerate(_list(source, "probes")):
            if not isinstance(data, dict):
                continue
            # Problems in metrics, export and unknown keys must hide no others, so these are left out.
            known = {key: data[key] for key in data if key in ProbeModel.model_fields}
            if model := self._valid(ProbeModel, known | {"metrics": [], "export": None}):
                report = _Report(source, ("probes", index), self.problems, self.warnings)
                yield self._probe(model, known, taken, report)

    def _probe(
        self, model: ProbeModel, written: Mapping[str, object], taken: MetricNames, report: _Report
    ) -> Probe:
        metrics = written.get("metrics")
        defined = None
        if model.definition is not None and model.attach is None:
            model, defined = spell_out(model, model.definition, report)
        attached = alternatives(model, report, defined)
        if model.aggregate == "kernel":
            refuse_probe(model, attached, report)
        found: dict[str, Metric] = {}
        for index, data in enumerate(metrics if isinstance(metrics, list) else []):
            place: Place = ("metrics", index)
            if not (one := self._valid(MetricModel, data)):
                continue
            metric = write_out(one, model, attached, report.below(place))
            if model.aggregate == "kernel":
                refuse_metric(one, metric, attached, report.below(place))
            hint_at_ports(metric, attached, report.below(place))
            place = (*place, metric.kind)
            where = f"probe {model.name} at {report.source.where((*report.place, *place))}"
            if metric.name in found:
                report(place, "this probe has this metric already: keep one")
            elif sentence := taken.add(metric, where):
                report(place, sentence)
            found[metric.name] = metric
        return Probe(
            name=model.name or "",
            help=model.help,
            attach=tuple(one.attach for one in attached),
            metrics=tuple(found.values()),
            maxactive=model.maxactive or MAXACTIVE,
            return_buckets=return_buckets(model, attached),
            # The exemplars of exported calls are in the built-in histogram.
            duration_buckets=duration_buckets(model, () if written.get("export") else found.values()),
            enabled=model.enabled,
            optional=model.optional,
            stack=model.stack,
            aggregate=model.aggregate,
            limit=hits_per_second(model.limit),
            critical=model.critical,
            export=self._export(written.get("export"), model, attached, report),
        )

    def _export(
        self, written: object, probe: ProbeModel, attached: tuple[Alternative, ...], report: _Report
    ) -> Export | None:
        if written is None:
            return None
        if probe.enabled and not self.has_otlp:
            report(("export",), NOWHERE, at_key=True)
        short = isinstance(written, str)
        model = self._valid(ExportModel, {"as": written} if short else written)
        return export_of(model, probe, attached, report.below(("export",)), short=short) if model else None

    def _valid(self, kind: type[Model], data: object) -> Model | None:
        """Return the model of a well-formed part, or None: _check_shape has reported its problems."""
        try:
            return kind.model_validate(data, context=self.context)
        except ValidationError:
            return None

    def _refuse(self, source: YamlSource, place: Place, message: str) -> None:
        self.problems.append(source.problem(place, message))


def _whole(source: YamlSource) -> dict[str, object]:
    return source.data if isinstance(source.data, dict) else {}


def _mapping(source: YamlSource, key: str) -> dict[str, object]:
    found = _whole(source).get(key)
    return found if isinstance(found, dict) else {}


def _list(source: YamlSource, key: str) -> list[object]:
    found = _whole(source).get(key)
    return found if isinstance(found, list) else []


def _first(problems: list[Problem]) -> list[Problem]:
    """Return the problems sorted, without repetitions, and at most MAX_PROBLEMS of them."""
    every = sorted(set(problems))
    shown = every[:MAX_PROBLEMS]
    if more := len(every) - len(shown):
        last = shown[-1]
        sentence = f"and {more} more problems, here and below"
        shown.append(Problem(last.file, last.line, last.column + 1, "(file)", sentence))
    return shown
