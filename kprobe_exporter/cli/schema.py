"""``schema``: prints the JSON Schema of the configuration, for editors and linters."""

import json

import click

from kprobe_exporter.config.schema import json_schema
from kprobe_exporter.tools.tool_model import tool_schema


@click.command(
    epilog="""\b
Examples:
  kprobe-exporter schema > kprobe_exporter.schema.json
  kprobe-exporter schema | jq '."$defs".ProbeModel.properties | keys'
  # the first line of a configuration, for editors with the YAML language server:
  # yaml-language-server: $schema=kprobe_exporter.schema.json
""",
)
@click.option("--tool", is_flag=True, help="That of a terminal tool's file instead.")
def schema(tool: bool) -> None:
    """Print the JSON Schema of the configuration.

    Editors complete and check by it while you write; 'check' knows more, such as which fields
    there are.
    """
    click.echo(json.dumps(tool_schema() if tool else json_schema(), indent=2, ensure_ascii=False))
