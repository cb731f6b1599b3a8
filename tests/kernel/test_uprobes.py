"""23 calls of functions of programs and libraries are 23, with values, by pages, text and profile."""

import ctypes
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kprobe_exporter.config.model import Attach, Label, Metric, Probe, return_type
from kprobe_exporter.elf import locate
from kprobe_exporter.errors import GrammarError, ProbeRefused
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.model.records import CALLER, TID, Record
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.plan import Kernel
from kprobe_exporter.plan.function import user_spec
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.poller import read_counts
from kprobe_exporter.tracefs.probes import Installed
from kprobe_exporter.tracefs.profile import buffer_stats
from kprobe_exporter.tracefs.refusal import UNFIT
from tests.model import pages
from tests.support.compiling import compiled
from tests.support.installed_probes import by_text, compare, enabled
from tests.support.kernel_ids import kernel_tid
from tests.support.libc import own_libc
from tests.support.programs import file_offset
from tests.support.system_calls import only_x86
from tests.vm.kernels import HIST

compiled_walk: Any = pytest.importorskip("kprobe_exporter.source._pages")
pytestmark = pytest.mark.needs("uprobe_events")

NAME = "kprobe_exporter_uprobes"
TIMES = 23
KERNEL = Kernel(lambda system, event: None, counts_tracepoints=True)
WORD = "hello world"

PROGRAM = """
#include <string.h>
#include <stdlib.h>
__attribute__((noinline)) long twice(long number) { __asm__(""); return 2 * number; }
__attribute__((noinline)) int shorter(int than, const char *word) {
    __asm__("" :: "r"(word));
    return (int)strlen(word) - than;
}
int main(int count, char **words) {
    int times = atoi(words[1]);
    for (int turn = 0; turn < times; turn++)
        if (twice(turn) + shorter(turn, words[2]) == -1000) return 1;
    return 0;
}
"""

LOCKED = """
#include <stdio.h>
__asm__(".globl locked\\nlocked: lock incl (%rsp)\\nlock decl (%rsp)\\nret\\n");
void locked(void);
int main(void) { locked(); return getchar() != 120; }
"""


