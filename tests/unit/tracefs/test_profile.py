"""kprobe_profile, uprobe_profile and the statistics of the per-CPU buffers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.tracefs.profile import (
    PROFILED,
    Counts,
    CpuStats,
    buffer_stats,
    parse_profile,
    parse_stats,
    parse_uprobe_profile,
    profile_counts,
)
from tests.unit.captured import Captured, captured
from tests.unit.tracefs.conftest import Table


def profile_line(name: str, hits: int, misses: int | None) -> str:
    """Return a line as probes_profile_seq_show() of kernel/trace/trace_kprobe.c prints it."""
    return f"  {name:<44} {hits:15} {misses:15}\n"


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,62}", fullmatch=True)
NUMBERS = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(NAMES, st.builds(Counts, NUMBERS, NUMBERS))))
def test_what_the_kernel_prints_reads_back(lines: list[tuple[str, Counts]]) -> None:
    text = "".join(profile_line(name, *counts) for name, counts in lines)
    assert parse_profile(text) == lines


@pytest.mark.parametrize(
    "text",
    ["", "\n", "x", "x 1", "x 1 -1\n", "x 1 1.0\n", "x ² ²\n", "x ٣ ٣\n", "x 1 1 y\n", f"x 1 {'9' * 5000}\n"],
)
def test_what_is_no_line_of_it(text: str) -> None:
    assert parse_profile(text) == []


@given(st.text())
def test_any_text(text: str) -> None:
    for parse in (parse_profile, parse_uprobe_profile):
        assert len(parse(text)) <= text.count("\n") + 1
    assert all(number >= 0 for number in parse_stats(text))


@pytest.mark.parametrize("file", captured("kprobe_profile/"), ids=str)
def test_the_profile_of_a_real_kernel(file: Captured) -> None:
    counts = dict(parse_profile(file.text))
    assert len(counts) == file.text.count("\n")
    assert counts[file.how["event"].split("/")[1]].hits > 0


def table_of(table: Table, profile: str, events: str) -> Table:
    table.files |= {"kprobe_profile": profile.encode(), "kprobe_events": events.encode()}
    return table


def test_one_line_a_name_needs_no_look_at_the_definitions(table: Table) -> None:
    table.files["kprobe_profile"] = (profile_line("a", 5, 1) + profile_line("b" * 60, 7, 0)).encode()
    assert profile_counts(table, "ours", "kprobe_events") == {"a": Counts(5, 1), "b" * 60: Counts(7, 0)}


@pytest.mark.parametrize(("groups", "mine"), [(("ours", "theirs"), 1), (("theirs", "ours"), 2)])
def test_a_foreign_event_of_our_name_is_told_apart(table: Table, groups: tuple[str, str], mine: int) -> None:
    profile = profile_line("a", 1, 0) + profile_line("b", 9, 9) + profile_line("a", 2, 0)
    events = f"p:{groups[0]}/a f\np:ours/b f\nr4:{groups[1]}/a f\n"
    assert profile_counts(table_of(table, profile, events), "ours", "kprobe_events") == {
        "a": Counts(mine, 0),
        "b": Counts(9, 9),
    }


@pytest.mark.parametrize(
    "events",
    [
        "p:ours/a f\np:ours/b f\n",
        "p:theirs/a f\np:ours/a f\np:others/a f\np:ours/b f\n",
        "p:theirs/a f\np:others/a f\np:ours/b f\n",
    ],
)
def test_where_the_two_files_disagree_nothing_is_said(table: Table, events: str) -> None:
    """An event came or went between the reads. Another program's count, once added, would stay."""
    profile = profile_line("a", 5, 0) + profile_line("a", 1000, 0) + profile_line("b", 1, 0)
    assert profile_counts(table_of(table, profile, events), "ours", "kprobe_events") == {"b": Counts(1, 0)}


def test_files_that_cannot_be_read_are_the_callers(table: Table) -> None:
    for definitions in PROFILED:
        with pytest.raises(FileNotFoundError):
            profile_counts(table, "ours", definitions)


