"""The engine without Python: its tests in C, and a fuzz target, under AddressSanitizer and UBSan."""

import subprocess
from pathlib import Path

import pytest

from tests.support.compiling import compiler
from tests.support.engine_build import SANITIZED, STRICT, build_engine

HERE = Path(__file__).parent
INPUTS = 1000


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build_engine(tmp_path_factory.mktemp("engine"))


def build(program: Path, objects: list[Path], *sources: str) -> Path:
    paths = [HERE / source for source in sources]
    subprocess.run([compiler("gcc"), *SANITIZED, *STRICT, *paths, *objects, "-o", program], check=True)
    return program


def run(*command: Path | str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def test_hand_written_pages(objects: list[Path], tmp_path: Path) -> None:
    said = run(build(tmp_path / "test", objects, "test_engine.c"))
    assert said.count("\ntest_") + 1 == (HERE / "test_engine.c").read_text().count("TEST(test_")


def test_drawn_commands(objects: list[Path], tmp_path: Path) -> None:
    program = build(tmp_path / "fuzz", objects, "fuzz_engine.c", "driver.c")
    assert f"{INPUTS} inputs" in run(program, str(INPUTS), "1")
