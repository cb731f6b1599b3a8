"""`python -m release COMMAND`, which `make dist` calls."""

import argparse
import sys
from pathlib import Path

from release import wheels
from release.targets import ROOT, ReleaseError

SUMMARIES = {"wheels": "the sdist and the wheels"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release", description=sys.modules["release"].__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIRECTORY")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in SUMMARIES.items():
        commands.add_parser(name, help=summary)
    arguments = parser.parse_args()
    try:
        for file in wheels.build(arguments.output):
            print(f"{file.stat().st_size:>12,}  {file}")
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
