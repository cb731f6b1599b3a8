"""The RPM package: the files of the Debian package; installed, upgraded, removed, with systemd and without.

Debian's rpm installs it into a Debian with a database of its own. This database has no package that could
provide the dependencies, hence --nodeps.
"""

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kprobe_exporter import __version__
from release import payload, rpm
from release.targets import AMD64, Target
from tests.conftest import needs_tracefs
from tests.release.packages import (
    CONFIG,
    MINE,
    OWN_CONFIG,
    PLACES,
    SCRAPE,
    Packages,
    instance,
    staged,
)
from tests.support import debian_root
from tests.support.agent_process import Metrics
from tests.support.booted_root import booted, shell
from tests.support.debian_root import Root
from tests.support.installed_agent import worked
from tests.support.readme import reads
from tests.support.systemd import UNIT, Systemd

INSTANCE = "kp_rpm"
INSTALL = "rpm --nodeps --force-debian"
"""The rpm of Debian 12 refuses to install anything without the second option, which that of 13 lacks."""
DEFAULTS = "etc/default/kprobe_exporter"
DOCUMENTATION = payload.DOCUMENTATION

RENAMED = {
    "usr/share/zsh/site-functions/_kprobe-exporter": "usr/share/zsh/vendor-completions/_kprobe-exporter"
}
DEBIANS = {"usr/share/lintian/overrides/kprobe-exporter", f"{DOCUMENTATION}/changelog.Debian.gz"}
OURS = {"usr/share/licenses/kprobe-exporter/LICENSE"}
"""Files that only one of the packages has."""


@pytest.fixture(scope="module")
def package(packages: Callable[[Target], Packages]) -> Path:
    return packages(AMD64).rpm


