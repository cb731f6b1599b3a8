"""replaced_files: probes are attached to the file that replaced theirs, count in both, and gather nothing."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from kprobe_exporter.agent import replaced_files as module
from kprobe_exporter.agent.replaced_files import BURST, EVERY
from tests.support.compiling import compiled
from tests.support.counted_reads import Reads
from tests.support.fake_tracefs import code_at
from tests.support.machine import COUNTED, EVENTS, GROUP, OPEN, Watched, watched
from tests.support.patience import eventually
from tests.support.programs import file_offset

TWICE = "__attribute__((noinline)) int twice(int n) { return 2 * n; }\n"
MAIN = "int main(int count, char **words) { return count; }\n"
BEFORE = "int before(int n) { return 3 * n + 5; }\n"


class Program:
    """A program at a path, whose function a test calls in processes of the present file or of earlier ones.

    It holds its files open, as definitions in the kernel do: else an inode would be used again.
    """

    def __init__(self, directory: Path, start: Callable[..., Watched], log: Callable[[], str]) -> None:
        self.directory = directory
        self.path = directory / "program"
        self.number = 0
        self.held: list[IO[bytes]] = []
        self.replace(TWICE + MAIN)
        self.events = self.probe("events", ", metrics: [{counter: calls_total}]")
        self.counts = self.probe("counts")
        self.log, self._start = log, start

    def start(self, *probes: str) -> Watched:
        """Start an agent, by default with a probe that records and one that only counts."""
        return self._start(*(probes or (self.events, self.counts)))

    def replace(self, source: str | None = None) -> None:
        """Rename a new file to the path, as a package's upgrade does."""
        self.number += 1
        source = (BEFORE * (self.number % 2 == 0)) + TWICE + MAIN if source is None else source
        new = compiled(self.directory / f"program{self.number}", source)
        self.held.append(new.open("rb"))
        new.rename(self.path)

    @property
    def code(self) -> str:
        """The function in the present file."""
        return code_at(self.path, file_offset(str(self.path), "twice"))

    def probe(self, name: str, rest: str = "", kind: str = "uprobe") -> str:
        return f"{{name: {name}, attach: '{kind}:{self.path}:twice'{rest}}}"


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Program]:
    caplog.set_level(logging.INFO)
    with ExitStack() as stack:

        def start(*probes: str) -> Watched:
            return stack.enter_context(watched(tmp_path, monkeypatch, *probes))

        made = Program(tmp_path, start, lambda: caplog.text)
        yield made
    for file in made.held:
        file.close()


def totals(machine: Watched, times: int) -> None:
    """Wait for the hits and events of both probes."""
    machine.shows(
        (times, "kprobe_hits_total", "events"),
        (times, "kprobe_hits_total", "counts"),
        (times, "kprobe_exporter_events_total", "events"),
        (times, "kprobe_calls_total"),
        (0, "kprobe_exporter_events_lost_total", "unparsed"),
        (0, "kprobe_exporter_events_lost_total", "disabled"),
    )


def test_the_calls_of_both_files_count(program: Program) -> None:
    machine, old = program.start(), program.code
    machine.fire(old, 3)
    machine.look()
    assert "replaced" not in program.log()
    program.replace()
    assert program.code != old
    machine.look()
    machine.fire(old, 4)
    machine.fire(program.code, 5)
    totals(machine, 12)
    machine.shows((1, "kprobe_up", "events"), (1, "kprobe_up", "counts"))
    before = len(machine.files.writes)
    machine.look(times=20)
    assert machine.files.writes[before:] == []
    for name in ("events", "counts"):
        line = f"the probe '{name}': {program.path} was replaced; attached to the new file too"
        assert program.log().count(line) == 1


