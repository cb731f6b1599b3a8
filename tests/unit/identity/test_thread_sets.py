"""thread_sets: the threads of this machine's own processes, as the kernel shows them."""

import os
import signal
import subprocess
import threading
from pathlib import Path

from kprobe_exporter.identity.thread_sets import (
    cgroup_directory,
    processes,
    real_uid,
    threads_of,
    with_descendants,
)

PROC = Path("/proc")


def test_own_threads() -> None:
    ready, end = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    found = threads_of(PROC, [os.getpid(), 2**31 - 1])
    end.set()
    thread.join()
    assert {os.getpid(), thread.native_id} <= found


def test_own_descendants() -> None:
    """A child of a child is found by its parents, and a sibling is not."""
    words = ["sh", "-c", "sleep 100 & echo $!; wait"]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE) as child,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as sibling,
    ):
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert with_descendants(PROC, child.pid) == {child.pid, grandchild}
        assert with_descendants(PROC, os.getpid()) >= {os.getpid(), child.pid, grandchild, sibling.pid}
        assert {os.getpid(), grandchild} <= set(processes(PROC))
        os.kill(grandchild, signal.SIGTERM)


def test_real_user(tmp_path: Path) -> None:
    assert real_uid(PROC, os.getpid()) == os.getuid()
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tx\nUid:\t1\t2\t3\t4\n")
    assert real_uid(tmp_path, 7) == 1
    assert real_uid(tmp_path, 8) is None


def test_directory_that_is_no_cgroup(tmp_path: Path) -> None:
    assert cgroup_directory(str(tmp_path)) is None