@pytest.fixture(scope="module")
def newer(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A next version, which has another packaged configuration and lacks some modules."""
    with pytest.MonkeyPatch.context() as patch, staged(AMD64, built) as files:
        patch.setattr(payload, "version", lambda: f"{__version__}.1")
        modules = files.tree / payload.HOME / "lib/kprobe_exporter"
        subprocess.run(["rm", "-r", modules / "replay", modules / "cli/replay.py"], check=True)
        with (files.tree / CONFIG).open("a") as packaged:
            packaged.write("# of the next version\n")
        return rpm.build(files, tmp_path_factory.mktemp("newer"))


@pytest.fixture(scope="module")
def root(package: Path, newer: Path, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A Debian with the packages in /root, and with a configuration of its administrator."""
    root = debian_root.fresh("bookworm", ("python3", "rpm", "systemd"), tmp_path_factory.mktemp("rpm_root"))
    root.copy([package], "/root/dist")
    root.copy([newer], "/root/newer")
    own = root.directory / OWN_CONFIG
    own.parent.mkdir()
    own.write_text(f"global: {{tracefs_instance: {INSTANCE}}}\n")
    return root


@pytest.fixture(scope="module")
def system(root: Root, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    needs_tracefs()
    with booted(root, tmp_path_factory.mktemp("rpm_system")) as manager:
        yield manager
        manager.inside("systemctl", "stop", UNIT)  # in case a test failed


def query(package: Path, form: str) -> list[str]:
    """What a package has for this format of `rpm --queryformat`, line by line."""
    command = ["rpm", "--query", "--package", "--nosignature", f"--queryformat={form}", str(package)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def modules(root: Root, pattern: str) -> list[Path]:
    return list((root.directory / payload.HOME / "lib/kprobe_exporter").glob(pattern))


def test_its_files_are_those_of_the_debian_package(
    packages: Callable[[Target], Packages], target: Target, tmp_path: Path
) -> None:
    """With the same content and modes, and all of root; the rest is named here."""
    subprocess.run(["dpkg-deb", "--extract", packages(target).deb, tmp_path / "tree"], check=True)
    expected = {}
    for path in (tmp_path / "tree").rglob("*"):
        name, mode = path.relative_to(tmp_path / "tree").as_posix(), f"{path.lstat().st_mode:o}"
        if path.is_symlink():
            expected[name] = (mode, str(path.readlink()))
        elif path.is_file():
            expected[name] = (mode, hashlib.sha256(path.read_bytes()).hexdigest())
    form = (
        "[%{FILENAMES}\t%{FILEMODES:octal}\t%{FILEDIGESTS}%{FILELINKTOS}\t%{FILEUSERNAME}:%{FILEGROUPNAME}\n]"
    )
    found = {}
    for line in query(packages(target).rpm, form):
        name, mode, content, owner = line.removeprefix("/").split("\t")
        assert owner == "root:root", name
        assert mode in ("100644", "100755", "120777", "40755"), name
        if not mode.startswith("40"):
            found[RENAMED.get(name, name)] = (mode, content)
    assert found.keys() - OURS == expected.keys() - DEBIANS
    assert {name: found[name] for name in found.keys() - OURS} == {
        name: expected[name] for name in expected.keys() - DEBIANS
    }
    assert query(packages(target).rpm, "%{ARCH} %{VERSION}-%{RELEASE}") == [
        f"{target.machine} {__version__}-1"
    ]


def test_its_configuration_belongs_to_the_administrator(package: Path) -> None:
    flags = dict(line.split("\t") for line in query(package, "[%{FILENAMES}\t%{FILEFLAGS:fflags}\n]"))
    assert {name for name, flag in flags.items() if "c" in flag} == {f"/{CONFIG}", f"/{DEFAULTS}"}
    assert {flags[f"/{CONFIG}"], flags[f"/{DEFAULTS}"]} == {"cn"}
    assert flags["/usr/share/licenses/kprobe-exporter/LICENSE"] == "l"


def test_it_requires_a_python_that_it_has_modules_for(package: Path) -> None:
    requires = set(query(package, "[%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]"))
    assert {"python3 >= 3.11", "python3 < 3.14~"} <= requires
    assert {"libc.so.6(GLIBC_2.28)(64bit)  ", "libstdc++.so.6()(64bit)  "} <= requires


def test_another_build_gives_the_same_bytes(
    packages: Callable[[Target], Packages], built: list[Path], tmp_path: Path
) -> None:
    """Both packages, later and into another directory."""
    first = packages(AMD64)
    before = first.deb.read_bytes(), first.rpm.read_bytes()
    with staged(AMD64, built) as files:
        again = Packages(files, tmp_path)
        assert (again.deb.read_bytes(), again.rpm.read_bytes()) == before


def test_it_works_where_no_systemd_runs(package: Path, tmp_path: Path) -> None:
    """As in a container, and by the newer rpm of Debian 13, whose plugins expect that / is a mount point."""
    needs_tracefs()
    root = debian_root.fresh("trixie", ("python3", "rpm"), tmp_path)
    root.copy([package], "/root")
    output = root.run("rpm", "--nodeps", "--noplugins", "--install", f"/root/{package.name}")
    assert "scriptlet failed" not in output
    assert modules(root, "__pycache__/*.cpython-313.pyc")
    # All as it was packaged, but for times of directories in which bytecode was written.
    root.run("rpm", "--verify", "--nodeps", "--nomtime", "kprobe-exporter")
    [info] = worked(root, "/usr/bin/kprobe-exporter").labels("kprobe_exporter_build_info")
    assert info["version"] == __version__
    output = root.run("rpm", "--noplugins", "--erase", "kprobe-exporter")
    assert "scriptlet failed" not in output
    assert [place for place in PLACES if (root.directory / place).exists()] == []


def test_an_installation_follows_the_preset(system: Systemd, root: Root) -> None:
    """The service does not start by itself. Debian's preset, unlike Fedora's, enables it."""
    output = shell(system, f"{INSTALL} --install dist/*.rpm")
    assert "scriptlet failed" not in output
    assert (system.shows("ActiveState"), system.shows("UnitFileState")) == ("inactive", "enabled")
    assert modules(root, "__pycache__/*.cpython-311.pyc")


@reads(command="systemctl enable --now")
def test_the_service_works(system: Systemd, command: str) -> None:
    shell(system, command)
    assert " probes are up" in system.shows("StatusText")
    [info] = Metrics(shell(system, f'python3 -c "{SCRAPE}"')).labels("kprobe_exporter_build_info")
    assert info["version"] == __version__
    assert instance(INSTANCE).exists()


def test_an_upgrade_keeps_the_configuration_and_restarts(system: Systemd, root: Root) -> None:
    (root.directory / CONFIG).write_text(MINE)
    before = system.shows("MainPID")
    assert modules(root, "replay/__pycache__/*.pyc")
    output = shell(system, f"{INSTALL} --upgrade newer/*.rpm")
    assert "scriptlet failed" not in output
    assert (root.directory / CONFIG).read_text() == MINE
    assert (root.directory / f"{CONFIG}.rpmnew").read_text().endswith("# of the next version\n")
    assert system.shows("ActiveState") == "active"
    assert system.shows("MainPID") not in ("0", before)
    assert system.shows("StatusText") == "1 of 1 probes are up"


def test_an_upgrade_leaves_no_module_of_the_older_version(system: Systemd, root: Root) -> None:
    """Nor its bytecode, which rpm does not know; the modules of the new version have theirs."""
    assert modules(root, "replay") == modules(root, "cli/__pycache__/replay.*") == []
    assert modules(root, "cli/__pycache__/*.cpython-311.pyc")


def test_a_removal_leaves_the_kernel_clean_and_keeps_the_configuration(system: Systemd, root: Root) -> None:
    """Even where the agent was killed, and its instance is still there."""
    shell(system, f"systemctl kill --signal=KILL {UNIT}")
    assert instance(INSTANCE).exists()
    output = shell(system, f"{INSTALL} --erase kprobe-exporter")
    assert "scriptlet failed" not in output
    assert not instance(INSTANCE).exists()
    assert system.inside("systemctl", "is-active", UNIT).stdout.strip() in ("inactive", "failed")
    assert (root.directory / f"{CONFIG}.rpmsave").read_text() == MINE
    assert (root.directory / OWN_CONFIG).exists()
    assert [place for place in PLACES[1:] if (root.directory / place).exists()] == []
    left = [path for path in root.directory.glob("etc/systemd/system/**/*") if path.name == UNIT]
    assert left == []