def test_a_library_that_goes_to_another_path(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library given by its name is looked up again, as the loader's cache may have a new path for it."""
    places = {"libtwice.so.1": str(program.path)}
    for where in ("kprobe_exporter.agent.replaced_files", "kprobe_exporter.elf.find"):
        monkeypatch.setattr(f"{where}.library_path", lambda name, *_: places.get(name, name))
    machine, old = program.start("{name: counts, attach: 'uprobe:libtwice.so.1:twice'}"), program.code
    machine.fire(old, 3)
    machine.look()
    assert "replaced" not in program.log()
    program.path = program.directory / "elsewhere"
    program.replace()
    places["libtwice.so.1"] = str(program.path)
    machine.look()
    machine.fire(old, 4)
    machine.fire(program.code, 5)
    machine.shows((12, "kprobe_hits_total", "counts"), (1, "kprobe_up", "counts"))
    assert program.log().count("libtwice.so.1 was replaced; attached to the new file too") == 1


def test_a_start_and_a_reload_read_a_file_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it stays: the next plan sees the file that is there then."""
    probes = [program.probe(f"p{number}") for number in range(5)]
    probes.append(program.probe("both", kind="ucall"))
    reads = Reads(monkeypatch)
    machine = program.start(*probes)
    assert reads.files == 1
    program.replace()
    assert machine.reload(*probes, program.probe("more", ", metrics: [{counter: more_total}]")) is None
    machine.fire(program.code, 5)
    machine.shows((5, "kprobe_hits_total", "more"))
    descriptors = len(os.listdir("/proc/self/fd"))
    assert machine.reload(*probes) is None
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)  # the poller may just read a file


def test_each_path_is_looked_at_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many probes there are in it."""
    machine = program.start(*[program.probe(f"p{number}") for number in range(5)])
    looked: list[str] = []
    look = module._file

    def counted(path: str, inode: tuple[int, int] | None) -> object:
        looked.append(path)
        return look(path, inode)

    monkeypatch.setattr(module, "_file", counted)
    machine.look()
    assert looked == [str(program.path)]


def test_a_reload_looks_too(program: Program) -> None:
    machine, old = program.start(), program.code
    program.replace()
    assert machine.reload(program.events, program.counts, COUNTED) is None
    machine.fire(old, 4)
    machine.fire(program.code, 5)
    totals(machine, 9)
    assert machine.reload(program.events, program.counts) is None
    machine.fire(old, 4)
    machine.fire(program.code, 5)
    totals(machine, 18)


def test_what_is_not_in_a_file_is_not_touched(program: Program) -> None:
    machine = program.start(OPEN, program.probe("counts"))
    program.replace()
    before = len(machine.files.writes)
    machine.look()
    assert [write for write in machine.files.writes[before:] if "open" in f"{write}"] == []


@pytest.mark.parametrize("readable", [True, False])
def test_only_latest_files_stay(program: Program, monkeypatch: pytest.MonkeyPatch, readable: bool) -> None:
    """Where the counts of a file that goes cannot be read, hits may be missed but are never counted twice."""
    monkeypatch.setattr(module, "MOST_OLDER", 2)
    machine = program.start()
    if not readable:
        monkeypatch.setattr("kprobe_exporter.agent.probe_set.ProbeSet._hits", lambda *_: None)
    codes = []
    for number in range(1, 9):
        codes.append(program.code)
        for code in codes[-3:]:
            machine.fire(code, 2)
        machine.shows((sum(min(n, 3) for n in range(1, number + 1)) * 2, "kprobe_calls_total"))
        program.replace()
        machine.look(EVERY)
        assert len(machine.enabled()) == 2 * min(number + 1, 3)
    total = (1 + 2 + 6 * 3) * 2
    if readable:
        totals(machine, total)
    machine.fire(codes[0])
    machine.fire(program.code)
    machine.shows((total + 1, "kprobe_calls_total"))
    if readable:
        totals(machine, total + 1)
    hits = machine.value("kprobe_hits_total", "counts")
    assert 0 < hits <= total + 1
    assert "calls in processes that run the oldest of its 3 replaced files are no longer" in program.log()


def test_definitions_are_bounded(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.agent.probe_set.MOST_RETIRED", 8)
    monkeypatch.setattr("kprobe_exporter.agent.probe_set.KEPT", 4)
    machine = program.start()
    for _ in range(12):
        program.replace()
        machine.look(EVERY)
        machine.fire(program.code)
        assert len(machine.defined()) <= 2 * 4 + 8 + 2
    totals(machine, 12)


def test_a_file_that_comes_back_counts_once(program: Program, tmp_path: Path) -> None:
    """Links are switched to and fro: no file is probed twice."""
    machine, first = program.start(), program.code
    os.link(program.path, tmp_path / "first")
    program.replace()
    second = program.code
    os.link(program.path, tmp_path / "second")
    machine.look()
    times = 0
    for number in range(6):
        os.link(tmp_path / ("first", "second")[number % 2], tmp_path / "link")
        (tmp_path / "link").rename(program.path)
        machine.look(EVERY)
        machine.fire(first)
        machine.fire(second)
        times += 2
        totals(machine, times)
    assert len(machine.enabled()) == 4
    assert len(machine.defined()) == 4


def test_a_file_that_is_missing_for_a_while(program: Program) -> None:
    machine, old = program.start(), program.code
    program.path.unlink()
    before = len(machine.files.writes)
    machine.look(times=5)
    machine.fire(old, 2)
    totals(machine, 2)
    assert machine.files.writes[before:] == []
    program.replace()
    machine.look()
    machine.fire(old)
    machine.fire(program.code)
    totals(machine, 4)
    assert "down" not in program.log()


def test_a_file_without_the_function(program: Program) -> None:
    machine, old = program.start(), program.code
    program.replace(MAIN)
    machine.look(times=5)
    machine.fire(old, 2)
    totals(machine, 2)
    machine.shows((0, "kprobe_up", "events"), (0, "kprobe_up", "counts"))
    why = (
        f"uprobe:{program.path}:twice: {program.path} has no function 'twice'; only calls in processes that "
        "still run the file that was replaced are counted."
    )
    assert machine.status("events").reason == why
    assert program.log().count(f"the probe 'events' is down: {why}") == 1
    program.replace()
    machine.look()
    machine.fire(old, 2)
    machine.fire(program.code, 3)
    totals(machine, 7)
    machine.shows((1, "kprobe_up", "events"), (1, "kprobe_up", "counts"))
    assert machine.status("events").reason == ""


def test_a_reload_keeps_what_still_counts(program: Program) -> None:
    machine, old = program.start(), program.code
    program.replace(MAIN)
    machine.look()
    assert machine.reload(program.events, program.counts, COUNTED) is None
    machine.fire(old, 2)
    totals(machine, 2)
    machine.shows((0, "kprobe_up", "events"))
    assert machine.reload(COUNTED) is None
    assert machine.enabled() == ["counted"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_text("MZ, but no ELF file\n"), "is no ELF file"),
        (lambda path: path.write_text("#!/bin/sh\n"), "is a script: probe the program that runs it"),
        (
            lambda path: path.write_bytes(Path("/proc/self/exe").read_bytes()[:100]),
            "is damaged: its headers contradict each other or its size",
        ),
        (os.mkfifo, "is not a regular file, so no program or library"),
        (os.mkdir, "is not a regular file, so no program or library"),
        (lambda path: path.symlink_to(path), ""),
    ],
    ids=["text", "a script", "cut off", "a pipe", "a directory", "a link to itself"],
)
def test_what_is_no_program(program: Program, make: Callable[[Path], object], said: str) -> None:
    """One sentence says so, once; a link that leads nowhere is a file that is missing."""
    machine, old = program.start(), program.code
    program.path.unlink()
    make(program.path)
    machine.look(times=5)
    machine.fire(old, 2)
    totals(machine, 2)
    assert program.log().count("the probe 'events' is down") == (1 if said else 0)
    assert (f"{program.path} {said}" in machine.status("events").reason) == bool(said)
    assert "Traceback" not in program.log()


