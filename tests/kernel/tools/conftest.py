"""The loads know their threads by ids of their own PID namespace, and the tools show those of the host."""

from pathlib import Path

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.is_relative_to(Path(__file__).parent):
        item.add_marker(pytest.mark.needs("initial_pid_namespace"))
