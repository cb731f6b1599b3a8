"""The kernel and our parser accept the same definitions, except for the DIFFERENCES explained here."""

import re
from collections import Counter
from dataclasses import replace
from random import Random
from typing import NamedTuple

import pytest

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import Definition, ProbeKind, parse_definition
from kprobe_exporter.tracefs.files import MountedTracefs
from tests.conftest import has
from tests.kernel.verdict import takes
from tests.support.system_calls import only_x86
from tests.unit.grammar.corpus import corpus
from tests.unit.grammar.generate import MEMBERS, REGISTERS, definition

pytestmark = pytest.mark.needs("kprobe_events", "dynamic_events")

DEFINITIONS = 500
GROUP = "definitions_under_test"
GROUPS = "[<group>/][<event>]"
"""In the README of a kernel that takes a group alone. Others, as 5.10, take none with a hyphen either."""
MEMBER = "|".join(re.findall(r"[>.](\w+)", " ".join(MEMBERS)))
NAME = "|".join(["vfs_read", "@jiffies", *REGISTERS, *(name.partition("->")[0] for name in MEMBERS)])


class Difference(NamedTuple):
    """A class of random definitions that we accept and the kernel refuses (``ours``), or the reverse."""

    ours: bool
    looks: str
    why: str


DIFFERENCES = (
    Difference(False, r"#", "the kernel reads up to a # only"),
    Difference(False, r"[+-]u?[+-]\d", "the kernel reads a second sign as the number's own"),
    Difference(False, r"[+-]u?\d{10,}\(", "the kernel cuts an offset to 32 bits"),
    Difference(False, r"\)[^\s):]", "the kernel drops what follows the last bracket"),
    Difference(False, r"\$(retval|arg\d+):u?string", "a kernel with BTF reads what looks like a char *"),
    Difference(False, r"(?=.* arg\d=).* \$arg\d", "a kernel with BTF names it after the parameter"),
    Difference(True, rf"(^|[ (])(?!({NAME})(?![\w$.]))[@%]?[A-Za-z_]", "the kernel knows no such name"),
    Difference(True, rf"[>.](?!({MEMBER})\b)[A-Za-z_]", "the kernel knows no such member"),
    Difference(True, r"\b(file|count|f_pos|d_flags):string", "BTF tells that this is no char *"),
    Difference(True, r"^vfs_read\+1 ", "no instruction begins there"),
)
"""docs/definitions.md explains them. ``looks`` is searched in the whole line if we refuse it,
else in the place and in the arguments without their names."""


def ask(files: MountedTracefs, text: str) -> tuple[Definition | None, bool, list[str]]:
    """Return our parse of a definition, whether the kernel accepts it, and the lines that it then lists.

    A definition without a group gets GROUP; one that we refuse is written unchanged. It is deleted again.
    """
    try:
        parsed = parse_definition(text)
    except GrammarError:
        parsed = None
    before = files.read("dynamic_events")
    taken = takes(files, definitions_file(text), ours(parsed).render() if parsed else text)
    listed = files.read("dynamic_events").removeprefix(before).decode().splitlines()
    for line in listed:
        files.write("dynamic_events", "-:" + line.split()[0].partition(":")[2])
    return parsed, taken, listed


def ours(parsed: Definition) -> Definition:
    """Return the definition in GROUP, and with its default name on a kernel that takes no group alone."""
    if parsed.group:
        return parsed
    default = None if has(GROUPS) else parsed.default_event or "unnamed"
    return replace(parsed, group=GROUP, event=parsed.event or default)


def definitions_file(text: str) -> str:
    if text.lstrip().startswith(("e", "f", "t")):
        return "dynamic_events"
    return "uprobe_events" if "/bin/true" in text else "kprobe_events"


def possible(parsed: Definition | None) -> bool:
    """Return whether this kernel has to accept the definition."""
    if parsed is None or not all(has(need) for need in parsed.needs):
        return False
    return has(GROUPS) or not parsed.group or (parsed.event is not None and "-" not in parsed.group)


def assert_listed(parsed: Definition, lines: list[str]) -> None:
    """Assert that the kernel lists the definition it was given, and that it parses back to itself.

    The kernel chooses the name and MAXACTIVE if they are missing, lists no filter, and expands ``$arg*``
    and ``%pd``.
    """
    assert parse_definition(parsed.render()) == parsed
    (listed,) = map(parse_definition, lines)
    args = listed.args
    if all(arg.expression != "$arg*" for arg in parsed.args):
        pairs = zip(parsed.args, listed.args, strict=True)
        args = tuple(theirs if str(arg.type).startswith("%p") else arg for arg, theirs in pairs)
        assert [arg.name for arg in args] == [arg.name for arg in parsed.args]
    assert listed == replace(
        ours(parsed),
        event=parsed.event or parsed.default_event,
        maxactive=parsed.maxactive or listed.maxactive,
        args=args,
        filter=None,
    )


@only_x86
def test_corpus(files: MountedTracefs) -> None:
    problems = []
    for case in corpus():
        parsed, taken, listed = ask(files, case.text)
        if parsed and parsed.kind is ProbeKind.FPROBE and parsed.maxactive and not taken:
            continue  # 7.2 refuses a MAXACTIVE here
        if case.verdict != "strict" and taken is not (case.verdict == "good" and possible(parsed)):
            problems.append(f"{'taken' if taken else 'refused'}, {case.verdict}: {case.text}")
        if parsed and taken:
            assert_listed(parsed, listed)
    assert not problems, "\n".join(problems)


@only_x86
def test_random_definitions(files: MountedTracefs, random: Random) -> None:
    texts: dict[str, None] = {}
    while len(texts) < DEFINITIONS:
        texts[definition(random)] = None
    verdicts = Counter(agreed(files, text) for text in texts)
    for verdict, times in sorted(verdicts.items()):
        print(f"{times:4} {verdict}")
    assert not [verdict for verdict in verdicts if verdict.startswith("?")]
    assert min(verdicts["taken"], verdicts["refused"]) > DEFINITIONS / 10


def agreed(files: MountedTracefs, text: str) -> str:
    """Return what we and the kernel agree on, or why we differ; it begins with ? if that is unexplained."""
    parsed, taken, listed = ask(files, text)
    if parsed and taken:
        assert_listed(parsed, listed)
    if taken is possible(parsed):
        return "taken" if taken else "refused"
    seen = " ".join([str(parsed.place), *(arg.body for arg in parsed.args)]) if parsed else text
    for difference in DIFFERENCES:
        if difference.ours is bool(parsed) and re.search(difference.looks, seen + " "):
            return difference.why
    return f"? only {'we take' if parsed else 'the kernel takes'} {text}"
