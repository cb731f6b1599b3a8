"""The Debian package: one for all Debians whose Python is among ``dependencies.PYTHONS``."""

import re
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from release import payload, tools
from release.dependencies import PYTHONS
from release.sources import epoch, normalize
from release.targets import BUILD, ReleaseError, Target

NAME = "kprobe-exporter"
MAINTAINER = "The kprobe_exporter authors <noreply@kprobe-exporter.invalid>"
DEPENDS = "init-system-helpers (>= 1.54~), libc6 (>= 2.28), libstdc++6"

CONTROL = """\
Package: {name}
Version: {version}
Section: net
Priority: optional
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {size}
Depends: {depends}
Description: Linux kprobes, through tracefs, as Prometheus metrics
 An agent that installs kprobes, uprobes and tracepoints named in a YAML file,
 and serves their hits, return values, errors and durations to Prometheus. It
 can send single events to OpenTelemetry. It brings its dependencies with it.
"""


def build(target: Target, wheel: Path, into: Path, pythons: Sequence[str] = PYTHONS) -> Path:
    """Build the package for a processor and these Pythons from the agent's wheel, and return its file."""
    into.mkdir(parents=True, exist_ok=True)
    version = payload.version()
    package = into / f"{NAME}_{version}_{target.debian}.deb"
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="deb-") as name:
        tree = Path(name) / "tree"
        payload.lay_out(target, wheel, tree, pythons)
        overrides = tree / "usr/share/lintian/overrides" / NAME
        overrides.parent.mkdir(parents=True)
        shutil.copy(payload.PACKAGE / "lintian-overrides", overrides)
        changelog = Path(name) / "changelog"
        changelog.write_text(_changelog(version))
        payload.compress(changelog, tree / payload.DOCUMENTATION / "changelog.Debian.gz")
        _control(target, version, tree, pythons)
        normalize(tree)
        options = ("--root-owner-group", "--threads-max=1", "-Zxz", "-z1")
        tools.run("dpkg-deb", *options, "--build", tree, package)
    return package


def judge(package: Path) -> None:
    """Ask lintian for its verdict; raises ReleaseError if it finds an error."""
    tools.run("lintian", "--fail-on=error", "--allow-root", package)


def _control(target: Target, version: str, tree: Path, pythons: Sequence[str]) -> None:
    control = tree / "DEBIAN"
    control.mkdir()
    major, minor = pythons[-1].split(".")
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    (control / "control").write_text(
        CONTROL.format(
            name=NAME,
            version=version,
            architecture=target.debian,
            maintainer=MAINTAINER,
            size=size,
            depends=f"python3 (>= {pythons[0]}), python3 (<< {major}.{int(minor) + 1}~), {DEPENDS}",
        )
    )
    (control / "conffiles").write_text("".join(f"/{name}\n" for name in payload.CONFIGURATION))
    for script in ("postinst", "prerm", "postrm"):
        shutil.copy(payload.PACKAGE / script, control)


def _changelog(version: str) -> str:
    """The changelog in Debian's format, which refers to the project's own beside it."""
    if not re.match(r"\d", version):
        raise ReleaseError(f"Debian has no version such as {version!r}: it begins with a digit")
    when = format_datetime(datetime.fromtimestamp(epoch(), UTC))
    entry = f"{NAME} ({version}) unstable; urgency=medium\n\n  * The changes are in changelog.gz.\n"
    return f"{entry}\n -- {MAINTAINER}  {when}\n"
