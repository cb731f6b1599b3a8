"""The files in which a kernel describes itself: its tracefs, its lists of symbols, its types."""

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import MAP_PRIVATE, PROT_READ, mmap
from pathlib import Path
from typing import BinaryIO

from kprobe_exporter.tracefs.files import Tracefs

BTF = "sys/kernel/btf"
"""The directory of the kernel's types: ``vmlinux``, and a file for each module."""

BLOCK = 1 << 20  # Bytes of a block of lines


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """All that planning reads of a kernel: the running one, or one that was saved.

    ``open`` opens a file outside of tracefs for reading, by its path below the root, such as
    ``proc/kallsyms``; ``names`` lists a directory there. Both raise OSError. ``release`` and ``machine`` are
    those of uname(2).
    """

    tracefs: Tracefs
    open: Callable[[str], BinaryIO]
    names: Callable[[str], list[str]]
    release: str
    machine: str

    def read(self, path: str) -> bytes:
        """Return the content of a file outside of tracefs. Raises OSError."""
        with self.open(path) as file:
            return file.read()

    def lines(self, path: str) -> Iterator[bytes]:
        """Yield the lines of a file outside of tracefs, as kallsyms has too many to hold. Raises OSError."""
        with self.open(path) as file:
            yield from file

    def blocks(self, path: str) -> Iterator[bytes]:
        """Yield the same in blocks of whole lines, which are searched faster. Raises OSError."""
        with self.open(path) as file:
            begun = b""
            while data := file.read(BLOCK):
                lines, end, rest = data.rpartition(b"\n")
                if end:
                    yield begun + lines + end
                    begun = rest
                else:
                    begun += rest
            if begun:
                yield begun

    def btf(self, name: str) -> bytes | mmap:
        """Return the types of the kernel, ``vmlinux``, or of a module. Raises OSError.

        Since Linux 6.16 those of the kernel can be mapped (kernel/bpf/sysfs_btf.c), by MAP_PRIVATE alone;
        what cannot is read.
        """
        with self.open(f"{BTF}/{name}") as file:
            try:
                return mmap(file.fileno(), 0, flags=MAP_PRIVATE, prot=PROT_READ)
            except (OSError, ValueError):
                return file.read()

    def types(self) -> list[str]:
        """Return the names that ``btf`` takes; none on a kernel without types."""
        try:
            return self.names(BTF)
        except OSError:
            return []


def running_kernel(tracefs: Tracefs, root: Path = Path("/")) -> KernelFiles:
    """Return the files of the running kernel. ``root`` is ``/``, or a directory that a test uses instead."""
    return KernelFiles(
        tracefs,
        lambda path: (root / path).open("rb"),
        lambda path: sorted(os.listdir(root / path)),
        platform.release(),
        platform.machine(),
    )