def uprobe_line(path: str, name: str, hits: int) -> str:
    """Return a line as probes_profile_seq_show() of kernel/trace/trace_uprobe.c prints it."""
    return f"  {path} {name:<44} {hits:15}\n"


KERNEL_SPACE = "\t\n\v\f\r \xa0"
"""The blanks of isspace() (lib/ctype.c), which end the words of a definition. Python decodes a byte that is
not ASCII to a letter or to the replacement character."""

PATHS = st.text(
    st.characters(exclude_characters=KERNEL_SPACE + "\0#", exclude_categories=["Cs"]), min_size=1
).map("/{}".format)


@given(st.lists(st.tuples(PATHS, NAMES, NUMBERS)))
def test_what_the_kernel_prints_of_uprobes_reads_back(lines: list[tuple[str, str, int]]) -> None:
    text = "".join(uprobe_line(*line) for line in lines)
    assert parse_uprobe_profile(text) == lines


@pytest.mark.parametrize(
    "text", ["", "\n", "/x a", "/x a -1\n", "/x a ²\n", "a 1\n", "/x a 1 1\n", f"/x a {'9' * 5000}\n"]
)
def test_what_is_no_line_of_uprobes(text: str) -> None:
    assert parse_uprobe_profile(text) == []


@pytest.mark.parametrize("file", captured("uprobe_profile/"), ids=str)
def test_the_uprobe_profile_of_a_real_kernel(file: Captured) -> None:
    ((path, name, hits),) = parse_uprobe_profile(file.text)
    assert path == file.how["definition"].split()[1].rpartition(":")[0]
    assert name == file.how["event"].split("/")[1]
    assert hits > 0


@pytest.mark.parametrize(("groups", "mine"), [(("ours", "theirs"), 1), (("theirs", "ours"), 2)])
def test_a_foreign_uprobe_of_our_name_is_told_apart(table: Table, groups: tuple[str, str], mine: int) -> None:
    """The path of the foreign uprobe may look like a definition of ours."""
    hostile = "/tmp/a:0x0,r:ours/a"
    profile = uprobe_line(hostile, "a", 1) + uprobe_line("/b", "b", 9) + uprobe_line("/a\xff", "a", 2)
    events = f"p:{groups[0]}/a {hostile}:0x1\np:ours/b /b:0x1\nr:{groups[1]}/a /a\xff:0x1\n"
    table.files |= {"uprobe_profile": profile.encode("latin-1"), "uprobe_events": events.encode("latin-1")}
    assert profile_counts(table, "ours", "uprobe_events") == {"a": Counts(mine, None), "b": Counts(9, None)}
    table.files["uprobe_events"] = b"p:ours/a /a:0x1\np:ours/b /b:0x1\n"
    assert profile_counts(table, "ours", "uprobe_events") == {"b": Counts(9, None)}


STATS = """\
entries: 3
overrun: 1785
commit overrun: 2
bytes: 140
oldest event ts:    13.410821
now ts:    13.414318
dropped events: 7
read events: 260
"""


def test_statistics() -> None:
    assert parse_stats(STATS) == CpuStats(3, 1785, 2, 140, 7, 260)
    assert parse_stats("") == CpuStats(0, 0, 0, 0, 0, 0)
    assert parse_stats("overrun: x\nread events: 1") == CpuStats(0, 0, 0, 0, 0, 1)


@pytest.mark.parametrize("file", captured("stats/"), ids=str)
def test_the_statistics_of_a_real_kernel(file: Captured) -> None:
    """The capture read all events, so none is left; only the flood lost events."""
    stats = parse_stats(file.text)
    assert (stats.entries, stats.commit_overrun, stats.dropped) == (0, 0, 0)
    assert (stats.overrun > 0) == file.name.endswith("lost.txt")


def test_the_cpus_are_summed(table: Table) -> None:
    for cpu in ("cpu0", "cpu1"):
        table.files[f"instances/x/per_cpu/{cpu}/stats"] = STATS.encode()
    assert buffer_stats(table, "instances/x") == CpuStats(6, 3570, 4, 280, 14, 520)
    assert buffer_stats(table, "instances/none") == CpuStats(0, 0, 0, 0, 0, 0)
