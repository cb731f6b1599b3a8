"""Settings of all unit tests: which are slow, and how many examples hypothesis draws.

Examples have no deadline, since other load may delay them.
"""

import pytest
from hypothesis import settings

from tests.unit.slow import SLOW

settings.register_profile("no_deadline", settings(), deadline=None)
settings.register_profile("quick", settings(), deadline=None, max_examples=10)
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
