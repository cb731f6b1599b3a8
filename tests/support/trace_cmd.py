"""What trace-cmd reads in a trace.dat."""

import subprocess
from pathlib import Path


def report(file: Path, *options: str) -> list[str]:
    """The lines of ``trace-cmd report``."""
    command = ["trace-cmd", "report", *options, str(file)]
    found = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
    return found.stdout.splitlines()
