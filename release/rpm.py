"""The RPM package: the same files as the Debian package, for distributions with a Python of ``PYTHONS``."""

import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from release import payload, tools
from release.payload import NAME, Payload
from release.sources import epoch, normalize
from release.targets import BUILD, ROOT

SPEC = payload.PACKAGE / "kprobe-exporter.spec"
MOVED = {"usr/share/zsh/vendor-completions": "usr/share/zsh/site-functions"}
"""Directories that have another name than in Debian."""

REPRODUCIBLE = {
    "_buildhost": "localhost",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    # Nothing is compressed, stripped or compiled: the files are those of the Debian package.
    "__os_install_post": "%{nil}",
    "debug_package": "%{nil}",
    "_build_id_links": "none",
    "_binary_filedigest_algorithm": "8",  # SHA-256
    "_binary_payload": "w7.zstdio",
}


def build(files: Payload, into: Path) -> Path:
    """Build the package for a processor, and return its file."""
    into.mkdir(parents=True, exist_ok=True)
    version, machine = payload.version(), files.target.machine
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="rpm-") as name:
        work, tree = Path(name), Path(name) / "tree"
        files.copy(tree)
        for place, moved in MOVED.items():
            (tree / place).rename(tree / moved)
        licence = tree / "usr/share/licenses" / NAME / "LICENSE"
        licence.parent.mkdir(parents=True)
        shutil.copy(ROOT / "LICENSE", licence)
        normalize(tree)
        macros = {
            **REPRODUCIBLE,
            "_topdir": str(work / "rpmbuild"),
            "_rpmdir": str(work),
            "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
            "agent_version": version,
            "agent_tree": str(tree),
            "agent_date": f"{datetime.fromtimestamp(epoch(), UTC):%a %b %d %Y}",
            "agent_summary": payload.SUMMARY,
            # Braces keep the lines of a macro together.
            "agent_description": f"{{{payload.DESCRIPTION}}}",
            "agent_maintainer": payload.MAINTAINER,
            "oldest_python": files.pythons[0],
            "after_newest_python": files.after_newest,
        }
        defined = [f"--define={key} {value}" for key, value in macros.items()]
        # The builder's own macros are in his home directory.
        home = {"HOME": str(work)}
        tools.run("rpmbuild", "-bb", "--quiet", f"--target={machine}-linux", *defined, SPEC, also=home)
        [package] = work.glob("*.rpm")
        return Path(shutil.move(package, into / package.name))


def judge(package: Path) -> None:
    """Ask rpmlint for its verdict; raises ReleaseError if it finds an error."""
    tools.run("rpmlint", "--config", payload.PACKAGE / "rpmlint.toml", package)
