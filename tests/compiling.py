"""C programs for the tests, made by the compiler that building the package takes anyway."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(output: Path, source: str, *flags: str) -> Path:
    """Compile and link one file; a test that needs it is skipped where no compiler is."""
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("cc is missing")
        pytest.skip("no cc")
    code = output.parent / f"{output.name}.c"
    code.write_text(source)
    subprocess.run([compiler, "-O1", "-w", *flags, "-o", output, code], check=True)
    return output
