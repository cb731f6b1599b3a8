"""Settings of all unit tests: which are slow, and how many examples hypothesis draws.

Examples have no deadline, since other load may delay them.
"""

import pytest
from hypothesis import HealthCheck, settings

from tests.unit.slow import SLOW

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine must not make a test fail."""
settings.register_profile("no_deadline", UNTIMED)
settings.register_profile("quick", UNTIMED, max_examples=10)
settings.load_profile("no_deadline")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [item for item in items if item.nodeid.partition("[")[0] in SLOW]
    for item in slow:
        item.add_marker(pytest.mark.slow)
    if share := config.getoption("--slow-share"):
        first, every = map(int, share.split("/"))
        left_out = set(slow) - set(slow[first::every])
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
