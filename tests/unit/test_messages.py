"""Messages that operators found unclear: each names the cause, the place and the remedy, in one sentence."""

import errno
import logging
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from kprobe_exporter.cli.trace import trace
from kprobe_exporter.errors import ConfigError, KprobeExporterError
from kprobe_exporter.grammar.lexis import closest
from kprobe_exporter.model.stacks import Profile, StackLoss, Weight
from kprobe_exporter.service.log_limit import SAME
from kprobe_exporter.service.logs import Handler, sum_up
from kprobe_exporter.trace import resolve as trace_resolve
from kprobe_exporter.trace.count_stacks import loss_sentences, write_profile
from kprobe_exporter.trace.output import Interrupt, Output
from kprobe_exporter.trace.request import parse_request
from kprobe_exporter.tracefs.files import MountedTracefs
from kprobe_exporter.tracefs.refusal import IN_FILE, why
from kprobe_exporter.web.config.read import read_web_config
from tests.unit.config.conftest import load_files
from tests.unit.tracefs.conftest import Table, entry

TRACEPOINT = "tracepoint:block:block_rq_issue"


def problems(directory: Path, attach: str, rest: str) -> list[str]:
    """Return the messages about a probe, without their places."""
    with pytest.raises(ConfigError) as caught:
        load_files(directory, c=f"probes: [{{name: p, attach: '{attach}', {rest}}}]")
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("attach", "rest", "message"),
    [
        (
            "kprobe:vfs_read",
            "metrics: [{counter: x_total, where: 'return > 0'}]",
            "there is no field 'return' at kprobe:vfs_read: this is an entry, attach kretprobe:vfs_read or"
            " call:vfs_read instead",
        ),
        (
            "uprobe:/bin/bash:main",
            "metrics: [{counter: x_total, labels: [return]}]",
            "there is no field 'return' at uprobe:/bin/bash:main: this is an entry, attach"
            " uretprobe:/bin/bash:main or ucall:/bin/bash:main instead",
        ),
        (
            TRACEPOINT,
            "metrics: [{counter: x_total, labels: [return]}]",
            f"there is no field 'return' at {TRACEPOINT}: name the field that holds it, as"
            " fetch: {return: FIELD}",
        ),
        (
            "kprobe:vfs_read",
            "limit: {cpu: 5}",
            "a share of the CPUs is written with %, as 5%, and not 5",
        ),
        (
            "kprobe:vfs_read",
            "metrics: [{counter: x_total, labels: {comm}}]",
            "a label is the name of a field, or {field: NAME, decode: DECODER}; a list of fields is [comm]",
        ),
        (
            "call:vfs_read",
            "metrics: [{histogram: h, value: duration}]",
            "'h' reads as an abbreviated unit: write the unit out, as seconds or bytes, or choose"
            " another word",
        ),
        (
            "call:vfs_read",
            "aggregate: kernel, outstanding: {older_than: 1s}",
            "the kernel does not tell what is open where it aggregates: leave `aggregate` out to have it",
        ),
        (
            TRACEPOINT,
            "metrics: [{counter: x_total, labels: [sectr]}]",
            f"there is no field 'sectr' at {TRACEPOINT}: fetch it, as in fetch: {{sectr: sectr}}",
        ),
        (
            TRACEPOINT,
            "fetch: {sector: sector}, metrics: [{counter: x_total, labels: [sectr]}]",
            f"there is no field 'sectr' at {TRACEPOINT}, did you mean 'sector'?",
        ),
        (
            "call:vfs_read",
            "fetch: {count: $arg3}, let: {x: count -- return}",
            "'--' has no meaning here, write - once or a blank between",
        ),
    ],
)
def test_one_problem_of_a_configuration(tmp_path: Path, attach: str, rest: str, message: str) -> None:
    assert problems(tmp_path, attach, rest) == [message]


def test_minus_of_a_negative_operand_with_a_blank(tmp_path: Path) -> None:
    load_files(
        tmp_path,
        c="probes: [{name: p, attach: 'call:vfs_read', fetch: {n: $arg3}, let: {x: n - -return}}]",
    )


