"""What the imports of `run` cost, beside those of an earlier version: processor time, measured in turns."""

import io
import resource
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.vm import BUILD, ROOT

BASELINE = "v0.1.0"
"""The first release. It needs no library that is missing here."""

ROUNDS = 15
RUN = "from kprobe_exporter.cli import main; main.get_command(None, 'run')"


class Imports(NamedTuple):
    """Seconds of processor time, less those of an interpreter that imports nothing."""

    now: float
    before: float


def imports() -> Imports:
    """The medians of ROUNDS processes each, one of each kind in turn.

    Raises subprocess.CalledProcessError where git does not have that version.
    """
    now, before = BUILD / "bench/now", BUILD / "bench" / BASELINE
    _install(ROOT, now)
    if not before.exists():
        archive = subprocess.run(
            ["git", "archive", BASELINE], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
        with tempfile.TemporaryDirectory() as source:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(source, filter="data")
            _install(Path(source), before)
    programs = ("pass", _program(now), _program(before))
    for program in programs:
        _processor_time(program)  # The files are in memory after this.
    rounds = [[_processor_time(program) for program in programs] for _ in range(ROUNDS)]
    bare, *others = map(median, zip(*rounds, strict=True))
    return Imports(*(seconds - bare for seconds in others))


def _install(source: Path, target: Path) -> None:
    """The package with its compiled part and bytecode; what it depends on is in this environment."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*pip, "--no-deps", "--target", target, source], check=True)


def _program(installed: Path) -> str:
    return f"import sys; sys.path.insert(0, {str(installed)!r}); {RUN}"


def _processor_time(program: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-I", "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
