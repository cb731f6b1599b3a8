"""Addresses of running programs: this process' own mappings, in a /proc of the test's own."""

import ctypes
import gc
import os
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kprobe_exporter.elf import functions
from kprobe_exporter.identity.procfs import INITIAL
from kprobe_exporter.model.stacks import Place
from kprobe_exporter.symbols import programs
from kprobe_exporter.symbols.programs import Programs
from tests.support.libc import own_libc

PID = 70

MEMORY = 24 << 20
"""Bytes that all processes may take."""

LIBC = ctypes.CDLL(None)


def address(name: str) -> int:
    found = ctypes.cast(getattr(LIBC, name), ctypes.c_void_p).value
    assert found is not None
    return found


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(INITIAL)
    (tmp_path / str(PID)).mkdir()
    (tmp_path / f"{PID}/maps").write_bytes(Path("/proc/self/maps").read_bytes())
    (tmp_path / f"{PID}/root").symlink_to("/")
    return tmp_path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(proc: Path, clock: Clock) -> Iterator[Programs]:
    with closing(Programs(proc, clock)) as made:
        yield made


def named(known: Programs, *addresses: int, pid: int = PID) -> list[bytes]:
    frames = known.frames(pid, addresses)
    names = known.names([one for one in frames if isinstance(one, Place)])
    return [one if isinstance(one, bytes) else names.get(one, one.name) for one in frames]


def test_functions_of_a_library(known: Programs) -> None:
    libc = own_libc().name.encode()
    assert named(known, address("getppid"), address("getsid") + 1) == [libc + b"`getppid", libc + b"`getsid"]


def test_a_return_address_may_be_behind_its_function(known: Programs) -> None:
    """A call at a function's end returns to the next function's first byte."""
    first = named(known, address("getppid"))
    assert named(known, 0, address("getppid"))[1] != first[0]


def test_what_is_no_file(known: Programs, proc: Path) -> None:
    maps = proc / f"{PID}/maps"
    maps.write_bytes(
        b"00400000-00401000 r-xp 00000000 00:00 0 \n"
        b"00500000-00501000 r-xp 00000000 00:00 0                          [vdso]\n"
        b"00600000-00601000 rw-p 00000000 00:00 0                          [heap]\n"
        b"00700000-00701000 r-xp 00001000 08:01 99                         /no/such\\012file (deleted)\n"
    )
    assert named(known, 0x400000, 0x500001, 0x600001, 0x700001, 0x123) == [
        b"[unknown]",
        b"[vdso]",
        b"[unknown]",
        b"[/no/such\\012file]",
        b"[unknown]",
    ]


def test_a_file_that_was_replaced_is_not_opened(known: Programs, proc: Path, tmp_path: Path) -> None:
    other = tmp_path / "program"
    other.write_bytes(Path("/bin/true").read_bytes())
    line = b"00400000-00500000 r-xp 00000000 08:01 %d %s\n" % (other.stat().st_ino + 1, bytes(other))
    (proc / f"{PID}/maps").write_bytes(line)
    assert named(known, 0x401000) == [b"[%s]" % bytes(other)[: programs.LONGEST]]
    assert known.names(known.frames(PID, (0x401000,))) == {}  # type: ignore[arg-type]


