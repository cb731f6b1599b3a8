"""Debian's PostgreSQL server for tests: a copy of the program, run by nobody, on a socket of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import eventually, patience

DEBIAN = Path("/usr/lib/postgresql/15")
SHARE = Path("/usr/share/postgresql")
USER, GROUP = "nobody", "nogroup"
"""PostgreSQL refuses to run as root."""

SETTINGS = {
    "listen_addresses": "",
    "cluster_name": "test",
    "shared_preload_libraries": "pg_stat_statements",
    # No process but those of a test makes transactions, reads blocks or writes them.
    "autovacuum": "off",
    "max_logical_replication_workers": "0",
    "max_parallel_workers_per_gather": "0",
    "bgwriter_lru_maxpages": "0",
    "checkpoint_timeout": "1h",
    "deadlock_timeout": "100ms",
    "synchronous_commit": "off",
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "2MB",
}
"""Of the server."""

CPU = 0
"""The CPU of the server: before Linux 6.13 a uprobe's counter misses hits on several CPUs at once."""

END = "end of the answer"


class Session:
    """A connection that stays, by psql. Each call of ``ask`` with one statement is one transaction."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child = child

    def send(self, statement: str) -> None:
        """Send a statement without waiting for its answer, which ``answer`` returns."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{statement};\n\\echo {END}\n")
        self._child.stdin.flush()

    def answer(self) -> str:
        """Return the rows of the oldest statement without an answer: a line each, columns separated by |."""
        assert self._child.stdout is not None
        rows = []
        while (line := self._child.stdout.readline().rstrip("\n")) != END:
            assert self._child.poll() is None or line, "psql has ended"
            rows.append(line)
        return "\n".join(rows)

    def ask(self, statement: str) -> str:
        self.send(statement)
        return self.answer()


class Server:
    """A running server. ``program`` is its copy of postgres, which no other process runs."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.directory, self.program = directory, program

    def run(self, name: str, *arguments: str, **environment: str) -> str:
        """Run a client program with the server's address, and return what it prints."""
        return subprocess.run(
            [DEBIAN / "bin" / name, "-h", self.directory, "-U", "postgres", *arguments],
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "PGDATABASE": "postgres", **environment},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=patience(60),
        ).stdout

    def pgbench(self, *arguments: str) -> str:
        return self.run("pgbench", "-n", *arguments)

    @contextmanager
    def session(self, options: str = "") -> Iterator[Session]:
        """Connect. ``options`` are settings of this session, such as "-c work_mem=1MB"."""
        command = [str(DEBIAN / "bin/psql"), "-XAtq", "-U", "postgres", f"--host={self.directory}"]
        environment = {"PATH": os.environ["PATH"], "PGDATABASE": "postgres", "PGOPTIONS": options}
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                yield Session(child)
            except BaseException:
                child.kill()
                raise

    def transactions(self) -> tuple[int, int]:
        """Return how many transactions all databases have committed and rolled back, by pg_stat_database.

        All sessions but this one must have been closed. It waits until their processes have ended, which
        they do after they have handed in their numbers, and hands in its own. So exactly one transaction of
        this session is not in the result: the one that reads it. Another call leaves out its own one as
        well: the difference of two results is that of the transactions that were made until each returned.
        """
        with self.session() as session:
            others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            eventually(lambda: session.ask(others) == "1")
            session.ask("SELECT pg_stat_force_next_flush()")
            row = session.ask("SELECT sum(xact_commit), sum(xact_rollback) FROM pg_stat_database")
        committed, rolled_back = map(int, row.split("|"))
        return committed, rolled_back


@contextmanager
def postgresql() -> Iterator[Server]:
    """Run a server with a new, empty cluster, which has pgbench's tables at scale 1."""
    with tempfile.TemporaryDirectory(prefix="kprobe_exporter_postgresql_") as name:
        directory = Path(name)
        program = _copied(directory)
        shutil.chown(directory, USER, GROUP)
        as_nobody: dict[str, Any] = {"user": USER, "group": GROUP, "extra_groups": (), "cwd": directory}
        cluster = ("-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        subprocess.run([DEBIAN / "bin/initdb", *cluster], check=True, stdout=subprocess.DEVNULL, **as_nobody)
        settings = [f"--{key}={value}" for key, value in SETTINGS.items()]
        command: list[str | Path] = [program, "-D", "data", "-k", directory, *settings]
        with open(directory / "log", "wb") as log:
            child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "INT", "taskset", "-c", str(CPU), *command],
                stderr=log,
                **as_nobody,
            )  # It ends if pytest is killed.
        try:
            server = Server(directory, program)
            eventually(lambda: _is_ready(directory, child), 60)
            server.run("psql", "-Xqc", "CREATE EXTENSION pg_stat_statements")
            server.run("pgbench", "-q", "-i", "-I", "dtgp")
            yield server
        finally:
            child.send_signal(signal.SIGINT)  # a fast shutdown
            try:
                child.wait(patience(20))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGQUIT)
                child.wait(patience(20))
                raise


def _copied(directory: Path) -> Path:
    """Copy the server's program; it finds its other files by their places relative to its own."""
    root = directory / DEBIAN.relative_to("/")
    (root / "bin").mkdir(parents=True)
    (root / "lib").symlink_to(DEBIAN / "lib")
    share = directory / SHARE.relative_to("/")
    share.parent.mkdir(parents=True)
    share.symlink_to(SHARE)
    return Path(shutil.copy(DEBIAN / "bin/postgres", root / "bin/postgres"))


def _is_ready(directory: Path, child: "subprocess.Popen[bytes]") -> bool:
    assert child.poll() is None, (directory / "log").read_text()
    ready = subprocess.run([DEBIAN / "bin/pg_isready", "-q", "-h", directory], check=False)
    return ready.returncode == 0
