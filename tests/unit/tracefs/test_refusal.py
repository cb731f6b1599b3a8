"""The kernel's error_log, and the reason for a refusal that is built from it."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.tracefs.refusal import ENOTSUPP, IN_FILE, MEANING, UNFIT, logged_error, why
from tests.unit.captured import Captured, captured
from tests.unit.tracefs.conftest import Table, entry

COMMAND = "p:g/e do_sys_openat2 x=$nonsense"


@pytest.mark.parametrize("file", captured("error_log/"), ids=str)
def test_what_real_kernels_say_of_a_mistake(file: Captured) -> None:
    said = logged_error(file.text, file.how["definition"])
    assert said is not None
    text, _, command = said.partition(", at ^ in ")
    assert text in file.text
    assert command.replace("^", "", 1) == f"'{file.how['definition']}'"
    wrong = {
        "bad_argument": "^$nonsense",
        "bad_type": ":^s99",
        "bad_offset": "^do_sys_openat2+4",
        "bad_name": "^bad-name",
        "bad_uprobe_argument": "^$nonsense",
        "unknown_event": "^syscalls.no_such_event",
        "unknown_field": "nonsense",
        "unknown_symbol": "^no_such_function_anywhere",
    }[file.name.split("/")[1].removesuffix(".txt")]
    assert wrong in said


def test_the_caret_stands_where_the_kernel_points() -> None:
    said = logged_error(entry(COMMAND, 23), COMMAND)
    assert said == "Unknown type is specified, at ^ in 'p:g/e do_sys_openat2 x=^$nonsense'"


def test_the_last_entry_of_this_command_counts() -> None:
    log = entry(COMMAND, 0, "old") + entry(COMMAND, 2, "new") + entry("p:other/e f", 0, "other")
    assert logged_error(log, COMMAND) == f"new, at ^ in '{COMMAND[:2]}^{COMMAND[2:]}'"


def test_a_filter_may_hold_what_python_takes_for_the_end_of_a_line() -> None:
    assert logged_error(entry('a == "\x1c\u2028"', 0), 'a == "\x1c\u2028"') is not None


@pytest.mark.parametrize(
    "log",
    [
        "",
        "# comment",
        entry("p:other/e f", 0),
        entry(COMMAND + " more", 0),
        entry(COMMAND, 0).split("\n", 1)[1],
        f"  Command: {COMMAND}\n[    1.000000] x: error: text\n",
    ],
)
def test_what_others_did_wrong_is_not_ours(log: str) -> None:
    assert logged_error(log, COMMAND) is None


@pytest.mark.parametrize(
    ("log", "at"),
    [
        (entry(COMMAND, 10_000), len(COMMAND)),
        (entry(COMMAND, 0).rsplit("\n", 2)[0], 0),
        (entry(COMMAND, 0).replace("^", ""), 0),
    ],
)
def test_a_caret_that_is_out_of_place(log: str, at: int) -> None:
    said = logged_error(log, COMMAND)
    assert said == f"Unknown type is specified, at ^ in '{COMMAND[:at]}^{COMMAND[at:]}'"


@given(st.text(), st.text())
def test_any_log(log: str, command: str) -> None:
    said = logged_error(log, command)
    assert said is None or command in said.replace("^", "", 1) or "^" in command


def refusal(table: Table, code: int, *logs: str) -> str:
    return why(table, OSError(code, os.strerror(code)), COMMAND, *logs)


def test_what_the_kernel_says_is_added(table: Table) -> None:
    table.files["error_log"] = entry(COMMAND, 6).encode() + b"\xff"
    said = refusal(table, errno.EINVAL, "instances/x/error_log", "error_log")
    assert said == (
        "the kernel says (EINVAL): Unknown type is specified, at ^ in 'p:g/e ^do_sys_openat2 x=$nonsense'"
    )


@pytest.mark.parametrize("code", MEANING)
def test_each_errno_has_a_meaning(table: Table, code: int) -> None:
    assert refusal(table, code, "error_log") == f"{MEANING[code]} ({errno.errorcode[code]})"


@pytest.mark.parametrize(
    ("code", "meaning", "name"),
    [
        (errno.ENOENT, "there is no such file where this process looks (its mount namespace)", "ENOENT"),
        (errno.ENOEXEC, UNFIT, "ENOEXEC"),
        (ENOTSUPP, UNFIT, "ENOTSUPP"),
        (errno.EPERM, MEANING[errno.EPERM], "EPERM"),
    ],
)
def test_of_a_place_in_a_file_an_errno_means_something_else(
    table: Table, code: int, meaning: str, name: str
) -> None:
    assert why(table, OSError(code, "?"), COMMAND, meanings=IN_FILE) == f"{meaning} ({name})"


def test_an_errno_without_a_meaning(table: Table) -> None:
    assert refusal(table, errno.EIO) == "Input/output error (EIO)"
    assert why(table, OSError("odd"), COMMAND) == "odd (0)"
