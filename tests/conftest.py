"""What every suite shares: the marker `needs`.

`@pytest.mark.needs("kprobe_events")` skips a test where the kernel has no such file below its
tracefs, and no such word in its README. The harness (tests/vm) knows what each kernel under test
lacks: any other skip there is a failure.
"""

from pathlib import Path

import pytest

TRACEFS = Path("/sys/kernel/tracing")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for feature in marker.args:
            if not has(feature):
                pytest.skip(f"needs {feature}")


def has(feature: str) -> bool:
    """Whether this machine's tracefs has the file, or names the word in its README."""
    readme = TRACEFS / "README"
    return (TRACEFS / feature).exists() or (readme.exists() and feature in readme.read_text())
