"""The sdist and the wheels: what is in them, and that they work where there is no network and no compiler."""

import email
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kprobe_exporter import __version__
from release import dependencies, wheels
from release.targets import AMD64, TARGETS, ReleaseError, Target
from tests.support import debian_root
from tests.support.installed_agent import worked
from tests.support.readme import reads
from tests.vm import ROOT

DEBIANS = {"bookworm": "3.11", "trixie": "3.13"}
PACKAGES = ("python3", "python3-venv")


def wheel_of(built: list[Path], target: Target) -> Path:
    [wheel] = [file for file in built if file.name.endswith(f"{target.platform}.whl")]
    return wheel


@reads(command="make dist")
def test_another_build_gives_the_same_bytes(built: list[Path], tmp_path: Path, command: str) -> None:
    """It is a later one, in other directories."""
    variables = [f"OUTPUT={tmp_path}", f"PYTHON={sys.executable}"]
    subprocess.run([*shlex.split(command), *variables], cwd=ROOT, stdin=subprocess.DEVNULL, check=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(file.name for file in built)
    assert [(tmp_path / file.name).read_bytes() == file.read_bytes() for file in built] == [True] * len(built)


def test_names(built: list[Path]) -> None:
    stem = f"kprobe_exporter-{__version__}"
    expected = [f"{stem}-cp311-abi3-manylinux2014_{target.machine}.whl" for target in TARGETS]
    assert [file.name for file in built] == [f"{stem}.tar.gz", *expected]


def test_a_wheel_has_every_module_and_data_file(built: list[Path], target: Target) -> None:
    with zipfile.ZipFile(wheel_of(built, target)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = ROOT / "kprobe_exporter"
    ours = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    built_here = {path for path in ours if path.suffix == ".so" or path.name in ("_lines.c", "_pages.c")}
    expected = {path.relative_to(ROOT).as_posix() for path in ours if path not in built_here}
    assert names == expected | set(wheels.EXTENSIONS)


def test_the_sdist_has_what_a_wheel_is_built_of_and_the_licence(built: list[Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} <= names
    sources = {
        f"kprobe_exporter/source/{name}" for name in ("_lines.pyx", "_pages.pxd", "_pages.pyx", "_plan.pxi")
    }
    engine = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kprobe_exporter/engine").glob("*.[ch]")}
    assert sources | engine <= names
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []
    assert {name for name in names if name.endswith(".c")} <= engine


def test_the_metadata_names_the_dependencies_of_the_project(built: list[Path], target: Target) -> None:
    with zipfile.ZipFile(wheel_of(built, target)) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
    assert (metadata["Name"], metadata["Version"]) == ("kprobe-exporter", __version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert "pyelftools~=0.32" in metadata.get_all("Requires-Dist", [])


@pytest.mark.parametrize("extension", wheels.EXTENSIONS)
def test_a_wheel_without_a_compiled_module_is_refused(
    built: list[Path], tmp_path: Path, extension: str
) -> None:
    wheel = wheel_of(built, AMD64)
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / wheel.name, "w") as lesser:
        for name in whole.namelist():
            if name != extension:
                lesser.writestr(name, whole.read(name))
    with pytest.raises(ReleaseError, match="the compiler failed"):
        wheels.judge([tmp_path / wheel.name])


@pytest.mark.parametrize(("suite", "python"), DEBIANS.items(), ids=list(DEBIANS))
@reads(command="pip install")
def test_it_installs_offline_and_works(
    built_for: Callable[[Target], list[Path]], tmp_path: Path, suite: str, python: str, command: str
) -> None:
    """The root has no compiler and no network: pip has the wheels alone."""
    root = debian_root.fresh(suite, PACKAGES, tmp_path)
    root.copy(built_for(AMD64), "/root/dist")
    root.copy([*dependencies.wheels(python, AMD64).iterdir()], "/root/wheels")
    root.run("python3", "-m", "venv", "/agent")
    offline = "cd /root && PATH=/agent/bin:$PATH PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/wheels"
    root.run("sh", "-c", f"{offline} PIP_QUIET=1 {command}")
    assert root.run("/agent/bin/kprobe-exporter", "--version").split()[-1] == __version__
    [info] = worked(root, "/agent/bin/kprobe-exporter").labels("kprobe_exporter_build_info")
    assert info["version"] == __version__
    assert info["python_version"].startswith(f"{python}.")
