"""Modules that a command does not import at its start: other commands or rare settings need them."""

import subprocess
import sys
from functools import cache

import pytest

SHOWN = """
import sys
from kprobe_exporter.cli import main
main.get_command(None, {!r})
print(*sys.modules)
"""

SELDOM = ("opentelemetry", "google.protobuf", "grpc", "requests", "bcrypt", "re2", "hypothesis")
SERVER = ("h11", "asyncio", "prometheus_client", "kprobe_exporter.web")
CONFIGURATION = ("pydantic", "yaml", "kprobe_exporter.config.schema")

UNUSED = {
    "run": (
        *SELDOM,
        "kprobe_exporter.diagnose",
        "kprobe_exporter.export.otlp",
        "kprobe_exporter.replay",
        "kprobe_exporter.trace",
    ),
    "check": (*SELDOM, *SERVER, "kprobe_exporter.agent", "kprobe_exporter.trace"),
    "doctor": (*SELDOM, *SERVER, *CONFIGURATION, "kprobe_exporter.trace"),
    "list": (*SELDOM, *SERVER, *CONFIGURATION, "kprobe_exporter.agent", "kprobe_exporter.source"),
    "trace": (*SELDOM, *SERVER, *CONFIGURATION, "kprobe_exporter.agent", "kprobe_exporter.diagnose"),
}
"""A command to the modules that it does not need until it knows its arguments."""


@cache
def imported(command: str) -> frozenset[str]:
    """Return the modules of a process that is about to run the command."""
    script = [sys.executable, "-c", SHOWN.format(command)]
    return frozenset(subprocess.run(script, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in UNUSED for name in UNUSED[command]]
)
def test_a_start_needs_no(command: str, name: str) -> None:
    assert [module for module in imported(command) if module == name or module.startswith(f"{name}.")] == []


@pytest.mark.parametrize("command", UNUSED)
def test_it_has_imported_the_command(command: str) -> None:
    assert f"kprobe_exporter.cli.{command}" in imported(command)
