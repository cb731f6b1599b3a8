"""The locked packages that the agent needs, as wheels for any Python and processor."""

import fcntl
import hashlib
import shutil
from pathlib import Path

from release import tools
from release.targets import BUILD, ROOT, Target

LOCK = ROOT / "deploy/requirements/runtime.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""From the oldest that the agent supports to the newest of Debian."""

NEWEST_GLIBC = 28
"""The dependencies' wheels need glibc 2.28 at most, which is older than that of Debian 11."""


def wheels(python: str, target: Target) -> Path:
    """Download the wheels once, checked against the hashes of the lock file; return their directory."""
    key = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    house = BUILD / f"wheels-{key}/{target.machine}-{python}"
    house.parent.mkdir(parents=True, exist_ok=True)
    with house.with_suffix(f"{house.suffix}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if house.exists():
            return house
        partial = house.with_suffix(f"{house.suffix}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        platforms = [f"manylinux_2_{minor}_{target.machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
        platforms.append(f"manylinux2014_{target.machine}")
        tools.tool(
            *("pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--only-binary=:all:", "--implementation=cp"),
            *(f"--platform={platform}" for platform in platforms),
            *(f"--python-version={python}", "--dest", partial, "--requirement", LOCK),
        )
        partial.rename(house)
    return house
