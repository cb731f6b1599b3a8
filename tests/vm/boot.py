"""Boots a kernel under test over this machine's own root, by virtme-ng, and runs one command in it.

A kernel of another architecture is booted over a root file system of its own (`foreign`), with this
repository at the same path.

The guest sees the root read-only over 9p. Emulated, and with 9p as virtme-ng mounts it, Python takes 0.8 s
to start and 6 s to import the agent's imports. A cache reduces that to 0.4 s and 2.3 s, so the directories
that Python reads are mounted again, cached, over themselves. The cache is valid only as long as no process
writes there. Therefore the one writable directory is not cached.
"""

import os
import shlex
import socket
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.vm import BUILD, ROOT, foreign
from tests.vm.foreign import Architecture
from tests.vm.kernels import Kernel, image
from tests.vm.machines import USUAL, Machine

MOUNT = "mount -t 9p -o trans=virtio,version=9p2000.L,access=any,msize=524288"
GUEST_PORT = 10435

QUICK = ("mitigations=off", "init_on_alloc=0")
"""Options of every kernel. Emulated, the mitigations of speculative execution protect nothing, and a
retpoline takes three jumps. Debian's kernels zero each page that they allocate."""
QUICK_X86 = ("no5lvl", "tsc=reliable")
"""The fifth level of page tables makes each miss of the TLB longer. Events take their time from the TSC, as
on real machines: without the option the kernel does not trust the TSC of two CPUs and reads the HPET each
time, which under emulation is most of a probe's cost."""


def _cached() -> list[Path]:
    """The directories that Python reads: this repository, its library, the shared libraries, its own."""
    places = [
        ROOT,
        Path(sysconfig.get_path("stdlib")),
        Path(sysconfig.get_config_var("LIBDIR")),
        Path("/usr/lib", sysconfig.get_config_var("MULTIARCH")),
        Path(sys.executable).resolve().parent,
    ]
    real = {place.resolve() for place in places}
    return sorted(place for place in real if not any(place.is_relative_to(o) for o in real - {place}))


# Computed at import: sysconfig initialises itself at first use, which is not thread-safe.
CACHED = _cached()


def _mounts(arch: Architecture | None) -> list[tuple[Path, Path]]:
    """The directories of this machine that a guest mounts cached, and where."""
    if arch is None:
        return [(place, place) for place in CACHED]
    # The environment is mounted last: it may be below the repository.
    environment = (ROOT / ".venv").resolve()
    return [(arch.root / "usr", Path("/usr")), (ROOT, ROOT), (arch.environment, environment)]


@dataclass(frozen=True)
class Guest:
    """One boot: a kernel, its command, and the directory of its logs.

    The guest may write to one directory: `writable`, or the directory of the logs.
    """

    kernel: Kernel
    command: Sequence[str]
    directory: Path
    timeout: int
    port: int | None = None  # on this machine's loopback, forwarded to the guest's GUEST_PORT
    writable: Path | None = None
    machine: Machine = USUAL  # one thread of this machine emulates all of its CPUs

    @property
    def shared(self) -> Path:
        return (self.writable or self.directory).resolve()


def command(guest: Guest) -> list[str]:
    """The command that boots the kernel, runs the guest's command and exits with its status."""
    script = guest.directory / "guest.sh"
    script.write_text(_script(guest))
    kernel = image(guest.kernel)
    vng = ["vng", "--run", str(kernel.vmlinuz), "--force-9p"]
    if arch := guest.kernel.foreign:
        root = foreign.prepare(arch, kernel.modules)
        # As long as the guest has not mounted this repository it finds the script in its own root.
        early = root / script.resolve().relative_to("/")
        for place in (early.parent, root / guest.shared.relative_to("/")):
            place.mkdir(parents=True, exist_ok=True)
        early.write_text(script.read_text())
        vng += ["--arch", arch.debian, "--root", str(root), "--cwd", str(root)]
    else:
        vng += ["--user", "root"]
    # Emulation works everywhere; KVM within a VM often does not.
    vng += ["--disable-kvm", "--cpus", guest.machine.cpus, "--memory", guest.machine.memory]
    # The kernel's log goes to a file, since virtme-ng drops the serial console.
    vng += ["--append", "console=hvc0", "--append", "loglevel=5"]
    for option in (*QUICK, *(QUICK_X86 if arch is None else ()), *guest.machine.options):
        vng += ["--append", option]
    vng += [f"--qemu-opts= {shlex.join(_devices(guest))}"]
    # vng passes the command on the kernel's short command line, so it is only a path.
    return [*vng, "--exec", shlex.join(["sh", str(script.resolve())])]


