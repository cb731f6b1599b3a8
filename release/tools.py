"""The Python packages that build and judge, in a virtual environment of their own below build/release."""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from release.sources import epoch
from release.targets import BUILD, ROOT, ReleaseError

LOCK = ROOT / "deploy/requirements/release.txt"


def environment() -> Path:
    """Make the virtual environment, again if the lock file or this Python changed; return its directory."""
    BUILD.mkdir(parents=True, exist_ok=True)
    identity = hashlib.sha256(LOCK.read_bytes() + sys.version.encode() + str(BUILD).encode()).hexdigest()[:12]
    directory = BUILD / f"tools-{identity}"
    with (BUILD / "tools.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            run(sys.executable, "-m", "venv", "--clear", directory)
            pip = (directory / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check")
            run(*pip, "install", "--require-hashes", "--only-binary=:all:", "--requirement", LOCK)
            (directory / "complete").touch()
    return directory


def tool(module: str, *arguments: str | Path, cwd: Path = ROOT, also: Mapping[str, str] | None = None) -> str:
    """Run a module of the tools, and return what it printed."""
    return run(environment() / "bin/python", "-m", module, *arguments, cwd=cwd, also=also)


def run(*command: str | Path, cwd: Path = ROOT, also: Mapping[str, str] | None = None) -> str:
    """Run a command in a fixed environment with ``also`` added; return its standard output.

    Raises ReleaseError with all its output if it fails.
    """
    variables = {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(epoch()),
        **(also or {}),
    }
    variables.pop("PYTHONPATH", None)
    # A shell of the builder may have another umask, and the modes of files are part of an archive.
    done = subprocess.run(
        command,
        cwd=cwd,
        env=variables,
        umask=0o022,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = " ".join(str(word) for word in command)
        raise ReleaseError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
