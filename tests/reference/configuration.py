"""docs/configuration.md: a table for each mapping of the configuration's JSON Schema."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from kprobe_exporter.agent import overhead
from kprobe_exporter.agent.rate_limit import firings
from kprobe_exporter.config.fields import CPU_SHARE, DURATION, PATTERNS
from kprobe_exporter.config.model import PROBE_LIMIT
from kprobe_exporter.config.schema import json_schema
from tests.reference.markdown import Template, anchor, code, table

Schema: TypeAlias = Mapping[str, Any]

FIRING = "Firing"
FIRING_HEAD = ("kind", "a firing", "a second at 1 % on 2 CPUs", "on 64 CPUs")
COSTS: Mapping[str, float] = {
    "a kprobe that is only counted": overhead.COUNTED,
    "`tracepoint`": overhead.TRACEPOINT,
    "`kprobe`, `fentry`": overhead.KPROBE,
    "`kretprobe`": overhead.KRETPROBE,
    "`fexit`": overhead.FEXIT,
    "`uprobe`, `usdt`": overhead.UPROBE,
    "`uretprobe`": overhead.URETPROBE,
    "a stack of six functions, on top of it": overhead.STACK,
}

FILE = "File"
"""The configuration file as a whole; the other mappings have the schema's names."""


def document() -> str:
    """The whole text. Raises ValueError for a mapping of the schema that nothing is said of."""
    return _Reference(json_schema(), Template("configuration.md")).document()


class _Reference:
    def __init__(self, schema: Schema, template: Template) -> None:
        self._mappings: dict[str, Schema] = {FILE: schema, **schema["$defs"]}
        self._template = template
        self._headings = template.headings()

    def document(self) -> str:
        head = ("key", "type", "default", "meaning")
        return self._template.filled(
            {name: table(head, self._rows(mapping)) for name, mapping in self._mappings.items()}
            | {FIRING: table(FIRING_HEAD, _firings())}
        )

    def _rows(self, mapping: Schema) -> Iterator[tuple[str, str, str, str]]:
        required = mapping.get("required", ())
        for key, schema in mapping["properties"].items():
            types = self._types(schema)
            default = "*required*" if key in required else _default(schema.get("default"), types)
            yield code(key), "; ".join(types), default, self._meaning(schema)

    def _meaning(self, schema: Schema) -> str:
        """What is said of the key, or else of the mapping that it holds."""
        if "description" in schema:
            return str(schema["description"])
        (mapping,) = (branch["$ref"] for branch in _branches(schema) if "$ref" in branch)
        return str(self._mappings[_name(mapping)]["description"])

    def _types(self, schema: Schema) -> list[str]:
        """Each of the forms that a value may have, in words."""
        return list(dict.fromkeys(filter(None, map(self._type, _branches(schema)))))

    def _type(self, schema: Schema) -> str:
        """One form; "" for the ``${NAME}`` that may stand in every text of ``otlp``."""
        if "$ref" in schema:
            # A mapping without a place is told of by the template.
            return f"[mapping](#{anchor(self._headings.get(_name(schema['$ref']), ''))})"
        if "const" in schema or "enum" in schema:
            return ", ".join(map(code, schema.get("enum") or [schema["const"]]))
        if "items" in schema:
            most = f", up to {schema['maxItems']}" if "maxItems" in schema else ""
            return f"list of {' or '.join(map(_in_a_list, self._types(schema['items'])))}{most}"
        if "patternProperties" in schema:
            ((_, value),) = schema["patternProperties"].items()
            return f"mapping of NAME to {' or '.join(self._types(value))}"
        return _scalar(schema)


def _firings() -> Iterator[tuple[str, str, str, str]]:
    """What a firing of each kind is estimated to cost, and the default limit that this comes to."""
    for kind, cost in COSTS.items():
        few, many = (f"{firings(PROBE_LIMIT.share, cost, cpus) or 0:,.0f}" for cpus in (2, 64))
        yield kind, f"{cost * 1e6:.2g} µs", few, many


def _branches(schema: Schema) -> list[Schema]:
    """The forms that a value may have. That of null is none: it says that the key may be left out."""
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return [one for branch in schema[several] for one in _branches(branch)]
    return [] if schema.get("type") == "null" else [schema]


def _scalar(schema: Schema) -> str:
    pattern = schema.get("pattern", "")
    match schema["type"]:
        case ["integer", "string"] if "MiB" in pattern:
            return "size"
        case ["number", "string"] if pattern == DURATION:
            return "duration"
        case "string" if pattern == CPU_SHARE:
            return "share, as `1%`"
        case "string" if pattern:
            return f"text, {PATTERNS[pattern]}" if pattern in PATTERNS else ""
        case "integer" | "number" as kind:
            return _range(kind, schema)
        case str(kind) if kind in WORDS:
            return WORDS[kind]
    raise ValueError(f"no words for {json.dumps(schema)}")


WORDS = {"string": "text", "boolean": "`true`, `false`", "object": "`{NAME: OPTIONS}`"}


def _in_a_list(text: str) -> str:
    """In the plural. What a name may look like is told where it is defined."""
    plurals = {"text": "texts", "number": "numbers", "[mapping]": "[mappings]"}
    if text.startswith("text, "):
        return "names"
    start = text.partition("(")[0]
    return text.replace(start, plurals.get(start, start))


def _range(kind: str, schema: Schema) -> str:
    words = [kind]
    for key, word in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "up to")):
        if key in schema:
            value = schema[key]
            words.append(f"{word} {int(value):,}" if value < 1e10 else f"{word} {value:g}")
    return " ".join(words)


def _default(value: object, types: list[str]) -> str:
    match value:
        case None | "":
            return ""
        case bool():
            text = str(value).lower()
        case dict():
            text = "{" + ", ".join(f"{key}: {one}" for key, one in value.items() if one is not None) + "}"
        case int() if types == ["size"]:
            text = f"{value >> 20}MiB"
        case float() if types == ["duration"]:
            text = f"{value / 60:g}m" if value > 60 else f"{value:g}s"
        case float():
            text = f"{value:g}"
        case _:
            text = str(value)
    return code(text)


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
