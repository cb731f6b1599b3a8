"""Debian packages, unpacked below build/: nothing is installed, and no service starts."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.vm import BUILD

PROMETHEUS = BUILD / "prometheus"
MERGED = ("bin", "lib", "lib64", "sbin")
"""The directories that are links to those below /usr in Debian since bookworm."""
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class PackageError(Exception):
    """A package is not available; the message says what to do."""


@dataclass(frozen=True)
class Suite:
    """The packages of one architecture: of this machine's own apt, or of another suite of Debian.

    Another suite is one with a `name`. It is read from the mirror from which this machine's own apt has the
    suites with the same `label`, as in their Release files. Its lists are below build/apt, so that this
    machine's apt and what it installs remain as they are.
    """

    name: str = ""
    label: str = "Debian"
    arch: str = "amd64"

    @property
    def _directory(self) -> Path:
        return BUILD / "apt" / f"{self.name}-{self.arch}"

    def source(self) -> str:
        """This suite as a line of sources.list(5), for one that has a name."""
        signed = f"arch={self.arch} signed-by={KEYRING}"
        return f"deb [{signed}] {_mirror(self.label)} {self.name} main"

    def names(self, *, update: bool = False) -> list[str]:
        """The names of all packages. The lists of a suite with a name are fetched anew each time.

        Those of this machine's own apt are fetched if `update` is set, which only root can do.
        """
        if self.name or (update and self._may_update()):
            self._update()
        command = ["apt-cache", "pkgnames", *self._options()]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()

    def download(self, packages: tuple[str, ...], into: Path) -> list[Path]:
        """Download the packages into a directory, and return their files.

        Raises PackageError if one of them cannot be downloaded.
        """
        command = ["apt-get", "download", "--quiet", *self._options(), *packages]
        if not _succeeds(command, into) and self._may_update():
            self._update()  # the lists may name a version that the mirror has replaced
            _succeeds(command, into)
        files = sorted(into.glob("*.deb"))
        if len(files) != len(packages):
            where = (
                self.source() if self.name else "apt's own sources: run apt-get update as root and try again"
            )
            raise PackageError(f"cannot download {' '.join(packages)} from {where}")
        return files

    def fetch_with_dependencies(self, packages: tuple[str, ...], into: Path) -> list[Path]:
        """Download the packages and all that they depend on into a directory, and return their files.

        Raises PackageError if one of them cannot be downloaded. Only a suite that has a name can do so, since
        apt keeps its state in the suite's own directories.
        """
        self._update()
        (into / "partial").mkdir(parents=True, exist_ok=True)
        command = ["apt-get", "install", "--download-only", "--yes", "--no-install-recommends", "--quiet=2"]
        options = [f"--option=Dir::Cache::Archives={into}", "--option=Debug::NoLocking=1"]
        if not _succeeds([*command, *self._options(), *options, *packages], into):
            raise PackageError(f"cannot download {' '.join(packages)} from {self.source()}: apt said why")
        return sorted(into.glob("*.deb"))

    def _may_update(self) -> bool:
        return bool(self.name) or os.geteuid() == 0

    def _update(self) -> None:
        if not self.name:
            subprocess.run(["apt-get", "update"], stdin=subprocess.DEVNULL, check=True)
            return
        (self._directory / "lists/partial").mkdir(parents=True, exist_ok=True)
        (self._directory / "cache").mkdir(exist_ok=True)
        with _locked(self._directory / "lock"):
            (self._directory / "sources.list").write_text(self.source() + "\n")
            command = ["apt-get", "update", "--quiet", "--quiet", "--error-on=any", *self._options()]
            if not _succeeds(command, self._directory):
                raise PackageError(f"cannot read the lists of {self.source()}: apt said why")

    def _options(self) -> list[str]:
        # Otherwise apt, run as root, downloads as its own user, who may not write here.
        options = {"APT::Sandbox::User": "root"}
        # Packages that are installed here but are no longer on the mirror do not count.
        options["Dir::State::status"] = "/dev/null"
        if self.name:
            options |= {
                "Dir::Etc::SourceList": f"{self._directory}/sources.list",
                "Dir::Etc::SourceParts": "/dev/null",
                "Dir::State::Lists": f"{self._directory}/lists",
                "Dir::Cache": f"{self._directory}/cache",
                "Acquire::Languages": "none",
                "APT::Architecture": self.arch,
                "APT::Architectures": self.arch,
            }
        return [f"--option={name}={value}" for name, value in options.items()]


OWN = Suite()
"""What this machine's own apt knows."""