@pytest.fixture(scope="module", params=["-pie -fPIE", "-no-pie"], ids=["pie", "no-pie"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("program") / "program"
    return compiled(output, PROGRAM, *request.param.split())


@pytest.fixture
def instance(files: MountedTracefs) -> Iterator[Instance]:
    with Instance.acquire(files, NAME) as made:
        made.set_up(4000, record_tgid=False)
        yield made


def planned(
    name: str,
    to: str,
    returns: str | None = None,
    only: str | None = None,
    metrics: tuple[Metric, ...] = (),
    layout_id: int = 0,
    fetch: dict[str, str] | None = None,
    **more: Any,
) -> ProbeSpec:
    """Return the spec by which the agent would attach a probe to a program."""
    attach = Attach(parse_target(to), fetch or {}, only, return_type(returns) if returns else None)
    probe = Probe(name, "help", (attach,), metrics, **more)
    wanted = {label.field for metric in metrics for label in metric.labels}
    spec = user_spec(probe, attach, wanted, KERNEL, layout_id, 1000)
    assert isinstance(spec, ProbeSpec), spec
    return spec


def run(program: Path, times: int = TIMES) -> int:
    """Run the program, which calls both functions ``times`` times; return its process id."""
    child = subprocess.Popen([program, str(times), WORD])
    assert child.wait() == 0
    return child.pid


def of(probe: Installed, records: Sequence[Record], *names: str) -> list[tuple[Any, ...]]:
    """Return the values of these arguments in the records of one probe."""
    places = [probe.layout.place(name) for name in names]
    return [
        tuple(record[place] for place in places if place is not None)
        for record in records
        if record[0] == probe.layout.layout_id
    ]


@pytest.mark.needs("initial_pid_namespace")
@pytest.mark.parametrize("kind", [pages.PageParser, compiled_walk.PageParser], ids=["python", "compiled"])
def test_calls_with_their_values(instance: Instance, program: Path, kind: Any) -> None:
    every = Metric("counter", "calls_total", "help", None, (Label("comm", "comm"),))
    frame = {"frame": "$stack:u64"}
    with enabled(
        instance,
        planned("enter", f"uprobe:{program}:twice", metrics=(every,), fetch={"n": "$arg1:s64", **frame}),
        planned("leave", f"uretprobe:{program}:twice", "long", metrics=(every,), layout_id=1, fetch=frame),
        planned(
            "word",
            f"uprobe:{program}:shorter",
            metrics=(every,),
            layout_id=2,
            fetch={"than": "$arg1:s32", "text": "+0($arg2):string", "user": "+u0($arg2):ustring"},
        ),
        planned("result", f"uretprobe:{program}:shorter", "int", "return < 0", layout_id=3),
    ) as (enter, leave, word, result):
        pid = run(program)
        for probe in (enter, leave, word, result):
            probe.disable()
        records = list(by_text(instance, [probe.layout for probe in (enter, leave, word, result)]))
        assert of(enter, records, "n", "comm") == [(turn, b"program") for turn in range(TIMES)]
        assert of(leave, records, "return") == [(2 * turn,) for turn in range(TIMES)]
        told = WORD.encode()
        assert of(word, records, "than", "text", "user") == [(turn, told, told) for turn in range(TIMES)]
        assert of(result, records, "return") == [
            (len(WORD) - turn,) for turn in range(TIMES) if turn > len(WORD)
        ]
        assert {record[CALLER] for record in records} == {None}
        assert {record[TID] for record in records} == {pid}
        # On return, x86-64 has popped the return address off the stack; arm64 has it in a register.
        popped = 8 if platform.machine() == "x86_64" else 0
        frames = of(enter, records, "frame")
        assert of(leave, records, "frame") == [(stack + popped,) for (stack,) in frames]
        shown = compare(instance, [enter, leave, word, result], kind)
        assert shown == {"enter": TIMES, "leave": TIMES, "word": TIMES, "result": TIMES - len(WORD) - 1}
        counts = read_counts(instance, [enter, leave, word, result])
        assert counts.hits == dict.fromkeys(("enter", "leave", "word", "result"), TIMES)
        assert counts.misses == {}


def test_as_many_values_as_the_kernel_takes(instance: Instance, program: Path) -> None:
    """MAX_TRACE_ARGS of kernel/trace/trace_probe.h is 128."""
    fetch = {f"a{number}": f"$arg1:u{8 << number % 4}" for number in range(128)}
    every = Metric("counter", "calls_total", "help", None, (Label("a127", "a127"),))
    with enabled(instance, planned("enter", f"uprobe:{program}:twice", metrics=(every,), fetch=fetch)) as (
        probe,
    ):
        run(program)
        probe.disable()
        records = list(by_text(instance, [probe.layout]))
        assert of(probe, records, *fetch) == [(turn,) * 128 for turn in range(TIMES)]


def test_what_is_only_counted_writes_no_event(instance: Instance, program: Path) -> None:
    with enabled(
        instance,
        planned("enter", f"uprobe:{program}:twice"),
        planned("leave", f"uretprobe:{program}:twice", "void"),
    ) as probes:
        assert [probe.counted_softly for probe in probes] == [True, True]
        for turn in (1, 2):
            run(program)
            assert read_counts(instance, probes).hits == {"enter": turn * TIMES, "leave": turn * TIMES}
        stats = buffer_stats(instance.files, instance.path)
        assert (stats.entries, stats.overrun, stats.read) == (0, 0, 0)
        for probe in probes:
            probe.disable()
        run(program)
        assert set(read_counts(instance, probes).hits.values()) == {2 * TIMES}


def test_a_filter_narrows_the_events_and_not_the_hits(instance: Instance, program: Path) -> None:
    spec = planned("enter", f"uprobe:{program}:twice", only="n >= 20", fetch={"n": "$arg1"})
    with enabled(instance, spec) as (probe,):
        run(program)
        assert buffer_stats(instance.files, instance.path).entries == TIMES - 20
        assert read_counts(instance, [probe]).hits == {"enter": TIMES}


@pytest.mark.needs(HIST)
def test_the_kernel_adds_up(instance: Instance, program: Path) -> None:
    """`aggregate: kernel` on a uprobe uses hist triggers, as on a kprobe."""
    added = Metric("counter", "sum_total", "help", "return", (Label("tid", "tid"),))
    spec = planned("leave", f"uretprobe:{program}:twice", "u64", metrics=(added,), aggregate="kernel")
    with enabled(instance, spec) as (probe,):
        pid = run(program)
        counts = read_counts(instance, [probe])
        assert counts.hits == {"leave": TIMES}
        assert buffer_stats(instance.files, instance.path).entries == 0
        (sums,) = [
            reading.rows
            for table, reading in zip(spec.tables, counts.tables[0], strict=True)
            if [key.name for key in table.keys] == ["common_pid"]
        ]
        assert sums == {(pid,): (TIMES, sum(2 * turn for turn in range(TIMES)))}


def test_a_foreign_uprobe_of_our_name(instance: Instance, program: Path) -> None:
    """Another tool's uprobe of our event's name is not counted, although the profile prints no group."""
    files, group = instance.files, f"{NAME}_foreign"
    offset = file_offset(str(program), "shorter")
    with enabled(instance, planned("enter", f"uprobe:{program}:twice")) as (probe,):
        files.write("uprobe_events", f"p:{group}/enter {program}:{offset:#x}")
        try:
            instance.write(f"events/{group}/enter/enable", "1")
            run(program, TIMES)
            instance.write(f"events/{group}/enter/enable", "0")
            run(program, TIMES)
            assert read_counts(instance, [probe]).hits == {"enter": 2 * TIMES}
        finally:
            files.write("uprobe_events", f"-:{group}/enter")


def test_a_version_of_a_function_of_the_c_library(instance: Instance) -> None:
    """A version selects a function of glibc, whose first version depends on the architecture."""
    version = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}[platform.machine()]
    target = f"uretprobe:{own_libc()}:gnu_get_libc_version@{version}"
    spec = planned(
        "version", target, "ptr", f"common_pid == {kernel_tid()}", fetch={"text": "+0($retval):string"}
    )
    with enabled(instance, spec) as (probe,):
        call = ctypes.CDLL(None).gnu_get_libc_version
        call.restype = ctypes.c_char_p
        expected = [(call(),) for _ in range(TIMES)]
        assert of(probe, list(by_text(instance, [probe.layout])), "text") == expected
    with pytest.raises(GrammarError, match=r"has no 'gnu_get_libc_version@X', only gnu_get_libc_version@"):
        locate(parse_target(f"uprobe:{own_libc()}:gnu_get_libc_version@X"))


def test_a_program_as_another_process_sees_it(instance: Instance, program: Path) -> None:
    """Through /proc/PID/root, as for a container's file, a probe sees every process that runs the file."""
    spec = planned("enter", f"uprobe:/proc/{os.getpid()}/root{program}:twice")
    with enabled(instance, spec) as (probe,):
        run(program)
        assert read_counts(instance, [probe]).hits == {"enter": TIMES}


@pytest.mark.parametrize("root", ["", f"/proc/{os.getpid()}/root:"])
def test_a_library_by_its_name(instance: Instance, root: str) -> None:
    """The library is the file that this process has loaded, also as another process sees it."""
    version = ctypes.CDLL(None).gnu_get_libc_version  # hardly any other program calls it
    with enabled(instance, planned("version", f"uprobe:{root}libc.so.6:gnu_get_libc_version")) as (probe,):
        for _ in range(TIMES):
            version()
        assert read_counts(instance, [probe]).hits == {"version": TIMES}


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("{0}/absent:0x10", ["{0}/absent cannot be opened", "no such file where this process looks"]),
        ("{0}:0x10", ["{0} is not a regular file"]),
        ("{0}/program:0x7fffffff", ["it cannot be enabled", "the offset is behind its end", "(EINVAL)"]),
        ("/proc/self/status:0x0", ["it cannot be enabled", "does not allow probes in its files (EIO)"]),
        ("{0}/program:0x1149 x=%nosuch", ["Invalid register name", "{0}/program:0x1149 x=^%nosuch"]),
    ],
)
def test_what_the_kernel_refuses(instance: Instance, program: Path, place: str, words: list[str]) -> None:
    spec = replace(planned("bad", f"uprobe:{program}:twice"), body=place.format(program.parent), inode=None)
    with pytest.raises(ProbeRefused) as caught, enabled(instance, spec):
        pass
    said = str(caught.value)
    assert said.count("\n") == 0
    assert said.endswith(".")
    for word in words:
        assert word.format(program.parent) in said


@only_x86
def test_an_instruction_that_cannot_be_probed(instance: Instance, tmp_path: Path) -> None:
    """The kernel checks an instruction if a running program maps it, else as one starts, without a report."""
    program = compiled(tmp_path / "locked", LOCKED)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as child:
        spec = planned("locked", f"uprobe:{program}:locked")
        with pytest.raises(ProbeRefused, match=UNFIT), enabled(instance, spec):
            pass
        child.communicate(b"x")
