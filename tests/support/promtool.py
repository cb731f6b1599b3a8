"""What promtool says about metrics."""

import subprocess

from tests.support.patience import patience


def check_metrics(promtool: str, text: bytes) -> None:
    """Assert that promtool accepts these metrics, and says nothing about them."""
    command = [promtool, "check", "metrics"]
    check = subprocess.run(command, input=text, capture_output=True, check=False, timeout=patience(30))
    assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")
