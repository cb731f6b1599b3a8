"""config.schema: the JSON Schema for editors accepts and refuses the same documents as our models."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kprobe_exporter.config.schema import Document, json_schema
from kprobe_exporter.config.yaml_source import YamlSource
from kprobe_exporter.labels import DECODERS

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))

TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "any": lambda _: True,
}
SILENT = {"$defs", "$schema", "default", "description", "examples", "title"}
"""Keywords that refuse no value."""

SCHEMA = json_schema()


def holds(schema: dict[str, Any], value: Any) -> bool:
    """Return whether a value matches a schema. Raise KeyError for a keyword that is not listed here."""
    return all(
        not TYPES[of](value) or test(rule, value)
        for rule, (of, test) in ((schema[word], RULES[word]) for word in schema.keys() - SILENT - OF_KEYS)
    ) and (not isinstance(value, dict) or _keys_hold(schema, value))


RULES: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "$ref": ("any", lambda rule, value: holds(SCHEMA["$defs"][rule.removeprefix("#/$defs/")], value)),
    "type": (
        "any",
        lambda rule, value: any(TYPES[one](value) for one in ([rule] if isinstance(rule, str) else rule)),
    ),
    "enum": ("any", lambda rule, value: value in rule),
    "const": ("any", lambda rule, value: bool(value == rule)),
    "anyOf": ("any", lambda rule, value: any(holds(one, value) for one in rule)),
    "oneOf": ("any", lambda rule, value: sum(holds(one, value) for one in rule) == 1),
    "not": ("any", lambda rule, value: not holds(rule, value)),
    "minimum": ("number", lambda rule, value: bool(value >= rule)),
    "maximum": ("number", lambda rule, value: bool(value <= rule)),
    "exclusiveMinimum": ("number", lambda rule, value: bool(value > rule)),
    "pattern": ("string", lambda rule, value: re.search(rule, value) is not None),
    "minLength": ("string", lambda rule, value: len(value) >= rule),
    "maxLength": ("string", lambda rule, value: len(value) <= rule),
    "items": ("array", lambda rule, value: all(holds(rule, item) for item in value)),
    "minItems": ("array", lambda rule, value: len(value) >= rule),
    "maxItems": ("array", lambda rule, value: len(value) <= rule),
    "required": ("object", lambda rule, value: value.keys() >= set(rule)),
    "maxProperties": ("object", lambda rule, value: len(value) <= rule),
}
OF_KEYS = {"properties", "patternProperties", "additionalProperties"}
"""Keywords that depend on each other."""


def _keys_hold(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    own, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    others = schema.get("additionalProperties", True)
    for key, item in value.items():
        rules = [own[key]] if key in own else [patterns[one] for one in patterns if re.search(one, key)]
        if not rules and isinstance(others, bool):
            if not others:
                return False
        elif not all(holds(rule, item) for rule in rules or [others]):
            return False
    return True


def ours(document: object) -> bool:
    """Return whether our models accept the document."""
    try:
        Document.model_validate(document, context={"decoders": DECODERS})
    except ValidationError:
        return False
    return True


def test_it_is_a_schema_of_the_document() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "kprobe_exporter configuration"
    assert set(schema["properties"]) == {"global", "lines", "otlp", "probes", "record", "time"}
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_every_key_is_described() -> None:
    def undescribed(name: str, part: dict[str, Any]) -> list[str]:
        keys = part.get("properties", {})
        return [f"{name}.{key}" for key in keys if not keys[key].get("description")]

    schema = json_schema()
    models = {"document": schema, **schema["$defs"]}
    found = [one for name, part in models.items() for one in undescribed(name, part)]
    assert found == ["BucketRule.linear", "BucketRule.exp2"]  # described by the models that they refer to


def test_its_example_is_valid() -> None:
    [example] = json_schema()["examples"]
    context = {"decoders": {"errno": lambda _: None}}
    assert Document.model_validate(example, context=context).probes[0].name == "open"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_it_takes_the_examples(file: Path) -> None:
    data = YamlSource(file.name, file.read_bytes()).data
    assert holds(SCHEMA, data)
    assert ours(data)


EVENT = "kprobe:f"
PAIR: dict[str, Any] = {"from": EVENT, "to": EVENT, "key": "tid"}
HALF: dict[str, Any] = {"to": EVENT, "fetch": {"n": "$arg1"}, "filter": "n > 1", "returns": "int"}


@pytest.mark.parametrize(
    ("attach", "right"),
    [
        ("call:f", True),
        (["syscall:openat", {"to": "ucall:/bin/x:f", "filter": "duration > 0.5"}], True),
        ({"pair": PAIR}, True),
        ([EVENT, {"pair": PAIR, "filter": "duration > 0.5", "fetch": None, "returns": "int"}], True),
        ({"pair": PAIR | {"key": ["tid", "cpu"], "from": [EVENT, HALF], "to": HALF}}, True),
        *(({"pair": PAIR | {"key": wrong}}, False) for wrong in ([], ["a"] * 9, 3)),
        ({"pair": PAIR | {"from": {"fetch": {}}}}, False),
        *(({"pair": PAIR | {"from": wrong}}, False) for wrong in ([], [EVENT] * 9, [3])),
        *(({"pair": PAIR | {"to": wrong}}, False) for wrong in ([EVENT], HALF | {"key": "tid"})),
        ({"pair": PAIR | {"begin": EVENT}}, False),
        ({"pair": {"begin": EVENT, "to": EVENT, "key": "tid"}}, False),
        *(({"pair": {key: PAIR[key] for key in PAIR if key != without}}, False) for without in PAIR),
        ({"pair": PAIR, "to": EVENT}, False),
        ({"pair": EVENT}, False),
        ({"fetch": {"n": "$arg1"}}, False),
        ([], False),
    ],
)
def test_it_tells_calls_and_pairs_as_we_do(attach: object, right: bool) -> None:
    document = {"probes": [{"name": "p", "attach": attach}]}
    assert (holds(SCHEMA, document), ours(document)) == (right, right)


@pytest.mark.parametrize(
    ("more", "right"),
    [
        ({"duration_buckets": [0.001, 1]}, True),
        ({"duration_buckets": {"exp2": {"min": 1e-6, "count": 20}}}, True),
        ({"duration_buckets": {"exp2": {"min": 0, "count": 20}}}, False),
        ({"duration_buckets": "1s"}, False),
        ({"duration_buckets": [[1]]}, False),
        ({"maxactive": 0}, False),
        ({"metrics": [{"histogram": "a_seconds", "value": "duration", "where": "duration > 0.5"}]}, True),
        ({"metrics": [{"histogram": "a_seconds", "counter": "a_total"}]}, False),
        ({"durations": [1]}, False),
    ],
)
def test_it_tells_the_keys_of_a_probe_as_we_do(more: dict[str, object], right: bool) -> None:
    document = {"probes": [{"name": "p", "attach": "call:f", **more}]}
    assert (holds(SCHEMA, document), ours(document)) == (right, right)


@pytest.mark.parametrize(
    ("export", "right"),
    [
        *((right, True) for right in ("log", "span", {"as": "span"})),
        ({"as": "log", "sample": 1, "max_per_second": 0.5, "where": "cpu == 1", "attributes": ["a"]}, True),
        *((wrong, False) for wrong in ("trace", True, ["log"], {}, {"signal": "log"})),
        *(({"as": "log", "sample": wrong}, False) for wrong in (0, 1.01)),
        *(({"as": "log", "attributes": wrong}, False) for wrong in ("a", ["a"] * 65)),
        *(({"as": "log", **wrong}, False) for wrong in ({"max_per_second": 0}, {"where": 3}, {"limit": 3})),
    ],
)
def test_it_tells_an_export_as_we_do(export: object, right: bool) -> None:
    document = {"probes": [{"name": "p", "attach": "kprobe:f", "export": export}]}
    assert (holds(SCHEMA, document), ours(document)) == (right, right)


@pytest.mark.parametrize(
    ("otlp", "right"),
    [
        ({}, True),
        ({"endpoint": "http://localhost:4318", "headers": {"x-scope": "a"}, "queue": 1}, True),
        ({"timeout": "500ms", "compression": "none", "protocol": "grpc", "max_per_second": 0.5}, True),
        ({"timeout": 10, "certificate": "/ca.pem", "metrics": {}}, True),
        ({"metrics": {"interval": "1m"}}, True),
        *((wrong, False) for wrong in (None, "http://localhost:4318", {"endpoint": 4318})),
        *((wrong, False) for wrong in ({"protocol": "http"}, {"compression": "zstd"}, {"certificate": ""})),
        *(({"headers": wrong}, False) for wrong in ({"a": 3}, ["a: b"])),
        ({"timeout": "soon"}, False),
        ({"timeout": []}, False),
        *(({"queue": wrong}, False) for wrong in (0, "10")),
        *((wrong, False) for wrong in ({"max_per_second": 0}, {"insecure": True})),
        *(({"metrics": wrong}, False) for wrong in ("60s", {"interval": "often"}, {"every": "60s"})),
    ],
)
def test_it_tells_otlp_as_we_do(otlp: object, right: bool) -> None:
    document = {"otlp": otlp, "probes": []}
    assert (holds(SCHEMA, document), ours(document)) == (right, right)


@pytest.mark.parametrize("key", ["endpoint", "protocol", "timeout", "compression", "certificate"])
def test_it_lets_variables_stand(key: str) -> None:
    assert holds(SCHEMA, {"otlp": {key: "${A}", "headers": {"a": "${A}"}, "metrics": {"interval": "${A}"}}})
