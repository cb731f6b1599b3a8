"""The files that a package installs, laid out below a directory, and what all formats say about it."""

import gzip
import os
import shutil
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from release import dependencies
from release.sources import normalize
from release.targets import BUILD, ROOT, ReleaseError, Target

NAME = "kprobe-exporter"
MAINTAINER = "The kprobe_exporter authors <noreply@kprobe-exporter.invalid>"
SUMMARY = "Linux kprobes, through tracefs, as Prometheus metrics"
DESCRIPTION = """\
An agent that installs kprobes, uprobes and tracepoints named in a YAML file,
and serves their hits, return values, errors and durations to Prometheus. It
can send single events to OpenTelemetry. It brings its dependencies with it."""

PACKAGE = ROOT / "deploy/package"
HOME = "opt/kprobe_exporter"
DOCUMENTATION = "usr/share/doc/kprobe-exporter"
CONFIGURATION = ("etc/default/kprobe_exporter", "etc/kprobe_exporter/probes.yaml")
"""The files that belong to the administrator once they are installed."""

FILES = {
    "deploy/package/kprobe-exporter": f"{HOME}/bin/kprobe-exporter",
    "deploy/requirements/sbom.cdx.json": f"{HOME}/sbom.cdx.json",
    "deploy/systemd/kprobe_exporter.service": "usr/lib/systemd/system/kprobe_exporter.service",
    "deploy/systemd/kprobe_exporter.socket": "usr/lib/systemd/system/kprobe_exporter.socket",
    "deploy/systemd/kprobe_exporter.default": CONFIGURATION[0],
    "kprobe_exporter/config/default.yaml": CONFIGURATION[1],
    "deploy/package/completion.bash": "usr/share/bash-completion/completions/kprobe-exporter",
    "deploy/package/completion.fish": "usr/share/fish/vendor_completions.d/kprobe-exporter.fish",
    "deploy/package/completion.zsh": "usr/share/zsh/vendor-completions/_kprobe-exporter",
    "deploy/package/copyright": f"{DOCUMENTATION}/copyright",
}

VARYING = ("RECORD", "WHEEL")
"""Files of a .dist-info that differ between the wheels of one package, and that only pip reads."""


@dataclass(frozen=True)
class Payload:
    """What the packages for one processor are made of: their files below ``tree``."""

    target: Target
    pythons: Sequence[str]
    tree: Path

    @property
    def after_newest(self) -> str:
        """The first Python that the modules are not for."""
        major, minor = self.pythons[-1].split(".")
        return f"{major}.{int(minor) + 1}"

    def copy(self, into: Path) -> None:
        """Copy the files to a new directory, as hard links."""
        shutil.copytree(self.tree, into, symlinks=True, copy_function=os.link)


@contextmanager
def staged(target: Target, wheel: Path, pythons: Sequence[str] = dependencies.PYTHONS) -> Iterator[Payload]:
    """Lay out the files of a processor's packages, with the agent from its wheel, until the block ends."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="payload-") as name:
        lay_out(target, wheel, Path(name), pythons)
        yield Payload(target, pythons, Path(name))


def version() -> str:
    """The version in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    return str(tomllib.loads(text)["project"]["version"])


def lay_out(target: Target, wheel: Path, tree: Path, pythons: Sequence[str]) -> None:
    """Lay out all files below the directory ``tree``, with the agent from its wheel, for these Pythons."""
    install_modules(target, wheel, tree / HOME / "lib", pythons)
    for source, place in FILES.items():
        (tree / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, tree / place)
    compress(ROOT / "CHANGELOG.md", tree / DOCUMENTATION / "changelog.gz")
    compress(PACKAGE / "kprobe-exporter.1", tree / "usr/share/man/man1/kprobe-exporter.1.gz")
    command = tree / "usr/bin/kprobe-exporter"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.symlink_to("/opt/kprobe_exporter/bin/kprobe-exporter")
    normalize(tree)


def install_modules(target: Target, wheel: Path, lib: Path, pythons: Sequence[str]) -> None:
    """Unpack a wheel and the locked dependencies for several Pythons into one directory.

    The names of compiled modules contain the Python they are for. All other files must be the same for each
    Python; raises ReleaseError if one is not.
    """
    found = {wheel.name: wheel}
    for python in pythons:
        found.update({file.name: file for file in sorted(dependencies.wheels(python, target).iterdir())})
    for file in found.values():
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                directory, _, name = entry.filename.rpartition("/")
                if entry.is_dir() or (directory.endswith(".dist-info") and name in VARYING):
                    continue
                if directory.endswith(".data/scripts"):
                    continue  # a dependency's own commands
                if ".data/" in entry.filename:
                    raise ReleaseError(f"{file.name} installs {entry.filename} outside of the modules")
                place, content = lib / entry.filename, archive.read(entry)
                if place.exists() and place.read_bytes() != content:
                    if directory.endswith(".dist-info/sboms"):
                        continue  # it has the time of the build
                    raise ReleaseError(
                        f"{entry.filename} of {file.name} differs from that for another Python"
                    )
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)


def compress(source: Path, place: Path) -> None:
    """Write a file with gzip, without a time or a name in the header."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as compressed:
        compressed.write(source.read_bytes())
