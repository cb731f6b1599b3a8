"""Whatever a page or a line has, the compiled code reads nothing outside it: AddressSanitizer checks this."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = 8_000
TEXTS = 8_000
FLAGS = (
    "-fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -g -shared -fPIC"
    " -DPy_LIMITED_API=0x030B0000"
)


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The walk, built with sanitizers, and the run-time library to preload."""
    return build(tmp_path_factory.mktemp("sanitized"), "_pages")


@pytest.fixture(scope="session")
def sanitized_lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The counter of lines, in the same way."""
    return build(tmp_path_factory.mktemp("sanitized"), "_lines")


def build(directory: Path, name: str) -> tuple[Path, Path]:
    compiler = shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("gcc is missing")
        pytest.skip("no gcc")
    source = directory / f"{name}.c"
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", ROOT / f"kprobe_exporter/source/{name}.pyx", "-o", source],
        check=True,
    )
    built = directory / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    subprocess.run([compiler, *FLAGS.split(), f"-I{include}", source, "-o", built], check=True)
    library = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
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
