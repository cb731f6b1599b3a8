"""C programs for the tests, built with the compiler that the package itself needs for its build."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(output: Path, source: str, *flags: str) -> Path:
    """Compile and link one file. Without a compiler the test is skipped, or fails under CI."""
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("cc is missing")
        pytest.skip("no cc")
    code = output.parent / f"{output.name}.c"
    code.write_text(source)
    subprocess.run([compiler, "-O1", "-w", *flags, "-o", output, code], check=True)
    return output
