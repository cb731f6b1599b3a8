"""cli.schema: what it prints is the JSON Schema."""

import json

from click.testing import CliRunner

from kprobe_exporter.cli import main
from kprobe_exporter.config.schema import json_schema


def test_schema() -> None:
    result = CliRunner().invoke(main, ["schema"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema()
