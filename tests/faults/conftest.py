"""Options of the fault tests."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=3, help="that the soak takes")
    parser.addoption("--every", type=int, default=6, help="change after which an agent is killed; 1 for all")
    parser.addoption("--figures", type=Path, help="where the soak writes what it measured, as JSON")
