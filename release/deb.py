"""The Debian package: one for all Debians whose Python is among ``dependencies.PYTHONS``."""

import re
import shutil
import tempfile
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from release import payload, tools
from release.payload import MAINTAINER, NAME, Payload
from release.sources import epoch, normalize
from release.targets import BUILD, ReleaseError

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
Description: {summary}
 {description}
"""


def build(files: Payload, into: Path) -> Path:
    """Build the package for a processor, and return its file."""
    into.mkdir(parents=True, exist_ok=True)
    version = payload.version()
    package = into / f"{NAME}_{version}_{files.target.debian}.deb"
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="deb-") as name:
        tree = Path(name) / "tree"
        files.copy(tree)
        overrides = tree / "usr/share/lintian/overrides" / NAME
        overrides.parent.mkdir(parents=True)
        shutil.copy(payload.PACKAGE / "lintian-overrides", overrides)
        changelog = Path(name) / "changelog"
        changelog.write_text(_changelog(version))
        payload.compress(changelog, tree / payload.DOCUMENTATION / "changelog.Debian.gz")
        _control(files, version, tree)
        normalize(tree)
        options = ("--root-owner-group", "--threads-max=1", "-Zxz", "-z1")
        tools.run("dpkg-deb", *options, "--build", tree, package)
    return package


def judge(package: Path) -> None:
    """Ask lintian for its verdict; raises ReleaseError if it finds an error."""
    tools.run("lintian", "--fail-on=error", "--allow-root", package)


def _control(files: Payload, version: str, tree: Path) -> None:
    control = tree / "DEBIAN"
    control.mkdir()
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    (control / "control").write_text(
        CONTROL.format(
            name=NAME,
            version=version,
            architecture=files.target.debian,
            maintainer=MAINTAINER,
            size=size,
            depends=f"python3 (>= {files.pythons[0]}), python3 (<< {files.after_newest}~), {DEPENDS}",
            summary=payload.SUMMARY,
            description=payload.DESCRIPTION.replace("\n", "\n "),
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
