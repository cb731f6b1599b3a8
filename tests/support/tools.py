"""Programs that a test needs on this machine, and root."""

import os
import shutil
from collections.abc import Iterable

import pytest


def needs_tools(tools: Iterable[str], path: str, without_root: str, command: str) -> None:
    """Skip a test if one of the tools is not on ``path``, or without root; under CI it fails instead.

    ``without_root`` is the clause that says why root is needed; ``command`` installs the tools.
    """
    missing = [tool for tool in tools if not shutil.which(tool, path=path)]
    why = f"missing: {', '.join(missing)}" if missing else ""
    if os.geteuid() != 0:
        why = without_root
    if why and os.environ.get("CI"):
        pytest.fail(why)
    if why:
        pytest.skip(f"{why}; `{command}` installs what is needed")
