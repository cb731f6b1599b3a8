"""The image, built by buildah and run by podman, as root and without a registry.

Tests cannot reach registries, so both base images are made of Debian's packages. The first stage's is made
by debootstrap, with a compiler. The last stage's has Python and the libraries that it links to, and no shell.
They are made once and kept below build/, as are the wheels that a build otherwise takes from PyPI.
"""

import fcntl
import functools
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.tools import needs_tools
from tests.vm import BUILD, ROOT

STORE = BUILD / "image"
IMAGE = "localhost/kprobe-exporter:test"
TOOLS = ("buildah", "catatonit", "debootstrap", "podman", "runc")
MIRROR = "http://deb.debian.org/debian"
SUITE, PYTHON = "bookworm", "3.11"

BUILDER = ("gcc", "libc6-dev", "python3-dev", "python3-pip")
RUNTIME = (
    *("base-files", "ca-certificates", "media-types", "tzdata"),
    *("python3", "python3-minimal", "python3.11", "python3.11-minimal"),
    *("libpython3-stdlib", "libpython3.11-minimal", "libpython3.11-stdlib"),
    *("libbz2-1.0", "libc6", "libcrypt1", "libdb5.3", "libexpat1", "libffi8", "libgcc-s1", "liblzma5"),
    *("libncursesw6", "libnsl2", "libreadline8", "libsqlite3-0", "libssl3", "libstdc++6", "libtinfo6"),
    *("libuuid1", "zlib1g"),
)
"""Packages whose files are the last stage's base: the dependencies of python3, without dpkg and perl."""

MERGED = ("bin", "lib", "lib64", "sbin")
"""Links into /usr in Debian since bookworm; file lists of packages still use them."""

UNWANTED = ("/usr/share/doc", "/usr/share/man", "/usr/share/lintian", "/usr/share/locale")


def needs_containers() -> None:
    """Skip a test if no image can be built; under CI it fails instead."""
    needs_tools(TOOLS, _path(), "images are built and run as root here", "make test")


@functools.cache
def build() -> str:
    """Build the image of this tree, in 15 s and a minute more the first time; return its name."""
    STORE.mkdir(parents=True, exist_ok=True)
    with STORE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _configure()
        builder, base = _bases()
        volumes = {_wheelhouse(): "/wheelhouse", STORE / "pip.conf": "/etc/pip.conf"}
        options = ["--isolation=chroot", "--network=host", "--format=docker", f"--tag={IMAGE}"]
        options += [f"--build-arg=BUILDER={builder}", f"--build-arg=BASE={base}"]
        options += [f"--volume={there}:{here}:ro" for there, here in volumes.items()]
        tool("buildah", "bud", "--quiet", *options, ROOT)
        tool("buildah", "rmi", "--prune")
    return IMAGE


def tool(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run buildah or podman over a store below build/; AssertionError with its stderr if it fails."""
    environment = {
        **os.environ,
        "PATH": _path(),
        "CONTAINERS_CONF": str(STORE / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(STORE / "storage.conf"),
    }
    run = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert not check or run.returncode == 0, f"{command[:2]} ended with {run.returncode}: {run.stderr}"
    return run


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
    """The PATH with the directories of administration tools, where debootstrap is."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"


def _bases() -> tuple[str, str]:
    """The names of both bases; they are made if missing, and again when this recipe changes."""
    recipe = hashlib.sha256(repr((SUITE, BUILDER, RUNTIME, UNWANTED)).encode()).hexdigest()[:12]
    names = f"localhost/kprobe-exporter-builder:{recipe}", f"localhost/kprobe-exporter-base:{recipe}"
    if all(tool("podman", "image", "exists", name, check=False).returncode == 0 for name in names):
        return names
    tree, archive = STORE / SUITE, STORE / "base.tar"
    shutil.rmtree(tree, ignore_errors=True)
    tool("debootstrap", "--variant=minbase", f"--include={','.join(BUILDER)}", SUITE, tree, MIRROR)
    _pack(tree, archive)
    for name, content in zip(names, (tree, archive), strict=True):
        container = tool("buildah", "from", "scratch").stdout.strip()
        tool("buildah", "add", "--quiet", container, content, "/")
        tool("buildah", "commit", "--quiet", "--rm", "--format", "docker", container, name)
    shutil.rmtree(tree)
    archive.unlink()
    return names


def _pack(tree: Path, archive: Path) -> None:
    """Pack the files of the RUNTIME packages, and those in /etc that name users."""
    lists = tree / "var/lib/dpkg/info"
    names = {"/etc/passwd", "/etc/group"}
    for package in RUNTIME:
        listed = next(file for file in lists.iterdir() if file.name in _lists(package))
        names.update(name for name in listed.read_text().splitlines() if not name.startswith(UNWANTED))
    names.discard("/.")
    in_usr = {f"/usr{name}" if name.split("/")[1] in MERGED else name for name in names}
    with tarfile.open(archive, "w") as tar:
        for name in [*(f"/{link}" for link in MERGED), *sorted(in_usr)]:
            tar.add(tree / name[1:], name[1:], recursive=False)


def _lists(package: str) -> Sequence[str]:
    """The names that dpkg's list of a package's files may have: with the architecture or without."""
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return f"{package}.list", f"{package}:{architecture}.list"


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
