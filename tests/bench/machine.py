"""The machine that a table was measured on."""

import os
import platform
import time
from pathlib import Path


def conditions() -> str:
    """Date, kernel, processor and Python, in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = f"{next(names, platform.machine())}, {os.cpu_count()} CPUs"
    python = f"Python {platform.python_version()}"
    return f"{time.strftime('%Y-%m-%d')}, Linux {platform.release()}, {processor}, {python}:"
