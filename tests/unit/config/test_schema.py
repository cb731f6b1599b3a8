"""config.schema: the JSON Schema that editors read."""

import json
from typing import Any

from kprobe_exporter.config.schema import Document, json_schema


def test_it_is_a_schema_of_the_document() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "kprobe_exporter configuration"
    assert set(schema["properties"]) == {"global", "probes"}
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_every_key_is_described() -> None:
    def undescribed(name: str, part: dict[str, Any]) -> list[str]:
        keys = part.get("properties", {})
        return [f"{name}.{key}" for key in keys if not keys[key].get("description")]

    schema = json_schema()
    models = {"document": schema, **schema["$defs"]}
    found = [one for name, part in models.items() for one in undescribed(name, part)]
    assert found == ["BucketRule.linear", "BucketRule.exp2"]  # theirs are those of the models


def test_its_example_is_valid() -> None:
    [example] = json_schema()["examples"]
    context = {"decoders": {"errno": lambda _: None}}
    assert Document.model_validate(example, context=context).probes[0].name == "open"
