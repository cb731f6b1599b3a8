"""Modules that `run` does not import, because only other commands or rare settings need them."""

import subprocess
import sys

import pytest

SHOWN = """
import sys
from kprobe_exporter.cli import main
main.get_command(None, 'run')
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def imported() -> frozenset[str]:
    """The modules of a process that is about to start the agent."""
    done = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True)
    return frozenset(done.stdout.split())


@pytest.mark.parametrize(
    "name",
    [
        "opentelemetry",
        "google.protobuf",
        "grpc",
        "requests",
        "bcrypt",
        "re2",
        "hypothesis",
        "kprobe_exporter.diagnose",
        "kprobe_exporter.export.otlp",
        "kprobe_exporter.replay",
        "kprobe_exporter.trace",
    ],
)
def test_a_start_needs_no(imported: frozenset[str], name: str) -> None:
    assert [module for module in imported if module == name or module.startswith(f"{name}.")] == []


def test_it_has_imported_the_agent(imported: frozenset[str]) -> None:
    assert "kprobe_exporter.cli.run" in imported