def test_a_file_that_is_still_being_written(program: Program) -> None:
    machine = program.start()
    whole = program.path.read_bytes()
    program.path.unlink()
    program.path.write_bytes(whole[:200])
    machine.look()
    machine.shows((0, "kprobe_up", "events"))
    with program.path.open("ab") as file:
        file.write(whole[200:])
    machine.look()
    machine.fire(program.code)
    totals(machine, 1)
    machine.shows((1, "kprobe_up", "events"))
    assert program.log().count("the probe 'events' is down") == 1


def test_a_file_that_grows_is_reported_once(program: Program) -> None:
    machine = program.start()
    program.path.unlink()
    for _ in range(5):
        with program.path.open("a") as file:
            file.write("a line of a log\n")
        machine.look(EVERY)
    assert program.log().count("the probe 'events' is down") == 1


def test_a_file_that_was_missing_from_the_start(program: Program) -> None:
    program.path.unlink()
    machine = program.start()
    machine.look()
    machine.shows((0, "kprobe_up", "events"))
    program.replace()
    machine.look()
    machine.fire(program.code)
    totals(machine, 1)


def test_one_that_is_replaced_all_the_time(program: Program) -> None:
    machine = program.start()
    for _ in range(30):
        program.replace()
        machine.look()
    followed = program.log().count(f"the probe 'events': {program.path} was replaced")
    assert BURST + 30 // EVERY - 1 <= followed <= BURST + 30 // EVERY
    machine.look(EVERY)
    machine.fire(program.code)
    totals(machine, 1)


