"""The machine that a table was measured on, and the commit that was measured."""

import os
import platform
import subprocess
import time
from pathlib import Path

from tests.vm import ROOT

WRITTEN = "docs/benchmarks.md"
"""A run writes it after each table, so it does not count as a change of what is measured."""


def conditions(commit: str) -> str:
    """Date, commit, kernel, processor and Python, in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = f"{next(names, platform.machine())}, {os.cpu_count()} CPUs"
    python = f"Python {platform.python_version()}"
    return f"{time.strftime('%Y-%m-%d')}, {commit}, Linux {platform.release()}, {processor}, {python}:"


def revision(root: Path = ROOT) -> str:
    """The commit that is checked out, and whether files differ from it.

    Raises subprocess.CalledProcessError where there is no git repository.
    """
    commit = _git(root, "rev-parse", "--short=9", "HEAD").strip()
    changed = _git(root, "status", "--porcelain", "--", ".", f":!{WRITTEN}")
    return f"commit {commit} with uncommitted changes" if changed else f"commit {commit}"


def _git(root: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout
