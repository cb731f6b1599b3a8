"""cli.list: attach strings on stdout, notes on stderr, status 1 for no match, silence in a closed pipe."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kprobe_exporter.cli import list as module
from kprobe_exporter.cli import main
from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import Kind, Target, parse_target
from kprobe_exporter.symbols.listing.details import Details
from kprobe_exporter.symbols.listing.kernel import KernelPlaces, Listed
from kprobe_exporter.symbols.listing.query import Query
from kprobe_exporter.util.rooted_path import ProbedFiles

PLACES = [parse_target("kprobe:ext4:ext4_open"), parse_target("tracepoint:sched:sched_switch")]

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a function that runs `list` on a kernel that answers with PLACES or with an error."""

    def invoke(
        *arguments: str,
        notes: tuple[str, ...] = (),
        error: Exception | None = None,
        asked: list[Query] | None = None,
    ) -> Result:
        def find(self: object, query: Query) -> Listed:
            if asked is not None:
                asked.append(query)
            if error:
                raise error
            return Listed(PLACES, [*notes])

        monkeypatch.setattr(module, "mounted", lambda asked: nullcontext(tmp_path))
        monkeypatch.setattr(KernelPlaces, "find", find)
        return CliRunner().invoke(main, ["list", *arguments])

    return invoke


def test_one_attach_string_a_line(run: Run) -> None:
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "kprobe:ext4:ext4_open\ntracepoint:sched:sched_switch\n"


def test_notes_are_told_beside_the_list_and_escaped(run: Run) -> None:
    result = run(notes=("a\x1b[31m", "b"))
    assert result.stderr == "kprobe-exporter: a\\x1b[31m\nkprobe-exporter: b\n"
    assert result.stdout.count("\n") == 2


def test_the_pattern_is_passed_on(run: Run) -> None:
    asked: list[Query] = []
    run(asked=asked)
    run("kprobe:tcp_*", asked=asked)
    assert asked == [Query("*", None, "", "*"), Query("kprobe:tcp_*", Kind.KPROBE, "", "tcp_*")]


def test_details_are_below_their_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(self: object, places: list[Target]) -> tuple[dict[Target, list[str]], list[str]]:
        return {places[1]: ["pid_t pid", "int prio"]}, ["no prototypes"]

    monkeypatch.setattr(Details, "of", of)
    result = run("-v")
    assert result.stdout.splitlines() == [
        "kprobe:ext4:ext4_open",
        "tracepoint:sched:sched_switch",
        "    pid_t pid",
        "    int prio",
    ]
    assert result.stderr == "kprobe-exporter: no prototypes\n"


@pytest.mark.parametrize("error", [ProbeRefused("'x' cannot be probed."), OSError(5, "Input/output error")])
def test_what_cannot_be_probed(run: Run, error: Exception) -> None:
    result = run("x", error=error)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("kprobe-exporter: ")
    assert result.stderr.count("\n") == 1


def test_a_program_needs_no_tracefs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Query] = []

    def file_places(query: Query, files: ProbedFiles) -> list[str]:
        asked.append(query)
        return ["uprobe:/bin/x:main"]

    monkeypatch.setattr(module, "file_places", file_places)
    for arguments in (["-x", "/bin/x"], ["-x", "/bin/x", "m*"], ["uprobe:/bin/x:m*"]):
        result = CliRunner().invoke(main, ["list", *arguments])
        assert (result.exit_code, result.stdout) == (0, "uprobe:/bin/x:main\n")
    assert [query[1:] for query in asked] == [(Kind.UPROBE, "/bin/x", glob) for glob in ("*", "m*", "m*")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-x", "/bin/x", "kprobe:m*"], "write GLOB without a colon"),
        (["-x", "/bin/x", "sched:*"], "write GLOB without a colon"),
        (["-v", "-x", "/bin/x"], "leave it out"),
        (["-v", "uprobe:/bin/x:m"], "leave it out"),
        (["a", "b"], "unexpected extra argument"),
        (["-x", "/nonexistent"], "there is no file /nonexistent"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["list", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr


def test_no_tracefs(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["list", "--tracefs", str(tmp_path)])
    assert result.exit_code == 1
    assert "mount one with 'mount -t tracefs nodev /sys/kernel/tracing'" in result.stderr


def test_a_reader_that_goes_ends_it_quietly() -> None:
    """The output is longer than a pipe holds, and the reader closes the pipe."""
    code = (
        "from kprobe_exporter.cli import list as module, main\n"
        "module.file_places = lambda query, files: iter(['uprobe:/bin/x:f'] * 100_000)\n"
        "main(['list', '-x', '/bin/x'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.read(10) == b"uprobe:/bi"
        process.stdout.close()
        assert process.stderr.read() == b""


def test_the_builtin_list_is_still_there_for_the_group() -> None:
    """The command's module has the builtin's name, and is an attribute of the package."""
    assert module.__name__ == "kprobe_exporter.cli.list"
    assert "list" in CliRunner().invoke(main, ["--help"]).stdout
