"""A directory such as /proc, with processes in containers that a test makes."""

from pathlib import Path

from tests.support.containers import PATHS, UID, container_id


class ContainerProcesses:
    """Processes by their ids, each in a cgroup and with a root of its own. That of the host is process 1."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.roots = directory / "roots"
        (self.roots / "host").mkdir(parents=True)
        self.add(1, "/init.scope", "host")

    def start(self, pid: int, number: int, root: str = "", runtime: str = "containerd") -> Path:
        """Start a process in the container of this number; return its root, which is named after that."""
        uid = UID.format(number)
        path = PATHS[runtime].format(uid=uid, uid_=uid.replace("-", "_"), id=container_id(number))
        return self.add(pid, f"/{path}", root or f"container{number}")

    def add(self, pid: int, cgroup: str, root: str) -> Path:
        directory, files = self.proc / str(pid), self.roots / root
        directory.mkdir(parents=True)
        files.mkdir(exist_ok=True)
        (directory / "cgroup").write_text(f"0::{cgroup}\n")
        (directory / "root").symlink_to(files)
        return files

    def end(self, pid: int) -> None:
        for name in ("cgroup", "root"):
            (self.proc / str(pid) / name).unlink()
        (self.proc / str(pid)).rmdir()
