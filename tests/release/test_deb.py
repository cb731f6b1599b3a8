"""The Debian package: installed offline on Debian 12 with systemd, upgraded, removed, purged; and on 13."""

import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from kprobe_exporter import __version__
from release import payload
from release.dependencies import LOCK
from release.targets import AMD64, ARM64, ROOT, TARGETS, ReleaseError, Target, own_target
from tests.conftest import needs_tracefs
from tests.release.packages import CONFIG, MINE, OWN_CONFIG, PLACES, SCRAPE, Packages, instance
from tests.support import debian_root
from tests.support.agent_process import Metrics
from tests.support.booted_root import booted, shell
from tests.support.debian_root import Root
from tests.support.installed_agent import worked
from tests.support.readme import reads
from tests.support.systemd import UNIT, Systemd

INSTANCE = "kp_deb"

LISTED = f"""
import sys
sys.path.append('/{payload.HOME}/lib')
from importlib.metadata import distributions
for one in distributions():
    print(one.name.lower().replace('_', '-').replace('.', '-'), one.version)
"""


@pytest.fixture(scope="module")
def package(packages: Callable[[Target], Packages]) -> Path:
    return packages(AMD64).deb


@pytest.fixture(scope="module")
def root(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A Debian with the package in /root/dist, and with a configuration of its administrator."""
    root = debian_root.fresh("bookworm", ("python3", "systemd"), tmp_path_factory.mktemp("deb_root"))
    root.copy([package], "/root/dist")
    own = root.directory / OWN_CONFIG
    own.parent.mkdir()
    own.write_text(f"global: {{tracefs_instance: {INSTANCE}}}\n")
    return root


@pytest.fixture(scope="module")
def system(root: Root, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    needs_tracefs()
    with booted(root, tmp_path_factory.mktemp("deb_system")) as manager:
        yield manager
        manager.inside("systemctl", "stop", UNIT)  # in case a test failed


@reads(command="make packages")
def test_the_packages_for_every_python_please_their_judges(tmp_path: Path, command: str) -> None:
    """The command fails if lintian or rpmlint finds an error."""
    variables = [f"OUTPUT={tmp_path}", f"PYTHON={sys.executable}"]
    subprocess.run([*shlex.split(command), *variables], cwd=ROOT, stdin=subprocess.DEVNULL, check=True)
    expected = {f"kprobe-exporter_{__version__}_{target.debian}.deb" for target in TARGETS}
    expected |= {f"kprobe-exporter-{__version__}-1.{target.machine}.rpm" for target in TARGETS}
    assert {file.name for file in tmp_path.iterdir() if file.suffix in (".deb", ".rpm")} == expected


@reads(command="make deb")
def test_one_package_for_this_machine(tmp_path: Path, command: str) -> None:
    """Neither rpm nor lintian nor another processor's wheels are needed for it."""
    variables = [f"OUTPUT={tmp_path}", f"PYTHON={sys.executable}"]
    subprocess.run([*shlex.split(command), *variables], cwd=ROOT, stdin=subprocess.DEVNULL, check=True)
    [package] = tmp_path.glob("*.deb")
    assert package.name == f"kprobe-exporter_{__version__}_{own_target().debian}.deb"
    assert len([*tmp_path.glob("*.whl")]) == 1
    assert [*tmp_path.glob("*.rpm")] == []


def test_a_package_has_the_modules_of_its_processor(
    packages: Callable[[Target], Packages], target: Target, tmp_path: Path
) -> None:
    subprocess.run(["dpkg-deb", "--raw-extract", packages(target).deb, tmp_path / "tree"], check=True)
    assert f"\nArchitecture: {target.debian}\n" in (tmp_path / "tree/DEBIAN/control").read_text()
    machines = set()
    for module in (tmp_path / "tree" / payload.HOME).rglob("*.so*"):
        with module.open("rb") as file:
            machines.add(ELFFile(file)["e_machine"])
    assert machines == {{AMD64: "EM_X86_64", ARM64: "EM_AARCH64"}[target]}


def test_a_wheel_that_installs_elsewhere_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "agent-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("agent-1.data/data/etc/passwd", "")
    with pytest.raises(ReleaseError, match=r"agent-1-py3-none-any\.whl installs .*/etc/passwd outside"):
        payload.install_modules(AMD64, wheel, tmp_path / "lib", pythons=[])


def test_debian_13_takes_it_too(package: Path, tmp_path: Path) -> None:
    """Without a systemd that runs, as in a container: the maintainer scripts then start nothing."""
    needs_tracefs()
    root = debian_root.fresh("trixie", ("python3",), tmp_path)
    root.copy([package], "/root")
    root.run("sh", "-c", "DEBIAN_FRONTEND=noninteractive apt install --yes /root/*.deb")
    [info] = worked(root, "/usr/bin/kprobe-exporter").labels("kprobe_exporter_build_info")
    assert info["version"] == __version__
    assert info["python_version"].startswith("3.13.")
    root.run("dpkg", "--purge", "kprobe-exporter")
    assert [place for place in PLACES if (root.directory / place).exists()] == []


@reads(command="apt install")
def test_it_installs_offline_and_works(system: Systemd, command: str) -> None:
    shell(system, f"{command} --yes")
    assert (system.shows("ActiveState"), system.shows("UnitFileState")) == ("active", "enabled")
    assert " probes are up" in system.shows("StatusText")
    shell(system, "for i in $(seq 23); do /bin/true; done")
    metrics = Metrics(shell(system, f'python3 -c "{SCRAPE}"'))
    [info] = metrics.labels("kprobe_exporter_build_info")
    assert info["version"] == __version__
    assert metrics.value("kprobe_hits_total", probe="exec") >= 23
    assert instance(INSTANCE).exists()
    shell(system, f"kprobe-exporter check /{CONFIG}")


def test_it_has_bytecode_for_debians_python(system: Systemd, root: Root) -> None:
    """Without it a start takes longer, since the agent itself may not write there."""
    assert list((root.directory / payload.HOME / "lib/kprobe_exporter/__pycache__").glob("*.cpython-311.pyc"))


def test_every_module_is_from_the_package(system: Systemd, root: Root) -> None:
    """Neither the environment nor the working directory adds a module."""
    (root.directory / "root/click.py").write_text("raise SystemExit('the wrong click')\n")
    output = shell(system, "PYTHONPATH=/root kprobe-exporter --version")
    assert output.split()[-1] == __version__


def test_it_has_the_locked_dependencies_and_nothing_else(system: Systemd) -> None:
    found = dict(line.split() for line in shell(system, f'python3 -IS -c "{LISTED}"').splitlines())
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))
    assert found.pop("kprobe-exporter") == __version__
    assert found == {name.lower(): version for name, version in locked.items()}


