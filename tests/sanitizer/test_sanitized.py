"""Whatever a page or a line has, the compiled code reads nothing outside it: AddressSanitizer checks this."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.compiling import compiler
from tests.support.engine_build import ENGINE, ROOT, SANITIZED, build_engine

PAGES = 8_000
TEXTS = 8_000
BINDING = ("-shared", "-DPy_LIMITED_API=0x030B0000", f"-I{ENGINE}")


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The walk, built with sanitizers, and the run-time library to preload."""
    return build(tmp_path_factory.mktemp("sanitized"), "_pages")


@pytest.fixture(scope="session")
def sanitized_lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The counter of lines, in the same way."""
    return build(tmp_path_factory.mktemp("sanitized"), "_lines")


def build(directory: Path, name: str) -> tuple[Path, Path]:
    objects = build_engine(directory) if name == "_pages" else []
    source = directory / f"{name}.c"
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", ROOT / f"kprobe_exporter/source/{name}.pyx", "-o", source],
        check=True,
    )
    built = directory / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    options = [*SANITIZED, *BINDING, f"-I{sysconfig.get_paths()['include']}"]
    subprocess.run([compiler("gcc"), *options, source, *objects, "-o", built], check=True)
    library = subprocess.run(
        [compiler("gcc"), "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    return built, Path(library).resolve()


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_pages(sanitized: tuple[Path, Path], seed: int) -> None:
    said = run(sanitized, "tests.sanitizer.fuzz", PAGES // 2, seed)
    assert f"{PAGES // 2} pages" in said


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_lines(sanitized_lines: tuple[Path, Path], seed: int) -> None:
    assert f"{TEXTS} texts" in run(sanitized_lines, "tests.sanitizer.fuzz_lines", TEXTS, seed)


def run(sanitized: tuple[Path, Path], module: str, rounds: int, seed: int) -> str:
    """Run a fuzzer over what was built; return what it says."""
    built, library = sanitized
    environment = {
        **os.environ,
        "SANITIZED": str(built),
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0,abort_on_error=0",
        "PYTHONMALLOC": "malloc",
    }
    done = subprocess.run(
        [sys.executable, "-m", module, str(rounds), str(seed)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