def promtool() -> Path:
    """Prometheus' checker of metrics, rules and web configuration."""
    return unpack(PROMETHEUS, "prometheus") / "usr/bin/promtool"


def alertmanager() -> Path:
    """Prometheus' Alertmanager; beside it is amtool, its checker of configurations."""
    return unpack(BUILD / "alertmanager", "prometheus-alertmanager") / "usr/bin/prometheus-alertmanager"


def pprof() -> Path:
    """Go's reader of profiles, which newer packages build only when it is called."""
    go = unpack(BUILD / "go", "golang-1.19-go", suite=Suite("bookworm"))
    return go / "usr/lib/go-1.19/pkg/tool/linux_amd64/pprof"


def rsyslog() -> Path:
    """The directory with rsyslogd and its libraries, which no service runs."""
    return unpack(BUILD / "rsyslog", "rsyslog", "libestr0", "libfastjson4", "liblognorm5") / "usr"


def confinement() -> None:
    """Unpack AppArmor's parser and podman's seccomp profile, to confine processes as container runtimes do.

    They are only unpacked: installing the first starts a service, the second depends on a network stack.
    """
    unpack(BUILD / "apparmor", "apparmor")
    unpack(BUILD / "containers", "golang-github-containers-common")


def unpack(into: Path, *packages: str, suite: Suite = OWN) -> Path:
    """Unpack the packages into the directory `into`, unless that exists."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with _locked(into.with_name(into.name + ".lock")):
        if not into.exists():
            print(f"== unpacking {' '.join(packages)} into {into.relative_to(BUILD.parent)}", flush=True)
            partial = into.with_name(into.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for deb in suite.download(packages, partial):
                subprocess.run(["dpkg", "-x", deb, partial], check=True)
                deb.unlink()
            partial.rename(into)
    return into


def extract(debs: Iterable[Path], root: Path, unneeded: Sequence[str] = ()) -> None:
    """Unpack packages into one new directory as Debian has them installed, but for their configuration.

    ``unneeded`` are directories of /usr/share. Raises PackageError if a package cannot be unpacked.
    """
    for directory in MERGED:
        (root / "usr" / directory).mkdir(parents=True)
        (root / directory).symlink_to(f"usr/{directory}")
    for deb in debs:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as contents:
            # dpkg -x would replace the links of MERGED by directories.
            tar = ["tar", "--extract", "--keep-directory-symlink", f"--directory={root}"]
            tar += [f"--exclude=./usr/share/{one}" for one in unneeded]
            subprocess.run(tar, stdin=contents.stdout, check=True)
        if contents.returncode != 0:
            raise PackageError(f"{deb.name} cannot be unpacked: remove {deb.parent} and try again")


def _mirror(label: str) -> str:
    """The address from which this machine's apt has the suites of Debian with this label.

    Raises PackageError if it has none of them.
    """
    for attempt in range(2):
        # From the lists that apt has fetched: the label stands in the Release file, not in the sources.
        command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", f"Label: {label}"]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        if found:
            return found[0]
        if attempt == 0 and os.geteuid() == 0:
            OWN._update()
    raise PackageError(
        f"apt has no suite labelled {label}: name one in its sources, run apt-get update as root"
    )


def _succeeds(command: list[str], directory: Path) -> bool:
    run = subprocess.run(command, check=False, cwd=directory, stdin=subprocess.DEVNULL)
    return run.returncode == 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
