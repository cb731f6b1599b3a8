"""Boots a kernel under test over this machine's own root, by virtme-ng, and runs one command in it.

The guest sees the root read-only over 9p. Emulated, and with 9p as virtme-ng mounts it, Python
takes 0.8 s to start and 6 s to import what the agent imports. 9p with a cache makes that 0.4 s and
2.3 s, so the directories that Python reads are mounted again, cached, over themselves. The cache
trusts that nobody writes there meanwhile: the one directory that is writable is not cached.
"""

import os
import shlex
import socket
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.vm import BUILD, ROOT
from tests.vm.kernels import Kernel, image

MOUNT = "mount -t 9p -o trans=virtio,version=9p2000.L,access=any,msize=524288"
GUEST_PORT = 10435


def _cached() -> list[Path]:
    """What Python reads: this repository, its library, the shared libraries, itself."""
    places = [
        ROOT,
        Path(sysconfig.get_path("stdlib")),
        Path(sysconfig.get_config_var("LIBDIR")),
        Path("/usr/lib", sysconfig.get_config_var("MULTIARCH")),
        Path(sys.executable).resolve().parent,
    ]
    real = {place.resolve() for place in places}
    return sorted(place for place in real if not any(place.is_relative_to(o) for o in real - {place}))


# At import: sysconfig fills itself at first use, and not safely so from two threads.
CACHED = _cached()


@dataclass(frozen=True)
class Guest:
    """One boot: a kernel, the command that it runs, and where its logs are.

    The guest may write to one directory: `writable`, or that of the logs.
    """

    kernel: Kernel
    command: Sequence[str]
    directory: Path
    timeout: int
    port: int | None = None  # of this machine's loopback, forwarded to the guest's GUEST_PORT
    writable: Path | None = None
    cpus: int = 2  # more than one, since tracing is per CPU; one thread of this machine emulates all

    @property
    def shared(self) -> Path:
        return (self.writable or self.directory).resolve()


def command(guest: Guest) -> list[str]:
    """The command that boots, runs and ends with the guest command's status."""
    script = guest.directory / "guest.sh"
    script.write_text(_script(guest))
    vng = ["vng", "--run", str(image(guest.kernel).vmlinuz), "--force-9p", "--user", "root"]
    # Emulation works everywhere; KVM within a VM often does not.
    vng += ["--disable-kvm", "--cpus", str(guest.cpus), "--memory", "2G"]
    # The kernel's own words go to a file: the serial console is virtme-ng's, which drops them.
    vng += ["--append", "console=hvc0", "--append", "loglevel=5"]
    # As real machines do, events take their time from the TSC: not believed that both CPUs' are one
    # clock, the kernel would ask a device (HPET) each time, which under emulation costs most of a probe.
    vng += ["--append", "tsc=reliable"]
    vng += [f"--qemu-opts= {shlex.join(_devices(guest))}"]
    # The command travels on the kernel's command line, which is short: only a path.
    return [*vng, "--exec", shlex.join(["sh", str(script)])]


def environment() -> dict[str, str]:
    """What virtme-ng needs, and the tests: the venv's tools and promtool on the PATH."""
    ours = f"{Path(sys.executable).parent}:{BUILD / 'prometheus/usr/bin'}"
    return {**os.environ, "PATH": f"{ours}:{os.environ['PATH']}:/usr/sbin:/sbin"}


def free_port(first: int) -> int:
    """The first port from `first` on that nobody holds on the loopback."""
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
    # One thread for both CPUs. With one each, of some thirty boots that switched tracepoints on and
    # off one was lost and one panicked in a branch that tracing patches; with one, none of as many.
    devices = ["-accel", "tcg,thread=single"]
    devices += ["-chardev", f"file,id=kernel,path={guest.directory / 'console.log'}"]
    devices += ["-device", "virtio-serial-pci,id=kernel-bus"]
    devices += ["-device", "virtconsole,bus=kernel-bus.0,chardev=kernel"]
    shares = [(f"cached{n}", place, ",readonly=on") for n, place in enumerate(CACHED)]
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
        "PATH": environment()["PATH"],
        "CI": "true",  # for hypothesis: emulated, a test has no deadline
        # The host has compiled everything, and nothing can be written here.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        # No test of a kernel needs pytest's plugins, and they take seconds to import.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
    }
    lines = ["#!/bin/sh", "# What the guest ran; written by tests/vm/boot.py.", "set -e"]
    lines += ["mount -t tmpfs tmpfs /tmp"]
    mounts = [(f"cached{n}", place, "ro,cache=loose") for n, place in enumerate(CACHED)]
    for tag, place, options in [*mounts, ("writable", guest.shared, "rw")]:
        # Only what lies below the new /tmp is not there yet.
        lines += [f"[ -d {_q(place)} ] || mkdir -p {_q(place)}"]
        lines += [f"{MOUNT},{options} {tag} {_q(place)}"]
    if guest.port is not None:
        # QEMU's user network as its DHCP server would give it.
        lines += ["modprobe virtio_net", "interface=$(ls -d /sys/class/net/e*)"]
        lines += ["ip addr add 10.0.2.15/24 dev ${interface##*/}"]
        lines += ["ip link set ${interface##*/} up"]
    lines += [f"export {name}={_q(value)}" for name, value in variables.items()]
    # Should this machine forget the VM, the VM ends by itself.
    lines += [f"cd {_q(ROOT)}", f"exec timeout -k 10 {guest.timeout} {shlex.join(guest.command)}"]
    return "\n".join(lines) + "\n"


def _q(value: object) -> str:
    return shlex.quote(str(value))
