"""The kernels under test, as data, and how their files come here."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.vm import BUILD
from tests.vm.debian import newest, unpack


@dataclass(frozen=True)
class Kernel:
    """One kernel series of Debian.

    `absent` names what this series is known to lack, as `@pytest.mark.needs` spells it. A test
    that is skipped in the VM for any other reason is a failure.
    """

    series: str
    absent: frozenset[str] = frozenset()


KERNELS = {
    kernel.series: kernel
    for kernel in (
        Kernel("6.1", absent=frozenset({"available_filter_functions_addrs", "buffer_subbuf_size_kb"})),
        Kernel("6.12"),
    )
}


@dataclass(frozen=True)
class Image:
    """A kernel unpacked: what boots, and its release as `uname -r` prints it."""

    vmlinuz: Path
    release: str


def image(kernel: Kernel) -> Image:
    """The newest package of the series, unpacked the first time and then kept.

    The plain kernel, not the cloud one: that lacks 9p, by which the guest sees this machine.
    """
    root = BUILD / "kernels" / kernel.series
    if not root.exists():
        series = kernel.series.replace(".", r"\.")
        unpack(newest(rf"linux-image-{series}\.[0-9]+[0-9a-z.+]*(-[0-9]+)?-amd64"), root)
    if not (root / "lib").exists():  # Newer packages have merged /lib into /usr/lib.
        (root / "lib").symlink_to("usr/lib")
    vmlinuz = next((root / "boot").glob("vmlinuz-*"))
    release = vmlinuz.name.removeprefix("vmlinuz-")
    if not (root / "lib/modules" / release / "modules.dep.bin").exists():
        subprocess.run(["/sbin/depmod", "-b", root, release], check=True)
    return Image(vmlinuz, release)
