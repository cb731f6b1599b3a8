"""Symbols of a kernel, and a machine that has them."""

import os
from pathlib import Path

from kprobe_exporter.symbols.addresses import Symbols
from kprobe_exporter.symbols.lists import ADDRESSES
from tests.unit.tracefs.conftest import Table as Listed

KALLSYMS = b"""0000000000000000 A fixed_percpu_data
ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000100 t first
ffffffff81000180 T vfs_read
ffffffff81000180 W alias_of_vfs_read
ffffffff81000200 D some_data
ffffffffc0000010 t ext4_open\t[ext4]
ffffffffc0000050 t ext4_close\t[ext4]
"""


HIDDEN = b"0000000000000000 T _text\n0000000000000000 T vfs_read\n"


class Files(Listed):
    """A table of files; only those in it can be opened."""

    def open_pipe(self, path: str) -> int:
        self.read(path)
        return os.open("/dev/null", os.O_RDONLY)


class Machine:
    """A /proc/kallsyms, a tracefs and a clock."""

    def __init__(self, root: Path, kallsyms: bytes | None, addresses: bytes | None = None) -> None:
        self.file, self.modules = root / "kallsyms", root / "modules"
        if kallsyms is not None:
            self.file.write_bytes(kallsyms)
        self.files = Files()
        if addresses is not None:
            self.files.files[ADDRESSES] = addresses
        self.now = 0.0
        self.symbols = Symbols(self.files, self.file, lambda: self.now)


LISTED = b"""ffffffff81000104 first
ffffffff81000184 vfs_read
ffffffff81000204 second
ffffffff81000250 __ftrace_invalid_address___42
ffffffff81000304 last
ffffffffc0000014 ext4_open [ext4]
ffffffffc0009014 ext4_close [ext4]
"""
