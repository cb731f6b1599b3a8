"""`python -m release COMMAND`, which `make dist`, `make packages`, `make image` and `make release` call."""

import argparse
import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from release import deb, images, payload, rpm, version, wheels
from release.targets import ROOT, TARGETS, ReleaseError, own_target

SUMMARIES = {
    "wheels": "the sdist and the wheels",
    "deb": "the sdist, and this processor's wheel and Debian package, which lintian does not judge",
    "packages": "the sdist, the wheels, and the Debian and RPM packages",
    "image": "the sdist, the wheels, and the image for both processors, as an OCI archive",
    "release": "all of a version, with SBOM and checksums, and its tag; nothing is published",
}
SUMS = "SHA256SUMS"


def build(command: str, into: Path, base: str = "") -> list[Path]:
    """Build what a command names, an image over ``base`` or else the Dockerfile's; return the files."""
    if command == "deb":
        target = own_target()
        source, wheel = wheels.build(into, [target])
        with payload.staged(target, wheel) as staged:
            return [source, wheel, deb.build(staged, into)]
    files = wheels.build(into)
    built = files[1:]
    if command in ("packages", "release"):
        for target, wheel in zip(TARGETS, built, strict=True):
            with payload.staged(target, wheel) as staged:
                for package_format in (deb, rpm):
                    package = package_format.build(staged, into)
                    package_format.judge(package)
                    files.append(package)
    if command in ("image", "release"):
        files.append(images.build(built, into, base or images.public_base()))
    return files


def release(number: str, into: Path, base: str = "") -> list[Path]:
    """Check a version, build everything of it, and tag its commit once that is there.

    Raises ReleaseError, before anything is built, if the version is not ready.
    """
    version.check(number)
    if into.exists() and any(into.iterdir()):
        raise ReleaseError(f"{into} is not empty: what a release consists of is all that may be there.")
    files = build("release", into, base)
    files.append(into / f"kprobe_exporter-{number}.cdx.json")
    shutil.copyfile(ROOT / "deploy/requirements/sbom.cdx.json", files[-1])
    files.append(checksums(files))
    name = version.tag(number)
    print(f"tagged {name}; to publish it: git push origin {name}, and upload these files", file=sys.stderr)
    return files


def checksums(files: Sequence[Path]) -> Path:
    """Write the files' checksums beside them, as sha256sum(1) checks them."""
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(files, key=lambda file: file.name)
    ]
    sums = files[0].with_name(SUMS)
    sums.write_text("".join(lines))
    return sums


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release", description=sys.modules["release"].__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIRECTORY")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in SUMMARIES.items():
        command = commands.add_parser(name, help=summary)
        if name in ("image", "release"):
            command.add_argument("--base", default="", help="an index of images, instead of the Dockerfile's")
        if name == "release":
            command.add_argument("version", help="the number, such as 1.2.3")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "release":
            files = release(arguments.version, arguments.output, arguments.base)
        else:
            files = build(arguments.command, arguments.output, getattr(arguments, "base", ""))
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
