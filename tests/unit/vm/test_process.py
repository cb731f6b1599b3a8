"""A suite that makes progress is left alone; one that hangs is ended, including its children."""

import math
import sys
import threading
from pathlib import Path

import pytest

from tests.vm.process import Child

HANGS = "import time; print('tests/test_x.py::test_y PASSED [  1%]', flush=True); time.sleep(600)"
ENDS = "print('tests/test_x.py::test_y PASSED [100%]')"


def child(directory: Path, program: str, *, timeout: float = math.inf, stall: float = math.inf) -> Child:
    command = [sys.executable, "-c", program]
    return Child("suite", command, directory / "log", timeout, {}, threading.Event(), stall=stall)


def test_one_in_which_no_test_ends_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert child(tmp_path, HANGS, stall=1).run().status is None
    assert "no test has ended for 1 s: ended" in capsys.readouterr().out


def test_one_that_takes_too_long_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert child(tmp_path, HANGS, timeout=1).run().status is None
    assert "not finished after 1 s: ended" in capsys.readouterr().out


def test_one_that_ends_has_its_status_and_its_log(tmp_path: Path) -> None:
    assert child(tmp_path, ENDS, timeout=600, stall=600).run().status == 0
    assert "PASSED" in (tmp_path / "log").read_text()
