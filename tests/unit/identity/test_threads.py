"""Threads by their id: from /proc while they live, then from what the kernel saved, without forged names."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.identity import saved_tgids, threads
from kprobe_exporter.identity.saved_tgids import parse_tgids, search
from kprobe_exporter.identity.threads import CLONE_THREAD, FRESH, Threads, parse_comms
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.support.patience import eventually, patience
from tests.support.proc_threads import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def later(machine: Machine) -> Machine:
    machine.now += FRESH
    return machine


def test_a_living_thread(machine: Machine) -> None:
    machine.born(7, 5, b"a\nb c")
    assert (machine.threads.comm(7), machine.threads.tgid(7)) == (b"a\nb c", 5)
    assert machine.scans == 0


def test_a_process_that_ends_while_all_are_listed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in (5, 6):
        task = tmp_path / f"{number}/task/{number}"
        task.mkdir(parents=True)
        (task / "comm").write_text(f"name{number}\n")

    def ended(real: Callable[[str | Path], object], place: str | Path) -> object:
        if str(place) == f"{tmp_path}/6/task":
            raise FileNotFoundError(2, "No such file or directory", str(place))
        return real(place)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, partial(ended, getattr(os, name)))
    monkeypatch.setattr(threads, "host_proc", lambda proc: proc)
    assert threads.living(tmp_path) == {5: b"name5"}


def test_the_idle_thread(machine: Machine) -> None:
    assert (machine.threads.comm(0), machine.threads.tgid(0)) == (b"<idle>", 0)


def test_a_thread_that_ended_before_it_was_asked_for(machine: Machine) -> None:
    machine.saved = {"saved_cmdlines": b"7 a long enough\n8 other and more\n", "saved_tgids": b"7 5\n8 8\n"}
    assert (machine.threads.comm(7), machine.threads.tgid(7)) == (b"a long enough", 5)
    assert machine.threads.comm(9) is None


def test_what_was_known_stays_known_when_the_thread_ends(machine: Machine) -> None:
    machine.born(7, 5, b"short")
    assert machine.threads.comm(7) == b"short"
    machine.died(7)
    machine.now += FRESH
    assert machine.threads.comm(7) == b"short"


def test_an_id_that_is_anothers_by_now(machine: Machine) -> None:
    machine.born(7, 5, b"first")
    assert machine.threads.comm(7) == b"first"
    machine.born(7, 7, b"second")
    assert machine.threads.comm(7) == b"first"  # for some seconds
    machine.now += FRESH
    assert (machine.threads.comm(7), machine.threads.tgid(7)) == (b"second", 7)


def test_in_another_pid_namespace_proc_is_not_asked(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "pid:[4026532777]")
    machine.born(7, 5, b"somebody else")
    assert (machine.threads.comm(7), machine.threads.tgid(7)) == (None, None)
    machine.saved["saved_tgids"] = b"7 6\n"
    eventually(lambda: later(machine).threads.tgid(7) == 6)


def test_a_thread_that_is_saved_only_after_it_was_asked_for(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "pid:[4026532777]")
    assert machine.threads.tgid(7) is None
    machine.saved["saved_tgids"] = b"7 6\n"
    eventually(lambda: later(machine).threads.tgid(7) == 6)


def test_where_text_tells_processes_nothing_is_searched(machine: Machine) -> None:
    machine.saved["saved_tgids"] = b"7 6\n"
    threads = Threads(machine, machine.proc, lambda: machine.now, searches=False)
    machine.born(8, 5, b"lives")
    assert [threads.tgid(tid) for tid in (7, 8)] == [None, 5]
    assert machine.searches == 0


def test_a_thread_whose_start_was_recorded(machine: Machine) -> None:
    """It is known without /proc and without a search, also a thread of a process that is known."""
    machine.threads.started(1, 70, 0)
    machine.threads.started(70, 71, CLONE_THREAD)
    assert [machine.threads.tgid(tid) for tid in (70, 71)] == [70, 70]
    machine.threads.started(1, 71, 0)  # the id was reused
    assert machine.threads.tgid(71) == 71
    assert machine.searches == 0


class Endless:
    """A file of all threads that takes a minute to read, as where 4 million have run."""

    def __init__(self) -> None:
        self.content, self.end = os.pipe()
        self.readers: list[int] = []

    def read(self, path: str) -> bytes:
        self.readers.append(threading.get_ident())
        with open(os.dup(self.content), "rb") as file:
            return file.read()

    def open_pipe(self, path: str) -> int:
        self.readers.append(threading.get_ident())
        return os.dup(self.content)

    def close(self) -> None:
        """End the search that reads. The next one must not find the number of another test's file."""
        content, self.content = self.content, -1
        os.close(self.end)
        os.close(content)


