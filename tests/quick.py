"""Runs the unit tests of the files that differ from the last commit: `make quick`.

A module's tests are in the file of the same name in the mirrored directory. Without such a file, they are the
tests in that directory, and below it, that name the module. A test file that changed is run itself.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNIT = "tests/unit"


def changed() -> list[str]:
    """Return the paths below the repository that git does not know, or knows with other contents."""
    commands = (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    texts = [
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    return sorted(set("".join(texts).split()))


def choose(paths: Iterable[str], root: Path) -> list[str]:
    """Return the unit test files that belong to changed paths, each once."""
    found = (str(file) for path in paths for file in _tests(Path(path), root))
    return sorted(set(found))


def _tests(path: Path, root: Path) -> Iterator[Path]:
    if path.suffix == ".py" and path.is_relative_to(UNIT):
        if path.name.startswith("test_") and (root / path).exists():
            yield path
    elif path.parts[0] == "kprobe_exporter":
        mirrored = Path(UNIT, *path.parent.parts[1:])
        named = mirrored / f"test_{path.stem.strip('_')}.py"
        if (root / named).exists():
            yield named
        else:
            module = ".".join(path.with_suffix("").parts)
            for test in (root / mirrored).rglob("test_*.py"):
                if module in test.read_text():
                    yield test.relative_to(root)


def main() -> int:
    """Run the tests. Return pytest's exit status, or 0 if there is nothing to run."""
    if not (files := choose(changed(), ROOT)):
        print("no unit test belongs to a changed file")
        return 0
    options = ["-q", "-m", "not slow", "--hypothesis-profile=quick"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
