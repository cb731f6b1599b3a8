"""The sdist, and from it a wheel for each processor."""

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from release import compiler, tools
from release.sources import copy_tracked, normalize, pack
from release.targets import BUILD, TARGETS, ReleaseError, Target

EXTENSIONS = tuple(f"kprobe_exporter/source/{name}.abi3.so" for name in ("_lines", "_pages"))


def build(into: Path, targets: Iterable[Target] = TARGETS) -> list[Path]:
    """Build the sdist and a wheel for each target, judge them, and return their files."""
    into.mkdir(parents=True, exist_ok=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="wheels-") as name:
        work = Path(name)
        source = _sdist(work, into)
        built = [source, *(_wheel(target, source, work, into) for target in targets)]
    judge(built)
    return built


def judge(files: Sequence[Path]) -> None:
    """Ask independent tools for a verdict on each file; raises ReleaseError."""
    tools.tool("twine", "check", "--strict", *files)
    for wheel in (file for file in files if file.suffix == ".whl"):
        with zipfile.ZipFile(wheel) as archive:
            for missing in set(EXTENSIONS).difference(archive.namelist()):
                raise ReleaseError(f"{wheel.name} has no {missing}: the compiler failed")
        machine = wheel.stem.rpartition("manylinux2014_")[2]
        verdict = tools.tool("auditwheel", "show", wheel)
        # manylinux2014 is manylinux_2_17; a lower number asks for less.
        tags = re.findall(r'consistent with\s+the following platform tag:\s+"(\w+)"', verdict)
        allowed = {f"manylinux_2_{minor}_{machine}" for minor in range(5, 18)}
        if not allowed.intersection(tags):
            raise ReleaseError(f"{wheel.name} is not manylinux2014:\n{verdict}")
        report = json.loads(tools.tool("abi3audit", "--strict", "--report", wheel))
        for audited in report["specs"][str(wheel)]["wheel"]:
            result = audited["result"]
            if result["non_abi3_symbols"] or not result["is_abi3_baseline_compatible"]:
                raise ReleaseError(f"{wheel.name} uses more than the stable ABI: {audited}")


def _sdist(work: Path, into: Path) -> Path:
    """Build the sdist, and pack it again: setuptools' own has the times of the build."""
    checkout, first, tree = work / "checkout", work / "first", work / "unpacked"
    copy_tracked(checkout)
    tools.tool("build", "--sdist", "--no-isolation", "--outdir", first, checkout)
    [archive] = first.iterdir()
    _unpack(archive, tree)
    normalize(tree)
    pack(tree, into / archive.name)
    return into / archive.name


def _wheel(target: Target, sdist: Path, work: Path, into: Path) -> Path:
    """Build a wheel from the sdist, in a directory of its own."""
    tree, out = work / f"source-{target.machine}", work / f"wheel-{target.machine}"
    _unpack(sdist, tree)
    [source] = tree.iterdir()
    tools.tool(
        "build",
        *("--wheel", "--no-isolation", "--outdir", out),
        f"--config-setting=--build-option=--plat-name={target.platform}",
        source,
        also=compiler.variables(target, work),
    )
    [wheel] = out.iterdir()
    return Path(shutil.move(wheel, into / wheel.name))


def _unpack(archive: Path, into: Path) -> None:
    """Unpack what was built here into a new directory. Debian 12's tarfile has no filters yet."""
    into.mkdir()
    tools.run("tar", "--extract", "--no-same-owner", "--file", archive, "--directory", into)
