"""A root file system of another architecture, for guests that cannot run this machine's programs.

It is made of Debian's packages and lies below build/roots. Nothing of it runs on this machine, so no package
is configured: what the tests need of that is done here. Its virtual environment has this project's packages
at the versions of deploy/requirements, pytest and hypothesis at those of this machine's environment, and the
compiled modules built by a cross compiler. A guest mounts it over this repository's .venv.
"""

import compileall
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.support.loader_caches import AARCH64, Entry, cache
from tests.vm import BUILD, ROOT
from tests.vm.debian import PackageError, Suite, extract

PYTHON = "3.11"
"""The Python of Debian bookworm."""

PACKAGES = (
    # What virtme-ng's first process calls.
    *("base-files", "base-passwd", "bash", "busybox-static", "coreutils", "dash", "findutils", "grep"),
    *("hostname", "iproute2", "kmod", "libc-bin", "mawk", "mount", "procps", "sed", "udev", "util-linux"),
    # What the tests call, and what they compare the agent with.
    *("apparmor", "bpftrace", "curl", "dmsetup", "e2fsprogs", "file", "gcc", "gzip", "libc6-dev"),
    *("libseccomp2", "nodejs", "openssl", "php8.2-cli", "postgresql-15", "prometheus", "python3"),
    *("strace", "systemd", "tar"),
    # Python's header files, for the cross compiler.
    "libpython3.11-dev",
)
EXTENSIONS = ("_lines", "_pages")
"""The compiled modules."""

TOOLS = ("hypothesis", "pytest", "rotel")


@dataclass(frozen=True)
class Architecture:
    """What the tools call one architecture of Debian: the kernel, the wheels of Python, and QEMU."""

    debian: str
    machine: str
    cpu: str

    @property
    def multiarch(self) -> str:
        return f"{self.machine}-linux-gnu"

    @property
    def root(self) -> Path:
        return BUILD / "roots" / self.debian

    @property
    def environment(self) -> Path:
        """The virtual environment that a guest mounts over .venv."""
        return self.root / "venv"


ARCHITECTURES = {
    # This CPU has pages of 4 and of 16 KiB. It has no pointer authentication, which is slow to emulate.
    "arm64": Architecture("arm64", "aarch64", "cortex-a76"),
}


