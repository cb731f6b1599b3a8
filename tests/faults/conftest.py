"""Options of the fault tests, and in a VM the fixture by which agents read kernel data once."""

import os
from pathlib import Path

import pytest

if "KPROBE_EXPORTER_VM" in os.environ:
    from tests.kernel.conftest import kernel_read_once, tracefs  # noqa: F401


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=0.5, help="that the soak takes")
    parser.addoption("--every", type=int, default=12, help="change after which an agent is killed; 1 for all")
    parser.addoption("--figures", type=Path, help="where the soak writes what it measured, as JSON")
