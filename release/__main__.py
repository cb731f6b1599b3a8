"""`python -m release COMMAND`, which `make dist` and `make packages` call."""

import argparse
import sys
from pathlib import Path

from release import deb, payload, rpm, wheels
from release.targets import ROOT, TARGETS, ReleaseError

SUMMARIES = {
    "wheels": "the sdist and the wheels",
    "packages": "the sdist, the wheels, and the Debian and RPM packages",
}


def build(command: str, into: Path) -> list[Path]:
    """Build what a command names, and return the files."""
    files = wheels.build(into)
    if command == "packages":
        for target, wheel in zip(TARGETS, files[1:], strict=True):
            with payload.staged(target, wheel) as staged:
                for package_format in (deb, rpm):
                    package = package_format.build(staged, into)
                    package_format.judge(package)
                    files.append(package)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release", description=sys.modules["release"].__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIRECTORY")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in SUMMARIES.items():
        commands.add_parser(name, help=summary)
    arguments = parser.parse_args()
    try:
        for file in build(arguments.command, arguments.output):
            print(f"{file.stat().st_size:>12,}  {file}")
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
