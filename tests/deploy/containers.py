"""The image, built by buildah and run by podman, as root and without a registry.

Tests cannot reach registries, so both base images are Debian's packages, unpacked but not configured. The
first stage's has a compiler. The last stage's has Python and the libraries that it links to, and no shell; as
nothing of it runs while it is made, there is one for each processor. They are made once and kept below
build/, as are the wheels that a build otherwise takes from PyPI.
"""

import fcntl
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.tools import needs_tools
from tests.vm import BUILD, ROOT
from tests.vm.debian import Suite, extract

STORE = BUILD / "image"
IMAGE = "localhost/kprobe-exporter:test"
TOOLS = ("buildah", "catatonit", "podman", "runc")
SUITE, PYTHON = "bookworm", "3.11"

BUILDER = ("base-files", "coreutils", "dash", "gcc", "libc6-dev", "python3-dev", "python3-pip")
RUNTIME = (
    *("base-files", "base-passwd", "ca-certificates", "media-types", "tzdata"),
    *("python3", "python3-minimal", "python3.11", "python3.11-minimal"),
    *("libpython3-stdlib", "libpython3.11-minimal", "libpython3.11-stdlib"),
    *("libbz2-1.0", "libc6", "libcrypt1", "libdb5.3", "libexpat1", "libffi8", "libgcc-s1", "liblzma5"),
    *("libncursesw6", "libnsl2", "libreadline8", "libsqlite3-0", "libssl3", "libstdc++6", "libtinfo6"),
    *("libuuid1", "zlib1g"),
)
"""Packages whose files are the last stage's base: the dependencies of python3, without dpkg and perl."""

UNWANTED = ("doc", "lintian", "locale", "man")
"""What of /usr/share an image needs not."""


def needs_containers() -> None:
    """Skip a test if no image can be built; under CI it fails instead."""
    needs_tools(TOOLS, _path(), "images are built and run as root here", "make test")


@functools.cache
def build() -> str:
    """Build the image of this tree, in 15 s and a minute more the first time; return its name."""
    with locked():
        volumes = {_wheelhouse(): "/wheelhouse", STORE / "pip.conf": "/etc/pip.conf"}
        options = ["--isolation=chroot", "--network=host", "--format=docker", f"--tag={IMAGE}"]
        options += [f"--build-arg=BUILDER={_builder()}", f"--build-arg=BASE={base('amd64')}"]
        options += [f"--volume={there}:{here}:ro" for there, here in volumes.items()]
        tool("buildah", "bud", "--quiet", *options, ROOT)
        tool("buildah", "rmi", "--prune", check=False)  # it fails if a test still uses one of them
    return IMAGE


@contextmanager
def locked() -> Iterator[None]:
    """Configure the store, which is only this process' until the context ends."""
    STORE.mkdir(parents=True, exist_ok=True)
    with STORE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _configure()
        yield