def test_one_that_is_switched_on_again_is_planned_again(program: Program) -> None:
    """With the offset in the old file, it would break the new program."""
    machine, old = program.start(), program.code
    assert machine.agent.disable("events", "too loud")
    program.replace()
    machine.look()
    assert machine.agent.enable("events")
    machine.fire(old, 2)
    machine.fire(program.code, 3)
    machine.shows((3, "kprobe_calls_total"), (5, "kprobe_hits_total", "counts"))


def test_one_that_was_deleted_is_planned_again(program: Program) -> None:
    machine, old = program.start(), program.code
    program.replace()
    machine.look()
    machine.files.write(f"{EVENTS}/events/enable", "0")
    machine.files.write("uprobe_events", f"-:{GROUP}/events")
    machine.look(times=2)  # a look may begin with a later event
    machine.fire(old)
    machine.fire(program.code, 3)
    machine.shows(
        (3, "kprobe_calls_total"), (3, "kprobe_hits_total", "events"), (4, "kprobe_hits_total", "counts")
    )


@pytest.mark.parametrize("source", [None, MAIN], ids=["attached to both", "only to the old one"])
def test_the_old_file_is_repaired_too(program: Program, source: str | None) -> None:
    machine, old = program.start(), program.code
    program.replace(source)
    machine.look()
    machine.files.write(f"{EVENTS}/events/enable", "0")
    machine.look(times=2)  # a look may begin with a later event
    machine.fire(old, 2)
    totals(machine, 2)


def test_a_limit_holds_for_the_old_file(program: Program) -> None:
    machine, old = program.start(), program.code
    program.replace(MAIN)
    machine.look()
    assert machine.agent.disable("events", "too loud")
    machine.fire(old)
    machine.shows((1, "kprobe_hits_total", "counts"), (0, "kprobe_calls_total"))
    assert machine.status("events").reason == "too loud"


def test_an_upgrade_at_the_wrong_moment(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that was planned for one file and defined for the next is never enabled there."""
    machine = program.start()
    program.replace()
    real, offsets = machine.files.write, set[str]()

    def write(path: str, text: str) -> None:
        if text.startswith("p:") and not offsets:
            program.replace()
            offsets.add(text)
        real(path, text)

    monkeypatch.setattr(machine.files, "write", write)
    machine.look()
    assert f"{program.path} was replaced at this moment: the new file is tried next" in program.log()
    enabled = [event.line for event in machine.files.events if event.name in machine.enabled()]
    assert not any(line in offsets for line in enabled)
    machine.look()
    machine.fire(program.code)
    machine.shows((1, "kprobe_up", "events"))
    totals(machine, 1)


def test_an_event_of_a_pair_counts_once(program: Program, tmp_path: Path) -> None:
    """Only one of the files of a pair is replaced: the other's event is not there twice."""
    other = compiled(tmp_path / "other", TWICE + MAIN)
    pair = f"{{from: 'uprobe:{other}:twice', to: 'uprobe:{program.path}:twice', key: [tid]}}"
    machine = program.start(f"{{name: events, attach: {{pair: {pair}}}}}")
    first = code_at(other, file_offset(str(other), "twice"))
    for times in (1, 2, 3):
        assert program.log().count(f"{program.path} was replaced; attached to the new file\n") == times - 1
        machine.fire(first)
        machine.fire(program.code)
        machine.shows(
            (times, "kprobe_hits_total", "events"), (times, "kprobe_exporter_events_total", "events")
        )
        program.replace()
        machine.look()
    assert len(machine.enabled()) == 2


def test_both_events_of_a_call_are_on_both_files(program: Program) -> None:
    machine, old = program.start(program.probe("call", kind="ucall")), program.code
    program.replace()
    machine.look()
    for code in (old, program.code):
        [entry, back] = [e for e in machine.files.events if e.symbol == code]
        assert [bool(re.search(r":0x[0-9a-f]+ ", f"{e.line} ")) for e in (entry, back)] == [True, True]
        assert (entry.is_return, back.is_return) == (False, True)
    assert len(machine.enabled()) == 4
