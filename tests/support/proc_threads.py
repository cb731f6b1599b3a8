"""Threads as /proc shows them."""

import os
from pathlib import Path

from kprobe_exporter.identity.procfs import INITIAL
from kprobe_exporter.identity.threads import Threads


class Machine:
    """A /proc, the two files of tracefs, and a clock."""

    def __init__(self, root: Path, namespace: str = INITIAL) -> None:
        self.proc = root
        self.now = 100.0
        self.saved = {"saved_cmdlines": b"", "saved_tgids": b""}
        self.scans = self.searches = 0
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").symlink_to(namespace)
        self.threads = Threads(self, root, lambda: self.now)

    def read(self, path: str) -> bytes:
        self.scans += 1
        return self.saved[path]

    def open_pipe(self, path: str) -> int:
        self.searches += 1
        file = self.proc / path
        file.write_bytes(self.saved[path])
        return os.open(file, os.O_RDONLY)

    def born(self, tid: int, tgid: int, comm: bytes) -> None:
        (self.proc / str(tid)).mkdir(exist_ok=True)
        (self.proc / str(tid) / "comm").write_bytes(comm + b"\n")
        (self.proc / str(tid) / "status").write_bytes(
            b"Name:\tx\nTgid:\t%d\nNgid:\t0\nPid:\t%d\n" % (tgid, tid)
        )

    def died(self, tid: int) -> None:
        for file in (self.proc / str(tid)).iterdir():
            file.unlink()
        (self.proc / str(tid)).rmdir()