def test_no_elf_file(known: Programs, proc: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\n")
    line = b"00400000-00500000 r-xp 00000000 08:01 %d %s\n" % (script.stat().st_ino, bytes(script))
    (proc / f"{PID}/maps").write_bytes(line)
    assert named(known, 0x401000) == [b"[script.sh]"]


@pytest.mark.parametrize(
    ("owner", "mode", "trusted"),
    [(0, 0o755, True), (1000, 0o755, False), (0, 0o775, False), (0, 0o757, False)],
)
def test_a_file_that_others_may_write(
    known: Programs, proc: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, trusted: bool
) -> None:
    """Anyone may call a file libc.so.6: where it is not root's, its whole path is shown."""
    path = bytes(own_libc())
    real = os.fstat

    def changed(descriptor: int) -> os.stat_result:
        kind, *rest = real(descriptor)
        return os.stat_result([stat.S_IFMT(kind) | mode, *rest[:3], owner, *rest[4:]])

    monkeypatch.setattr(os, "fstat", changed)
    [place] = known.frames(PID, (address("getppid"),))
    assert isinstance(place, Place)
    assert place.name == b"[%s]" % (own_libc().name.encode() if trusted else path)


def test_a_process_that_ends_keeps_its_frames(known: Programs, proc: Path, clock: Clock) -> None:
    before = named(known, address("getppid"))
    (proc / f"{PID}/maps").unlink()
    clock.now += programs.FRESH + 1
    assert named(known, address("getppid")) == before
    assert named(known, 1, 2, pid=71) == [b"[unknown]"] * 2


def test_another_program_in_the_process_is_noticed(known: Programs, proc: Path, clock: Clock) -> None:
    assert named(known, address("getppid")) != [b"[unknown]"]
    (proc / f"{PID}/maps").write_bytes(b"00400000-00401000 r-xp 00000000 00:00 0 [vdso]\n")
    clock.now += programs.FRESH + 1
    assert named(known, 0x400000, address("getppid")) == [b"[vdso]", b"[unknown]"]


def test_readings_of_mappings_have_a_rate(known: Programs, clock: Clock) -> None:
    """A storm of processes costs no more than so many readings; the rest stay unknown."""
    for pid in range(1000, 1000 + int(programs.BURST)):
        known.frames(pid, (1,))
    assert named(known, address("getppid")) == [b"[unknown]"]
    clock.now += 1
    assert named(known, address("getppid")) != [b"[unknown]"]


def test_in_another_pid_namespace_all_is_unknown(proc: Path, clock: Clock) -> None:
    (proc / "self/ns/pid").unlink()
    (proc / "self/ns/pid").symlink_to("pid:[4026532000]")
    assert named(Programs(proc, clock), address("getppid")) == [b"[unknown]"]


def test_numbers_of_files_are_bounded(
    known: Programs, proc: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that maps ever new files fills no memory, and no number is given twice."""
    monkeypatch.setattr(programs, "MOST_NUMBERS", 3)
    seen = set()
    for number in range(10):
        line = b"00400000-00500000 r-xp 00000000 08:01 %d /no/file%d\n" % (number + 1, number)
        (proc / f"{PID}/maps").write_bytes(line)
        clock.now += programs.FRESH + 1
        [place] = known.frames(PID, (0x401000,))
        assert isinstance(place, Place)
        seen.add(place.file)
        assert len(known._numbers) <= 3
    assert len(seen) == 10


def test_open_files_are_bounded(
    proc: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MOST_FILES", 3)
    known, lines = Programs(proc, clock), b""
    for number in range(8):
        file = tmp_path / f"library{number}"
        file.write_bytes(b"\x7fELF")
        at = 0x400000 + 0x1000 * number
        lines += b"%x-%x r-xp 00000000 08:01 %d %s\n" % (at, at + 0x1000, file.stat().st_ino, bytes(file))
    (proc / f"{PID}/maps").write_bytes(lines)
    before = len(os.listdir("/proc/self/fd"))
    assert named(known, 0x400000, 0x407001) == [b"[library0]", b"[library7]"]
    assert len(os.listdir("/proc/self/fd")) == before + 3
    known.close()
    assert len(os.listdir("/proc/self/fd")) == before


def held(work: Callable[[], object]) -> int:
    """Return the bytes that are held because of this work."""
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def mapped(proc: Path, pid: int, mappings: int) -> None:
    (proc / str(pid)).mkdir()
    lines = (
        b"%x-%x r-xp 0 0:0 0 [x%d]\n" % (one << 16, (one << 16) + 4096, one) for one in range(1, mappings)
    )
    (proc / f"{pid}/maps").write_bytes(b"".join(lines))


def test_processes_with_many_mappings(known: Programs, proc: Path, clock: Clock) -> None:
    """30 processes with 8,000 executable mappings each: all have one budget, and a small one stays."""
    before = named(known, address("getppid"))
    for pid in range(1000, 1030):
        mapped(proc, pid, 8000)

    def work() -> None:
        for pid in range(1000, 1030):
            clock.now += 1
            known.frames(pid, (1 << 16,))

    assert held(work) < MEMORY
    (proc / f"{PID}/maps").unlink()
    assert named(known, address("getppid")) == before


def test_forged_chains_of_frames(known: Programs, proc: Path, clock: Clock) -> None:
    """40 processes whose stacks are always new, of 127 frames."""
    for pid in range(1000, 1040):
        (proc / str(pid)).mkdir()
        (proc / f"{pid}/maps").write_bytes(b"00000000-7fffffff r-xp 00000000 08:01 99 /no/such/file\n")

    def work() -> None:
        for pid in range(1000, 1040):
            clock.now += 1
            for number in range(60):
                known.frames(pid, tuple(range(number << 20, (number << 20) + 127 * 4096, 4096)))

    assert held(work) < MEMORY


def test_long_lists_of_mappings_are_read_less_often(known: Programs, proc: Path, clock: Clock) -> None:
    for pid in range(1000, 1060):
        mapped(proc, pid, 20_000)
    read = [known.frames(pid, (1 << 16,)) for pid in range(1000, 1060)]
    assert read.count((b"[x1]",)) < 30


def test_the_names_are_those_of_one_look_up() -> None:
    """What ``functions_at`` finds in one reading is what each address has by itself."""
    from kprobe_exporter.elf.find import function_at, functions_at, locate
    from kprobe_exporter.errors import GrammarError
    from kprobe_exporter.grammar.target import parse_target

    path, places = str(own_libc()), {}
    for name in functions(path)[::40]:
        try:
            places[locate(parse_target(f"uprobe:{path}:{name}")).offset] = name
        except GrammarError:
            continue
    assert len(places) > 20
    found = functions_at(path, places)
    for offset in places:
        one = function_at(path, offset)
        assert one is not None
        assert found[offset] == one[0].partition("@")[0]


def test_the_name_of_a_process_outlives_it(known: Programs, proc: Path, clock: Clock) -> None:
    """A name that would look like a function of a file does not."""
    comm = proc / f"{PID}/comm"
    comm.write_bytes(b"a`b\nc\n")
    known.frames(PID, (address("getpid"),))
    assert known.comm(PID) == b"a'b\nc"
    comm.unlink()
    (proc / f"{PID}/maps").unlink()
    clock.now += 10
    assert known.comm(PID) == b"a'b\nc"
    assert known.comm(PID + 1) == b"[unknown]"