def tool(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run buildah or podman over a store below build/; AssertionError with its stderr if it fails."""
    run = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert not check or run.returncode == 0, f"{command[:2]} ended with {run.returncode}: {run.stderr}"
    return run


def environment() -> dict[str, str]:
    """The environment in which the tools use that store."""
    return {
        **os.environ,
        "PATH": _path(),
        "CONTAINERS_CONF": str(STORE / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(STORE / "storage.conf"),
    }


@contextmanager
def container(*options: str, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Run a container, and yield its name. It has no network, so its port 10435 is its own."""
    name = f"kprobe-exporter-{os.getpid()}-{next(_numbers)}"
    tool("podman", "run", "--detach", "--name", name, "--network=none", *options, IMAGE, *arguments)
    try:
        yield name
    finally:
        tool("podman", "rm", "--force", "--time=2", name)


_numbers = itertools.count()


def inspect(name: str) -> Any:
    """podman's data on an image or a container."""
    return json.loads(tool("podman", "inspect", name).stdout)[0]


def get(container: str, path: str) -> str | None:
    """The answer of the agent in a container, or None if there is none, or an error."""
    run = tool("podman", "exec", container, "python3", "-c", _GET, path, check=False)
    return run.stdout if run.returncode == 0 else None


_GET = """
import sys, urllib.request
print(urllib.request.urlopen("http://127.0.0.1:10435" + sys.argv[1]).read().decode(), end="")
"""


def in_a_vm(kernel: str, files: Path, config: Mapping[str, Any]) -> Any:
    """Run an image's command in a VM with its ``files`` as root; return what tests.deploy.guest prints."""
    vm = [sys.executable, "-m", "tests.vm", "exec", "--kernel", kernel, "--"]
    run = subprocess.run(
        [*vm, ROOT / ".venv/bin/python", "-m", "tests.deploy.guest", files, json.dumps(config)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(re.findall(r"\{\"metrics\".*\}$", run.stdout, re.MULTILINE)[0])


def _configure() -> None:
    """Configure podman without systemd, overlayfs or CAP_SYS_RESOURCE, and pip without a network."""
    limits = [f"{name}=1024:1024" for name in ("nofile", "nproc")]
    engine = {"runtime": "runc", "cgroup_manager": "cgroupfs", "events_logger": "file"}
    storage = {"driver": "vfs", "graphroot": f"{STORE}/storage", "runroot": f"{STORE}/run"}
    _write("containers.conf", {"containers": {"default_ulimits": limits}, "engine": engine})
    _write("storage.conf", {"storage": storage})
    (STORE / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheelhouse\n")


def _write(name: str, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a TOML file; strings and lists of JSON are valid TOML."""
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    (STORE / name).write_text("\n".join(lines) + "\n")


def _path() -> str:
    """The PATH with the directories of administration tools, where podman looks for its helpers."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"


def _builder() -> str:
    """The name of the first stage's base, made if it is missing, and again when this recipe changes."""
    name = _named("builder", SUITE, BUILDER)
    if _missing(name):
        debs = STORE / "debs"
        tree = _unpacked("builder", Suite(SUITE).fetch_with_dependencies(BUILDER, debs))
        shutil.rmtree(debs)
        _commit(tree, name, "amd64")
    return name


def base(architecture: str) -> str:
    """The name of the last stage's base for a processor as Debian names it, made likewise."""
    name = _named(f"base-{architecture}", SUITE, RUNTIME, UNWANTED)
    if _missing(name):
        with tempfile.TemporaryDirectory(dir=STORE) as debs:
            files = Suite(SUITE, arch=architecture).download(RUNTIME, Path(debs))
            tree = _unpacked(f"base-{architecture}", files)
        for file in ("passwd", "group"):
            shutil.copy(tree / f"usr/share/base-passwd/{file}.master", tree / "etc" / file)
        _commit(tree, name, architecture)
    return name


def _unpacked(name: str, debs: Sequence[Path]) -> Path:
    """The directory in which these packages are unpacked."""
    tree = STORE / name
    shutil.rmtree(tree, ignore_errors=True)
    extract(debs, tree, UNWANTED)
    return tree


def bases(*architectures: str) -> str:
    """The name of an index of the bases for these processors."""
    name = _named("bases", *map(base, architectures))
    if _missing(name):
        tool("buildah", "manifest", "create", name)
        for architecture in architectures:
            tool("buildah", "manifest", "add", name, f"containers-storage:{base(architecture)}")
    return name


def _named(what: str, *recipe: object) -> str:
    """The name of an image, which is another one if its recipe is."""
    return f"localhost/kprobe-exporter-{what}:{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}"


def _missing(name: str) -> bool:
    return tool("podman", "image", "exists", name, check=False).returncode != 0


def _commit(tree: Path, name: str, architecture: str) -> None:
    """Make an image of a directory, which is gone then."""
    container = tool("buildah", "from", f"--platform=linux/{architecture}", "scratch").stdout.strip()
    tool("buildah", "add", "--quiet", container, tree, "/")
    tool("buildah", "commit", "--quiet", "--rm", "--format", "docker", container, name)
    shutil.rmtree(tree)


def _wheelhouse() -> Path:
    """A directory with the packages that pip installs in the image, downloaded for the image's Python."""
    locks = [ROOT / "deploy/requirements" / name for name in ("runtime.txt", "build.txt")]
    digest = hashlib.sha256(b"".join([PYTHON.encode(), *(lock.read_bytes() for lock in locks)])).hexdigest()
    house = STORE / f"wheelhouse-{digest[:12]}"
    if not house.exists():
        partial = house.with_name("wheelhouse.partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--require-hashes", "--only-binary=:all:", "--python-version", PYTHON]
        for lock in locks:
            tool(*pip, "--dest", partial, "--requirement", lock)
        partial.rename(house)
    return house