def test_bash_completes_the_command(system: Systemd) -> None:
    script = """
. /usr/share/bash-completion/completions/kprobe-exporter
compopt() { :; }
COMP_LINE='kprobe-exporter cl' COMP_POINT=18
_kprobe_exporter_completion kprobe-exporter
echo "${COMPREPLY[@]}"
"""
    assert shell(system, f"bash -c {shlex.quote(script)}") == "cleanup\n"


def test_an_upgrade_keeps_the_configuration_and_restarts(
    system: Systemd, root: Root, package: Path, tmp_path: Path
) -> None:
    (root.directory / CONFIG).write_text(MINE)
    before = system.shows("MainPID")
    subprocess.run(["dpkg-deb", "--raw-extract", package, tmp_path / "tree"], check=True)
    control = tmp_path / "tree/DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {__version__}", f"Version: {__version__}+1"))
    # The new version has a packaged configuration of its own, about which dpkg would ask at a terminal.
    with (tmp_path / "tree" / CONFIG).open("a") as packaged:
        packaged.write("# of the next version\n")
    build = ["dpkg-deb", "-Znone", "--root-owner-group", "--build"]
    subprocess.run([*build, tmp_path / "tree", tmp_path / "newer.deb"], check=True)
    root.copy([tmp_path / "newer.deb"], "/root")
    shell(system, "dpkg --force-confold --install newer.deb")
    assert (root.directory / CONFIG).read_text() == MINE
    assert system.shows("ActiveState") == "active"
    assert system.shows("MainPID") not in ("0", before)
    assert system.shows("StatusText") == "1 of 1 probes are up"


def test_a_removal_leaves_the_kernel_clean_and_keeps_the_configuration(system: Systemd, root: Root) -> None:
    """Even where the agent was killed, and its instance is still there."""
    shell(system, f"systemctl kill --signal=KILL {UNIT}")
    assert instance(INSTANCE).exists()
    shell(system, "dpkg --remove kprobe-exporter")
    assert not instance(INSTANCE).exists()
    assert system.inside("systemctl", "is-active", UNIT).stdout.strip() in ("inactive", "failed")
    assert (root.directory / CONFIG).read_text() == MINE
    assert (root.directory / OWN_CONFIG).exists()
    assert not (root.directory / payload.HOME).exists()


def test_a_purge_leaves_the_disk_clean(system: Systemd, root: Root) -> None:
    shell(system, "dpkg --purge kprobe-exporter")
    assert [place for place in PLACES if (root.directory / place).exists()] == []
    left = [path for path in root.directory.glob("etc/systemd/system/**/*") if path.name == UNIT]
    assert left == []
