"""Debian packages, unpacked below build/: nothing is installed, and no service starts."""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.vm import BUILD

PROMETHEUS = BUILD / "prometheus"


class PackageError(Exception):
    """A package is not available; the message says what to do."""


def promtool() -> Path:
    """Prometheus' checker of metrics, rules and web configuration."""
    return unpack("prometheus", PROMETHEUS) / "usr/bin/promtool"


def alertmanager() -> Path:
    """Prometheus' Alertmanager; beside it is amtool, its checker of configurations."""
    return unpack("prometheus-alertmanager", BUILD / "alertmanager") / "usr/bin/prometheus-alertmanager"


def confinement() -> None:
    """Unpack AppArmor's parser and podman's seccomp profile, to confine processes as container runtimes do.

    They are only unpacked: installing the first starts a service, the second depends on a network stack.
    """
    unpack("apparmor", BUILD / "apparmor")
    unpack("golang-github-containers-common", BUILD / "containers")


def newest(pattern: str) -> str:
    """The available package with the highest version in its name, among those whose whole name matches."""
    names = _matching(pattern)
    if not names and os.geteuid() == 0:
        _update_lists()
        names = _matching(pattern)
    if not names:
        raise PackageError(f"apt knows no package {pattern}: run apt-get update as root")
    return max(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def unpack(package: str, into: Path) -> Path:
    """Unpack `package` into the directory `into`, unless that exists."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with _locked(into.with_name(into.name + ".lock")):
        if not into.exists():
            print(f"== unpacking {package} into {into.relative_to(BUILD.parent)}", flush=True)
            partial = into.with_name(into.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            subprocess.run(["dpkg", "-x", _download(package, partial), partial], check=True)
            for deb in partial.glob("*.deb"):
                deb.unlink()
            partial.rename(into)
    return into


def _download(package: str, into: Path) -> Path:
    command = ["apt-get", "download", "--quiet", package]
    # Otherwise apt, run as root, downloads as its own user, who may not write here.
    command += ["--option", "APT::Sandbox::User=root"]
    if not _succeeds(command, into) and os.geteuid() == 0:
        _update_lists()  # the lists may name a version that the mirror has replaced
        _succeeds(command, into)
    try:
        return next(into.glob("*.deb"))
    except StopIteration:
        message = f"cannot download {package}: run apt-get update as root and try again"
        raise PackageError(message) from None


def _succeeds(command: list[str], directory: Path) -> bool:
    run = subprocess.run(command, check=False, cwd=directory, stdin=subprocess.DEVNULL)
    return run.returncode == 0


def _matching(pattern: str) -> list[str]:
    found = subprocess.run(
        ["apt-cache", "search", "--names-only", f"^{pattern}$"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [line.split()[0] for line in found.stdout.splitlines()]


def _update_lists() -> None:
    subprocess.run(["apt-get", "update"], stdin=subprocess.DEVNULL, check=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