def environment(kernel: Kernel | None = None) -> dict[str, str]:
    """The environment of virtme-ng and the tests, with the venv's tools and promtool on the PATH.

    A guest of another architecture has a promtool of its own.
    """
    ours = [str(Path(sys.executable).parent)]
    if kernel is None or kernel.foreign is None:
        ours.append(str(BUILD / "prometheus/usr/bin"))
    return {**os.environ, "PATH": ":".join([*ours, os.environ["PATH"], "/usr/sbin", "/sbin"])}


def free_port(first: int) -> int:
    """The first free port of the loopback from `first` on."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {first} to {first + 99}")


def _devices(guest: Guest) -> list[str]:
    # One thread for both CPUs. With a thread for each, of some thirty boots that toggled tracepoints, one was
    # lost and one panicked in a branch that tracing patches; with one thread, none of as many.
    devices = ["-accel", "tcg,thread=single"]
    # QEMU polls two descriptors for each possible port, 400 in all, at each timer of the guest.
    devices += ["-global", "virtio-serial-pci.max_ports=2"]
    arch = guest.kernel.foreign
    # The oldest processor of x86-64: without AVX, whose registers each switch of threads saves, the suites
    # take a tenth less time than with all that QEMU emulates, which is virtme-ng's choice.
    devices += ["-cpu", arch.cpu if arch else "qemu64"]
    devices += ["-chardev", f"file,id=kernel,path={guest.directory / 'console.log'}"]
    devices += ["-device", "virtio-serial-pci,id=kernel-bus"]
    devices += ["-device", "virtconsole,bus=kernel-bus.0,chardev=kernel"]
    shares = [(f"cached{n}", here, ",readonly=on") for n, (here, _) in enumerate(_mounts(arch))]
    for tag, place, readonly in [*shares, ("writable", guest.shared, "")]:
        options = f"local,id={tag},path={place},security_model=none,multidevs=remap{readonly}"
        devices += ["-fsdev", options, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    if guest.port is not None:
        forward = f"hostfwd=tcp:127.0.0.1:{guest.port}-:{GUEST_PORT}"
        devices += ["-netdev", f"user,id=net,restrict=on,{forward}"]
        devices += ["-device", "virtio-net-pci,netdev=net,romfile="]
    return devices


def _script(guest: Guest) -> str:
    variables = {
        "KPROBE_EXPORTER_VM": guest.kernel.series,
        "HOME": "/tmp",
        "PATH": environment(guest.kernel)["PATH"],
        "CI": "true",  # for hypothesis: under emulation a test has no deadline
        # The host has compiled all bytecode, and the guest cannot write here.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        # Tests of a kernel need none of pytest's plugins, whose import takes seconds.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    }
    lines = ["#!/bin/sh", "# What the guest ran; written by tests/vm/boot.py.", "set -e"]
    lines += ["mount -t tmpfs tmpfs /tmp"]
    places = enumerate(_mounts(guest.kernel.foreign))
    mounts = [(f"cached{n}", there, "ro,cache=loose") for n, (_, there) in places]
    for tag, place, options in [*mounts, ("writable", guest.shared, "rw")]:
        # Only directories below the new /tmp are missing.
        lines += [f"[ -d {_q(place)} ] || mkdir -p {_q(place)}"]
        lines += [f"{MOUNT},{options} {tag} {_q(place)}"]
    if guest.port is not None:
        # The addresses that the DHCP server of QEMU's user network would assign.
        # udev renames the device at any moment after modprobe.
        lines += ["modprobe virtio_net"]
        lines += ['on_device() { until ip "$@" dev "$(ls /sys/class/net | grep ^e)"; do sleep 0.1; done; }']
        lines += ["on_device addr add 10.0.2.15/24", "on_device link set up"]
    lines += [f"export {name}={_q(value)}" for name, value in variables.items()]
    # The VM ends by itself even if the process that started it is gone.
    lines += [f"cd {_q(ROOT)}", f"exec timeout -k 10 {guest.timeout} {shlex.join(guest.command)}"]
    return "\n".join(lines) + "\n"


def _q(value: object) -> str:
    return shlex.quote(str(value))
