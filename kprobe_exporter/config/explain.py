"""Translates pydantic's errors into problems for the user: where, what, and how to fix it."""

from collections.abc import Iterator, Mapping
from typing import get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kprobe_exporter.config.fields import PATTERNS, LabelModel, Strict
from kprobe_exporter.config.schema import (
    AttachModel,
    Document,
    GlobalModel,
    HalfModel,
    MetricModel,
    PairModel,
    ProbeModel,
)
from kprobe_exporter.config.wording import Path, key_text, nearest, quote
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.errors import Problem

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

_SENTENCES: Mapping[str, str] = {
    "value_error": "{error}",
    "grammar": "{sentence}",
    "literal_error": "must be {expected}",
    "finite_number": "must be a finite number; a histogram has its +Inf by itself",
    "invalid_key": "a key here is text",
    "too_short": "is empty: write at least one",
    "too_long": "is too long: {max_length} are the most",
    "string_too_short": "is empty: write it, or leave the key out",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}
"""The kind of an error to its sentence, which names values of the error's context."""


def explain(
    source: YamlSource, error: ValidationError, document: type[Strict] = Document
) -> Iterator[Problem]:
    """Yield the problems behind a failed validation of a source as a ``document``."""
    for found in error.errors(include_url=False):
        loc, path = found["loc"], source.resolve(found["loc"])
        if found["type"] == "missing":
            yield source.problem((*path, loc[-1]), f"the key {loc[-1]!r} is missing")
        elif found["type"] == "extra_forbidden":
            yield source.problem(path, _unknown(path[:-1], path[-1], document), at_key=True)
        else:
            column, at_key = found.get("ctx", {}).get("column", 0), loc[-1:] == ("[key]",)
            yield source.problem(path, _sentence(found, path), column=column, at_key=at_key)


def _sentence(found: ErrorDetails, path: Path) -> str:
    """Return the problem in words."""
    kind, value, details = found["type"], found["input"], found.get("ctx", {})
    # A value of these types may be a secret: text from the environment, and in a header a token of digits.
    secret: tuple[type, ...] = (str,) if path[:1] == ("otlp",) else ()
    if path[:2] == ("otlp", "headers"):
        secret = (str, int, float)
    if kind == "string_pattern_mismatch":
        what = "this" if secret else quote(value)
        return f"{what} is not a name to use here: {PATTERNS[details['pattern']]}"
    if must_be := _MUST_BE.get(kind):
        what = "text" if isinstance(value, str) else "a number"
        if type(value) not in secret:
            what = f"the text {quote(value)}" if isinstance(value, str) else quote(value)
        return f"must be {must_be}, and not {what}"
    return _SENTENCES.get(kind, "{msg}").format(msg=found["msg"], **details)


def _unknown(path: Path, key: object, document: type[Strict]) -> str:
    model = _model(path, document)
    elsewhere = _ELSEWHERE.get(model, {})
    hint = next((f": {place}" for other, place in elsewhere.items() if key in _fields(other)), None)
    return f"unknown key {key_text(path, key)}{hint or nearest(key, _fields(model))}"


def _model(path: Path, document: type[Strict]) -> type[Strict]:
    """Return the model of the mapping at a path. Steps that lead to no other model are names."""
    model = document
    for step in path:
        if isinstance(step, str) and (field := _fields(model).get(step)):
            model = next(_models_in(field.annotation), model)
    return model


def _fields(model: type[Strict]) -> dict[str, FieldInfo]:
    """Return the fields of a model by the keys that users write."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: object) -> Iterator[type[Strict]]:
    """Yield the models in a field's type, such as a list or the short and long forms of a value."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


_OF_A_PAIR = "write it under `attach`, as in attach: {pair: {from: …, to: …, key: tid}}"
_OF_A_PROBE = "write it beside `attach`, it is the probe's"
_OF_ALL = "write it under `global`"

_ELSEWHERE: Mapping[type[Strict], Mapping[type[Strict], str]] = {
    ProbeModel: {
        MetricModel: "write it under `metrics`, as in metrics: [{counter: calls_total, labels: [comm]}]",
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
"""The mapping to which a key belongs that was written in another one. The first mapping that has it
counts."""
