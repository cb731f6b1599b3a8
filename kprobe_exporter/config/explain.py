"""Translates pydantic's errors into problems for the user: where, what, and how to fix it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kprobe_exporter.config.fields import PATTERNS, BucketRule, Exp2, LimitModel, Linear, Strict
from kprobe_exporter.config.otlp import ExportModel, OtlpModel, PushModel
from kprobe_exporter.config.schema import (
    AttachModel,
    Document,
    GlobalModel,
    HalfModel,
    LabelModel,
    MetricModel,
    PairModel,
    ProbeModel,
)
from kprobe_exporter.config.wording import Path, key_text, nearest, quote
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.errors import Problem

# The model behind a key, whose fields are the keys that are valid there.
_MODELS: Mapping[str, type[Strict]] = {
    "document": Document,
    "global": GlobalModel,
    "otlp": OtlpModel,
    "otlp.metrics": PushModel,
    "probes": ProbeModel,
    "export": ExportModel,
    "attach": AttachModel,
    "pair": PairModel,
    "from": HalfModel,
    "to": HalfModel,
    "metrics": MetricModel,
    "labels": LabelModel,
    "buckets": BucketRule,
    "return_buckets": BucketRule,
    "duration_buckets": BucketRule,
    "limit": LimitModel,
    "linear": Linear,
    "exp2": Exp2,
}

_MUST_BE: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping of KEY: VALUE",
    "model_type": "a mapping of KEY: VALUE",
    "list_type": "a list",
}

_SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "value_error": lambda details: str(details["error"]),
    "grammar": lambda details: str(details["sentence"]),
    "literal_error": lambda details: f"must be {details['expected']}",
    "finite_number": lambda _: "must be a finite number; a histogram has its +Inf by itself",
    "invalid_key": lambda _: "a key here is text",
    "too_short": lambda _: "is empty: write at least one",
    "too_long": lambda details: f"is too long: {details['max_length']} are the most",
    "string_too_short": lambda _: "is empty: write it, or leave the key out",
    "string_too_long": lambda details: f"must have at most {details['max_length']} characters",
    "greater_than": lambda details: f"must be more than {details['gt']:g}",
    "greater_than_equal": lambda details: f"must be at least {details['ge']}",
    "less_than_equal": lambda details: f"must be at most {details['le']}",
}


def explain(source: YamlSource, error: ValidationError) -> Iterator[Problem]:
    """Yield the problems behind a failed validation of a source's document."""
    for found in error.errors(include_url=False):
        yield _explain(source, found)


def _explain(source: YamlSource, found: ErrorDetails) -> Problem:
    loc, kind, value = found["loc"], found["type"], found["input"]
    details = found.get("ctx", {})
    if kind == "missing":
        return _missing(source, source.resolve(loc[:-1]), str(loc[-1]))
    path = source.resolve(loc)
    if kind == "extra_forbidden":
        return source.problem(path, _unknown(path[:-1], path[-1]), at_key=True)
    at_key = loc[-1:] == ("[key]",)
    return source.problem(
        path,
        _sentence(kind, details, value, found["msg"], secret=_secret(path)),
        column=details.get("column", 0),
        at_key=at_key,
    )


def _sentence(
    kind: str, details: Mapping[str, Any], value: object, message: str, *, secret: tuple[type, ...] = ()
) -> str:
    """Return the problem in words. A value of a type in ``secret`` may be one, and is not shown."""
    if kind == "string_pattern_mismatch":
        what = "this" if secret else quote(value)
        return f"{what} is no name to use here: {PATTERNS[details['pattern']]}"
    if must_be := _MUST_BE.get(kind):
        return f"must be {must_be}, and not {_described(value, secret=secret)}"
    if worded := _SENTENCES.get(kind):
        return worded(details)
    return message


def _secret(path: Path) -> tuple[type, ...]:
    """Return the types that a secret may have here: text from the environment, and a token of digits."""
    if path[:2] == ("otlp", "headers"):
        return (str, int, float)
    return (str,) if path[:1] == ("otlp",) else ()


def _described(value: object, *, secret: tuple[type, ...]) -> str:
    if isinstance(value, str):
        return "text" if str in secret else f"the text {quote(value)}"
    return "a number" if type(value) in secret else quote(value)


def _missing(source: YamlSource, path: Path, key: str) -> Problem:
    return source.problem((*path, key), f"the key {key!r} is missing")


def _unknown(path: Path, key: object) -> str:
    model = _model(path)
    known = _keys(model)
    elsewhere = _ELSEWHERE.get(model, {})
    hint = next((f": {place}" for other, place in elsewhere.items() if key in _keys(other)), None)
    return f"unknown key {key_text(path, key)}{hint or nearest(key, known)}"


def _keys(model: type[Strict]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


_OF_A_METRIC = "write it under `metrics`, as in metrics: [{counter: calls_total, labels: [comm]}]"
_OF_AN_ATTACHMENT = "write it under `attach`, as in attach: {to: 'kprobe:f', filter: …}"
_OF_A_PAIR = "write it under `attach`, as in attach: {pair: {from: …, to: …, key: tid}}"
_OF_A_PROBE = "write it beside `attach`, it is the probe's"
_OF_ALL = "write it under `global`"

_ELSEWHERE: Mapping[type[Strict], Mapping[type[Strict], str]] = {
    ProbeModel: {
        MetricModel: _OF_A_METRIC,
        PairModel: _OF_A_PAIR,
        AttachModel: _OF_A_PAIR,
        GlobalModel: _OF_ALL,
    },
    MetricModel: {
        LabelModel: "write it under `labels`, as in labels: {errno: {field: return, decode: errno}}",
        ProbeModel: _OF_A_PROBE,
    },
    AttachModel: {PairModel: _OF_A_PAIR, ProbeModel: _OF_A_PROBE},
    PairModel: {AttachModel: "write it beside `pair`", ProbeModel: _OF_A_PROBE},
    HalfModel: {PairModel: "write it under `pair`", ProbeModel: _OF_A_PROBE},
    LabelModel: {MetricModel: "write it beside `labels`, it is the metric's"},
    Document: {
        GlobalModel: _OF_ALL,
        ProbeModel: "write it under `probes`, as in probes: [{name: open, attach: …}]",
    },
}
"""Where a key belongs that was written in another mapping. The first mapping that has it counts."""


def _model(path: Path) -> type[Strict]:
    names = [step for step in path if isinstance(step, str)]
    if names[-2:-1] == ["labels"]:  # the last one is the label's own name
        names.pop()
    place = names[-1] if names else "document"
    if names[:1] == ["otlp"]:  # probes have `metrics` as well
        place = ".".join(names)
    return _MODELS[place]
