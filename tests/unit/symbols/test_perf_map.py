"""Functions that a program compiles: the list in its own /tmp, and the one at an address."""

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from kprobe_exporter.identity.cgroups import TICK
from kprobe_exporter.identity.procfs import INITIAL
from kprobe_exporter.model.stacks import Place
from kprobe_exporter.symbols import perf_map
from kprobe_exporter.symbols.perf_map import functions_at, open_map
from kprobe_exporter.symbols.programs import FRESH, Programs
from kprobe_exporter.util.overruns import OVERRUNS

PID, INNER = 70, 7
"""The id of a process in a container, on the host and inside."""

USER = os.geteuid()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """A process that started now, in a root directory of its own, and that has compiled functions."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(INITIAL)
    made = tmp_path / f"proc/{PID}"
    (made / "root/tmp").mkdir(parents=True)
    (made / "status").write_text(
        f"Name:\tapp\nTgid:\t{PID}\nUid:\t1\t2\t3\t{USER}\nGid:\t0\t0\t0\t0\nNStgid:\t{PID}\t{INNER}\n"
    )
    start = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK
    (made / "stat").write_text(f"{PID} (a) b) S{' 0' * 18} {start} 0\n")
    (made / "maps").write_bytes(
        b"00400000-00500000 r-xp 00000000 00:00 0 \n00600000-00700000 rwxp 00000000 00:00 0  [anon:v8]\n"
        b"00800000-00900000 r-xp 00000000 00:00 0  [vdso]\n"
        b"00a00000-00b00000 r-xs 00000000 00:01 99  /memfd:doublemapper (deleted)\n"
    )
    return made


@pytest.fixture
def listed(process: Path) -> Path:
    path = process / f"root/tmp/perf-{INNER}.map"
    path.write_text("400000 100 py::first:/a.py\n600010 8 JS:*second /b.js:1:2\na00000 10 third\n")
    return path


def names(known: Programs, *addresses: int) -> list[bytes]:
    frames = known.frames(PID, addresses)
    found = known.names([one for one in frames if isinstance(one, Place)])
    return [one if isinstance(one, bytes) else found.get(one, one.name) for one in frames]


def of_other_user(fstat: Callable[[int], os.stat_result]) -> Callable[[int], SimpleNamespace]:
    def status(descriptor: int) -> SimpleNamespace:
        found = fstat(descriptor)
        fields = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**fields | {"st_uid": USER + 1})

    return status


def test_functions_of_mappings_without_file(process: Path, listed: Path) -> None:
    with closing(Programs(process.parent)) as known:
        assert names(known, 0x400000, 0x400001, 0x600018, 0xA00010, 0x400100, 0x600020, 0x800001) == [
            b"jit`py::first:/a.py",
            b"jit`py::first:/a.py",
            b"jit`JS:*second /b.js:1:2",
            b"jit`third",
            b"jit`py::first:/a.py",  # it returns to the byte after the function
            b"[jit]",
            b"[vdso]",
        ]


def test_function_listed_later(process: Path, listed: Path) -> None:
    """A place whose function is not listed yet is looked up again, and the last function is the one."""
    with closing(Programs(process.parent)) as known:
        assert names(known, 0x400200) == [b"[jit]"]
        with listed.open("a") as file:
            file.write("400200 10 old\n400200 10 new\n")
        assert names(known, 0x400200) == [b"jit`new"]


def test_list_written_later(process: Path) -> None:
    clock = Clock()
    with closing(Programs(process.parent, clock)) as known:
        assert names(known, 0x400000) == [b"[unknown]"]
        (process / f"root/tmp/perf-{INNER}.map").write_text("400000 100 late\n")
        clock.now += FRESH + 1
        assert names(known, 0x400000) == [b"jit`late"]


def test_names_outlive_process(process: Path, listed: Path) -> None:
    clock = Clock()
    with closing(Programs(process.parent, clock)) as known:
        known.frames(PID, (0x400000,))
        for name in ("maps", "status", "stat"):
            (process / name).unlink()
        listed.unlink()
        clock.now += FRESH + 1
        assert names(known, 0x400000) == [b"jit`py::first:/a.py"]


@pytest.mark.parametrize("fault", ["owner", "mode", "old", "fifo", "no status"])
def test_list_not_of_process(
    process: Path, listed: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    open_map(process).close()
    match fault:
        case "owner":
            monkeypatch.setattr(os, "fstat", of_other_user(os.fstat))
        case "mode":
            listed.chmod(0o666)
        case "old":
            os.utime(listed, (0, time.time() - 10))
        case "fifo":
            listed.unlink()
            os.mkfifo(listed)
        case "no status":
            (process / "status").write_text("")
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        open_map(process)
    with closing(Programs(process.parent)) as known:
        assert names(known, 0x400000) == [b"[unknown]"]


def test_lines_that_no_compiler_writes(listed: Path) -> None:
    lines = [
        b"400000 10 good\n",
        b"400000 10\n",
        b"400000 10 \n",
        b"0x400000 10 prefixed\n",
        b"-400000 10 negative\n",
        b"400000 10000000000000000000000 huge\n",
        b"\xff\n\n",
        b"1 1 " + b"x" * perf_map.MAX_LINE + b"\n",
        b"2 1 " + b"y" * (perf_map.MAX_LINE - 4) + b"400000 10 inside\n",
        b"400010 ffffffffffffffff a`b\x1b[1m\xc3\xa9\n",
        b"400020 1 unfinished",
    ]
    listed.write_bytes(b"".join(lines))
    found = functions_at(str(listed), (0x3FFFFF, 0x400000, 0x40000F, 0x400010, 0x400020), PID)
    assert found == {
        0x400000: "good",
        0x40000F: "good",
        0x400010: "a'b?[1mé",
        0x400020: "unfinished",
    }


@pytest.mark.parametrize("kind", ["holes", "ranges"])
def test_hostile_list(
    listed: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A list beyond its budget costs the names of its process, once a minute, and a line of the log."""
    OVERRUNS.clear()
    if kind == "holes":
        os.truncate(listed, 1 << 40)
    else:
        listed.write_bytes(b"0 ffffffffffffffff f\n" * 100_000)
    began = time.thread_time()
    assert functions_at(str(listed), range(0x400000, 0x401000), PID) == {}
    assert time.thread_time() - began < 3
    assert [one.getMessage() for one in caplog.records] == [
        "the functions that process 70 compiles stay unknown: its list of them is too long"
    ]
    monkeypatch.setattr(perf_map, "FileBudget", None)
    assert functions_at(str(listed), (0x400000,), PID) == {}
    OVERRUNS.clear()


def test_lists_are_bounded(process: Path, listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.symbols.programs.MOST_FILES", 2)
    clock, before = Clock(), len(os.listdir("/proc/self/fd"))
    with closing(Programs(process.parent, clock)) as known:
        kept = []
        for number in range(5):  # each list is another file
            kept.append(listed.rename(listed.with_name(f"old{number}")))
            listed.write_text("400000 100 f\n")
            clock.now += FRESH + 1
            assert names(known, 0x400000) == [b"jit`f"]
        assert len(os.listdir("/proc/self/fd")) == before + 2
        assert len(known._compiled) == 2
    assert len(os.listdir("/proc/self/fd")) == before
