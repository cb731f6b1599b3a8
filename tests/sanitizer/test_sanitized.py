"""Whatever a page contains, the compiled walk reads nothing outside it; AddressSanitizer checks this."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = 60_000
FLAGS = (
    "-fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -g -shared -fPIC"
    " -DPy_LIMITED_API=0x030B0000"
)


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The walk, built with sanitizers, and the run-time library to preload."""
    compiler = shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("gcc is missing")
        pytest.skip("no gcc")
    directory = tmp_path_factory.mktemp("sanitized")
    source = directory / "_pages.c"
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", ROOT / "kprobe_exporter/source/_pages.pyx", "-o", source],
        check=True,
    )
    built = directory / f"_pages{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    subprocess.run([compiler, *FLAGS.split(), f"-I{include}", source, "-o", built], check=True)
    library = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    return built, Path(library).resolve()


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_pages(sanitized: tuple[Path, Path], seed: int) -> None:
    built, library = sanitized
    environment = {
        **os.environ,
        "SANITIZED": str(built),
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0,abort_on_error=0",
        "PYTHONMALLOC": "malloc",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.sanitizer.fuzz", str(PAGES // 2), str(seed)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{PAGES // 2} pages" in done.stdout