@pytest.mark.parametrize(
    ("command", "column", "text", "message"),
    [
        (
            'comm = "x"',
            6,
            "Invalid operator",
            "the kernel says (EINVAL): Invalid operator, at ^ in 'comm =^ \"x\"'; write == for equality,"
            " and ~ for a pattern",
        ),
        (
            "p:g/e /bin/true:0x40 x=%zz",
            23,
            "Invalid register name",
            "the kernel says (EINVAL): Invalid register name, at ^ in 'p:g/e /bin/true:0x40 x=^%zz'",
        ),
    ],
)
def test_what_the_kernel_says_replaces_a_guess(command: str, column: int, text: str, message: str) -> None:
    table = Table()
    table.files["error_log"] = entry(command, column, text).encode()
    error = OSError(errno.EINVAL, "Invalid argument")
    assert why(table, error, command, "error_log", meanings=IN_FILE) == message


def test_no_suggestion_beats_a_far_one() -> None:
    assert closest("sys_enter_nosuchcall", ["sys_enter_mlockall"]) == ""
    assert closest("sys_enter_mlokall", ["sys_enter_mlockall"]) == ", did you mean 'sys_enter_mlockall'?"


@pytest.fixture
def tracing(tmp_path: Path) -> Path:
    """The path of a tracefs with one tracepoint and two functions."""
    event = tmp_path / "events/sched/sched_process_exec"
    event.mkdir(parents=True)
    for file in (event / "format", event / "enable", tmp_path / "events/sched/enable", tmp_path / "trace"):
        file.write_text("")
    (tmp_path / "available_filter_functions").write_text("vfs_read\nreturned\n")
    return tmp_path


def said_of(tracing: Path, definition: str) -> str:
    """Return what ``trace`` says before it traces."""
    try:
        found = trace_resolve.resolve(parse_request(definition), MountedTracefs(tracing), tracing)
    except KprobeExporterError as error:
        return str(error)
    return found.refused or ""


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (
            "sched:sched_process_exce",
            "this kernel has no tracepoint sched:sched_process_exce, did you mean 'sched_process_exec'?",
        ),
        (
            "p:sched_process_exec",
            "sched_process_exec: this kernel has no such function, or the compiler inlined it, or its module"
            " is not loaded: kprobe:MODULE:sched_process_exec waits for it. A tracepoint has this name:"
            " sched:sched_process_exec.",
        ),
        (
            "p:returnde",
            "returnde: this kernel has no such function, or the compiler inlined it, or its module"
            " is not loaded, did you mean 'returned'?",
        ),
    ],
)
def test_trace_of_a_name_that_the_kernel_lacks(tracing: Path, definition: str, message: str) -> None:
    assert said_of(tracing, definition) == message


def test_trace_of_a_bare_tracepoint(tracing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprobe_exporter.cli.trace.mounted", lambda path: nullcontext(tracing))
    result = CliRunner().invoke(trace, ["sched_process_exec"])
    assert str(result.exception) == "'sched_process_exec' is a tracepoint: write sched:sched_process_exec."


def test_one_hit_in_one_stack() -> None:
    profile = Profile("p", None, {(): Weight(1, 0)}, 0, 0, 0)
    out = Output(1, Interrupt(), terminal=False)
    assert write_profile(profile, out, folded_text=False, flame=None) == "1 hit in 1 stack."


def test_causes_of_lost_hits() -> None:
    """Each cause has its sentence, which no other cause has."""
    losses = dict.fromkeys(StackLoss, 1_000)
    said = loss_sentences(Profile("p", None, {}, 6_000, 0, 0, losses))
    assert len(set(said)) == len(StackLoss)
    assert [one for one in said if "ring buffer" in one] == [
        "1,000 events were lost because the ring buffer was full: trace fewer threads, as by -p."
    ]
    assert loss_sentences(Profile("p", None, {}, 0, 0, 0)) == []


def test_a_password_that_is_no_hash(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.touch(0o600)
    file.write_text("basic_auth_users: {alice: secret}")
    [problem] = read_web_config(file).problems
    assert "make one with the agent's python3, -c 'import bcrypt; print(" in problem.message


def test_nothing_is_logged_after_the_last_line() -> None:
    stream = StringIO()
    logger = logging.getLogger("kprobe_exporter")
    kept, logger.handlers[:] = logger.handlers[:], [handler := Handler(stream, clock=lambda: 0.0)]
    try:
        for _ in range(SAME + 2):
            logger.warning("again")
        sum_up()
        logger.warning("stopped")
        handler.close()
    finally:
        logger.handlers[:] = kept
    assert stream.getvalue().splitlines()[-1] == "stopped"