def test_the_caller_never_reads_the_file_of_all_threads(tmp_path: Path) -> None:
    """Of 98 threads that have ended the first waits for a fraction of a second, and the others hardly."""
    saved = Endless()
    end = threading.Timer(patience(5), os.close, [saved.end])
    end.start()
    known = Threads(saved, tmp_path)
    began = time.monotonic()
    assert [known.tgid(tid) for tid in range(2, 100)] == [None] * 98
    assert time.monotonic() - began < patience(1)
    assert len(saved.readers) == 1
    assert threading.get_ident() not in saved.readers
    end.cancel()
    saved.close()


def test_a_search_keeps_what_was_asked_for(tmp_path: Path) -> None:
    """What is kept is bounded, whatever the file has."""
    file = tmp_path / "saved"
    file.write_bytes(b"".join(b"%d 5\n" % tid for tid in range(1, 100_000)))
    found = search(os.open(file, os.O_RDONLY), {2, 60_000, 99_999, 77_777_777})
    assert (found[2], found[60_000], found[99_999]) == (5, 5, 5)
    assert len(found) <= saved_tgids.MOST_KEPT + 3


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        (b"kworker/0:1-events", b"kworker/0:1"),
        (b"kworker/u8:2+flush-8:0", b"kworker/u8:2"),
        (b"kworker/1:0H-kblockd", b"kworker/1:0H"),
        (b"kworker/R-xfs-buf/vda", b"kworker/R-xfs-b"),
        (b"rcu_tasks_rude_kthread", b"rcu_tasks_rude_"),
        (b"a-b+c", b"a-b+c"),
    ],
)
def test_a_name_is_what_events_have_not_what_proc_adds(machine: Machine, shown: bytes, name: bytes) -> None:
    machine.born(7, 7, shown)
    assert machine.threads.comm(7) == name


def test_many_unknown_threads_cost_one_scan(machine: Machine) -> None:
    for tid in range(1, 500):
        assert machine.threads.comm(tid) is None
    assert machine.scans == 1
    machine.now += 2 * threads.SCAN_PAUSE
    machine.threads.comm(600)
    assert machine.scans == 2


def test_the_cache_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MOST_THREADS", 10)
    for tid in range(1, 40):
        machine.threads.comm(tid)
    assert len(machine.threads._comms._known) == 10


def test_unreadable_files_give_no_name(tmp_path: Path) -> None:
    threads = Threads(MountedTracefs(tmp_path / "none"), tmp_path)
    assert (threads.comm(7), threads.tgid(7)) == (None, None)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"", {}),
        (b"1 systemd-journald\n", {}),  # longer than a name can be
        (b"1 systemd-journa\n22 kworker/u8:2-ev\n", {1: b"systemd-journa", 22: b"kworker/u8:2-ev"}),
        (b"5 x\n1 systemd\n", {}),  # one thread's name with a newline, or two threads
        (b"5 exactly fifteen\n1 systemd-journa\n", {5: b"exactly fifteen", 1: b"systemd-journa"}),
        (b"5 x\nno number\n", {}),
        (b"5 a name of size\n5 a name of size\n", {}),
        (b"5 \n", {5: b""}),
        (b"5 <...>\n123456 systemd-journa\n", {123456: b"systemd-journa"}),
    ],
)
def test_names_that_may_have_been_forged_are_left_out(text: bytes, names: dict[int, bytes]) -> None:
    found = parse_comms(text)
    assert {tid: name for tid, name in found.items() if tid in names} == names
    assert found.keys() <= names.keys()


names = st.binary(max_size=15).filter(lambda name: b"\0" not in name)


@given(
    st.dictionaries(
        st.integers(1, 30), names | st.sampled_from([b"x\n7 root", b"\n7 a", b"\n\n"]), max_size=12
    )
)
def test_whatever_the_names_no_thread_gets_one_that_is_not_its_own(real: dict[int, bytes]) -> None:
    text = b"".join(b"%d %s\n" % entry for entry in real.items())
    for tid, name in parse_comms(text).items():
        assert real.get(tid) == name


@given(st.binary(max_size=200))
def test_anything_may_be_in_the_files(text: bytes) -> None:
    assert all(tid >= 0 for tid in parse_comms(text))
    assert all(tid >= 0 for tid in parse_tgids(text))
