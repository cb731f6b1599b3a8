"""npm packages below build/, in the versions of a lock file; nothing is installed system-wide."""

import fcntl
import filecmp
import shutil
import subprocess
from pathlib import Path

from tests.vm.debian import PackageError

BUILD = Path(__file__).parents[2] / "build"
QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


def install(source: Path) -> Path:
    """Return build/NAME with the packages that ``source``, the directory tests/NAME, lists; fetched once.

    Raises PackageError.
    """
    installed = BUILD / source.name
    installed.mkdir(parents=True, exist_ok=True)
    with installed.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_installed(source):
            print(f"== npm packages into {installed.relative_to(BUILD.parent)}", flush=True)
            (installed / "complete").unlink(missing_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(source / name, installed / name)
            shutil.rmtree(installed / "node_modules", ignore_errors=True)
            try:
                subprocess.run(["npm", "ci", *QUIET], cwd=installed, stdin=subprocess.DEVNULL, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise PackageError(f"npm cannot install {source.name}: {error}") from None
            (installed / "complete").touch()
    return installed


def is_installed(source: Path) -> bool:
    """Whether these packages are installed in the versions of the lock file."""
    installed = BUILD / source.name
    lock = "package-lock.json"
    return (installed / "complete").exists() and filecmp.cmp(source / lock, installed / lock, shallow=False)
