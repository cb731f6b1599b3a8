"""C programs for the tests, built with the compiler that the package itself needs for its build."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def compiler(program: str = "cc") -> str:
    """Return the path of a compiler. Without it the test is skipped, or fails under CI."""
    found = shutil.which(program)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{program} is missing")
        pytest.skip(f"no {program}")
    return found


def compiled(output: Path, source: str, *flags: str) -> Path:
    """Compile and link one file."""
    code = output.parent / f"{output.name}.c"
    code.write_text(source)
    subprocess.run([compiler(), "-O1", "-w", *flags, "-o", output, code], check=True)
    return output
