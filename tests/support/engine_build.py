"""Builds the event engine with sanitizers, without Python."""

import subprocess
from pathlib import Path

from tests.support.compiling import compiler

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "kprobe_exporter/engine"
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g", "-fPIC")
STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ENGINE}")


def build_engine(directory: Path) -> list[Path]:
    """Compile each file of the engine with sanitizers; return the objects."""
    sources = sorted(ENGINE.glob("*.c"))
    subprocess.run([compiler("gcc"), *SANITIZED, *STRICT, "-c", *sources], cwd=directory, check=True)
    return [directory / f"{source.stem}.o" for source in sources]
