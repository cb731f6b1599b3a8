"""Builds the event engine with sanitizers, without Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "kprobe_exporter/engine"
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g", "-fPIC")
STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ENGINE}")


def gcc() -> str:
    """Return the compiler. Without one, the test is skipped, or fails in CI."""
    compiler = shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("gcc is missing")
        pytest.skip("no gcc")
    return compiler


def build_engine(directory: Path) -> list[Path]:
    """Compile each file of the engine with sanitizers; return the objects."""
    sources = sorted(ENGINE.glob("*.c"))
    subprocess.run([gcc(), *SANITIZED, *STRICT, "-c", *sources], cwd=directory, check=True)
    return [directory / f"{source.stem}.o" for source in sources]