def prepare(arch: Architecture, modules: Path) -> Path:
    """Return the root file system with the kernel's `modules` in it, made anew when PACKAGES have changed.

    Raises PackageError if a package cannot be had.
    """
    arch.root.parent.mkdir(parents=True, exist_ok=True)
    with _locked(arch.root.with_name(f"{arch.debian}.lock")):
        made_of = arch.root / "packages"
        if not made_of.exists() or made_of.read_text() != " ".join(PACKAGES):
            print(f"== a root file system of {arch.debian} in {arch.root.relative_to(ROOT)}", flush=True)
            partial = arch.root.with_name(f"{arch.debian}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            _unpack(arch, partial)
            _configure(arch, partial)
            (partial / made_of.name).write_text(" ".join(PACKAGES))
            shutil.rmtree(arch.root, ignore_errors=True)
            partial.rename(arch.root)
        _add_modules(arch.root, modules)
        _add_python_packages(arch)
        for name in EXTENSIONS:
            _build_extension(arch, name)
    return arch.root


def _unpack(arch: Architecture, root: Path) -> None:
    debs = Suite("bookworm", arch=arch.debian).fetch_with_dependencies(PACKAGES, BUILD / "roots/debs")
    extract(debs, root, unneeded=("doc", "locale", "man"))
    shutil.rmtree(BUILD / "roots/debs")


def _configure(arch: Architecture, root: Path) -> None:
    """What the packages' own scripts would have done."""
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    for name in ("home", "media", "mnt", "opt", "srv"):
        (root / name).mkdir(exist_ok=True)
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    # Else each program would fail to open some files before it finds its library.
    libc = Entry("libc.so.6", f"/lib/{arch.multiarch}/libc.so.6", AARCH64)
    (root / "etc/ld.so.cache").write_bytes(cache([libc]))
    for name, program in (("cc", "gcc"), ("awk", "mawk"), ("sh", "dash")):
        link = root / "usr/bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(program)
    # The places at which a guest mounts what it shares with this machine.
    for place in (ROOT, (ROOT / ".venv").resolve()):
        (root / place.relative_to("/")).mkdir(parents=True, exist_ok=True)
    # The bytecode of another version would not be used.
    if f"{sys.version_info.major}.{sys.version_info.minor}" == PYTHON:
        library = root / f"usr/lib/python{PYTHON}"
        compileall.compile_dir(library, quiet=2, stripdir=str(root), prependdir="/")


def _add_modules(root: Path, modules: Path) -> None:
    """Link the files of a kernel's modules into the root, where modprobe looks for them."""
    place = root / "usr/lib/modules" / modules.name
    if not place.exists():
        partial = place.with_name(f"{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(modules, partial, copy_function=os.link, symlinks=True)
        partial.rename(place)


def _add_python_packages(arch: Architecture) -> None:
    lock = ROOT / "deploy/requirements/runtime.txt"
    tools = [f"{name}=={version(name)}" for name in TOOLS]
    wanted = "\n".join([lock.read_text(), *tools])
    stamp = arch.environment / "stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"== Python packages of {arch.debian}", flush=True)
    shutil.rmtree(arch.environment, ignore_errors=True)
    library = arch.environment / f"lib/python{PYTHON}/site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    pip += ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}", f"--target={library}"]
    pip += [f"--platform=manylinux_2_{glibc}_{arch.machine}" for glibc in range(36, 16, -1)]
    pip += [f"--platform=manylinux2014_{arch.machine}"]
    for what in (["--require-hashes", f"--requirement={lock}"], tools):
        if subprocess.run([*pip, *what], stdin=subprocess.DEVNULL, check=False).returncode:
            raise PackageError(f"pip cannot install the Python packages of {arch.debian}: it said why")
        shutil.rmtree(library / "bin", ignore_errors=True)
    (library / "kprobe_exporter.pth").write_text(f"{ROOT}\n")
    binaries = arch.environment / "bin"
    binaries.mkdir()
    for name in ("python", "python3"):
        (binaries / name).symlink_to(f"/usr/bin/python{PYTHON}")
    (arch.environment / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    agent = binaries / "kprobe-exporter"
    agent.write_text(
        f"#!{ROOT}/.venv/bin/python\nimport sys\n\nfrom kprobe_exporter.cli import main\n\nsys.exit(main())\n"
    )
    agent.chmod(0o755)
    stamp.write_text(wanted)


def _build_extension(arch: Architecture, name: str) -> None:
    """Build a compiled module beside this machine's: their names differ by the architecture."""
    directory = ROOT / "kprobe_exporter/source"
    output = directory / f"{name}.cpython-{PYTHON.replace('.', '')}-{arch.multiarch}.so"
    engine = ROOT / "kprobe_exporter/engine"
    sources = [*directory.glob("_*.p[yx][xdi]"), *engine.glob("*.[ch]")]
    newest = max(source.stat().st_mtime for source in sources)
    if output.exists() and output.stat().st_mtime >= newest:
        return
    code = arch.root.with_name(f"{arch.debian}{name}.c")
    cython = [sys.executable, "-m", "cython", "-3", str(directory / f"{name}.pyx"), "-o", str(code)]
    subprocess.run(cython, check=True)
    headers = arch.root / "usr/include"
    # Python's header includes one by its path below the second directory.
    compiler = [f"{arch.multiarch}-gcc", "-O2", "-fPIC", "-shared", "-s", "-w", "-DNDEBUG"]
    compiler += [f"-I{headers}/python{PYTHON}", "-idirafter", str(headers), f"-I{engine}"]
    more = sorted(engine.glob("*.c")) if name == "_pages" else []
    partial = output.with_suffix(".partial")
    subprocess.run([*compiler, code, *more, "-o", partial], check=True)
    partial.rename(output)
    code.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
