"""`make run` looks at the port before it builds, and installs what the event engine is compiled with."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def port_is_free(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(ROOT / "scripts/port-is-free"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_port_in_use_is_said_before_the_build() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        found = port_is_free("--config", "x.yaml", "--web.listen-address", address)
    assert found.returncode == 1
    assert found.stderr.startswith(f"kprobe-exporter: cannot listen on {address}: the port is in use")
    again = port_is_free(f"--web.listen-address={address}")
    assert (again.returncode, again.stderr) == (0, "")


def test_make_looks_at_the_port_first() -> None:
    command = ["make", "--dry-run", "--what-if=pyproject.toml", "run", "ARGS=--config x.yaml"]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    order = [
        steps.index(step)
        for step in ("scripts/port-is-free --config x.yaml", "scripts/bootstrap", "exporter run")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize("what", ["runtime", "test"])
@pytest.mark.parametrize("brought", [True, False])
def test_compiler_installed_where_missing(tmp_path: Path, what: str, brought: bool) -> None:
    for directory in ("scripts", "kprobe_exporter/source", ".venv/bin"):
        (tmp_path / directory).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/bootstrap", tmp_path / "scripts")
    for file in ("pyproject.toml", "kprobe_exporter/source/_pages.pyx"):
        (tmp_path / file).touch()
    programs = {
        "scripts/debian-packages": f'echo "packages: $*"; exit {0 if brought else 1}',
        ".venv/bin/python": 'case "$*" in *sysconfig*) echo /nowhere ;; esac',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    command = ["bash", "scripts/bootstrap", what]
    environment = {**os.environ, "PYTHON": sys.executable}
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "packages: gcc python3-dev" in made.stdout
    assert (made.returncode == 0) == brought, made.stderr
    assert ("install gcc and the headers of Python 3" in made.stderr) != brought
