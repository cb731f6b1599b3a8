"""The words of print fmt: those that real kernels print, and any text instead."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.event_format import EventFormat, parse_format
from kprobe_exporter.grammar.print_parser import parse_argument
from kprobe_exporter.grammar.print_words import print_words
from kprobe_exporter.model.values import Words
from tests.support.kernel_formats import RELEASES, form, forms, types

PLAIN = re.compile(r"^ ?__print_(symbolic|flags)\(REC->(\w+), (?:\"[^\"]*\", )?(\{ .*\})\)$")
SCSI = "DRIVER_OK|DID_OK|COMMAND_COMPLETE|SAM_STAT_CHECK_CONDITION"
ROW = re.compile(r"\{ (-?\w+), \"([^\"]*)\" \}")


def words(release: str, event: str, field: str) -> Words:
    found = print_words(form(release, event), field, types(release).constants)
    assert found is not None
    return found


def made(fmt: str, *fields: str) -> EventFormat:
    lines = [
        f"\tfield:int {name};\toffset:{8 + 4 * number};\tsize:4;\tsigned:1;"
        for number, name in enumerate(fields)
    ]
    return parse_format("\n".join(["name: made", "ID: 1", "format:", *lines, "", f"print fmt: {fmt}"]))


def argument(text: str) -> int | str | None:
    """The value of an argument where the field is 6."""
    compute = parse_argument(text, {"SIX": 6}).compute
    return None if compute is None else compute(6)


@pytest.mark.parametrize("release", RELEASES)
def test_every_argument_of_every_tracepoint_is_parsed(release: str) -> None:
    arguments = {text for _, one in forms(release) for text in one.print_args}
    assert len(arguments) > 1000
    for text in arguments:
        parse_argument(text, {})


@pytest.mark.parametrize("release", RELEASES)
def test_the_rows_of_plain_tables(release: str) -> None:
    """Each row is read by a pattern, too."""
    compared = 0
    for event, one in forms(release):
        tables = [found for text in one.print_args if (found := PLAIN.match(text))]
        for kind, field, rows in (found.groups() for found in tables):
            if kind == "flags" or sum(f"REC->{field}" in text for text in one.print_args) > 1:
                continue
            named = print_words(one, field)
            pairs = [(int(number, 0), word) for number, word in ROW.findall(rows) if number.isdigit()]
            for number, word in dict(reversed(pairs)).items():
                assert named, event
                assert named(number) == word.strip(), event
                compared += 1
    assert compared > 400


@pytest.mark.parametrize(
    ("event", "field", "releases", "shown"),
    [
        ("skb/kfree_skb", "reason", ("6.12", "7.2"), {3: "NO_SOCKET", 1000: None}),
        ("skb/kfree_skb", "reason", ("6.1",), {2: "NO_SOCKET"}),
        ("sched/sched_switch", "prev_state", RELEASES, {0: "R", 1: "S", 2: "D", 0x1002: "D", 0x41: "S|P"}),
        ("sched/sched_switch", "prev_state", ("6.1", "6.12", "7.2"), {0x80: "I", 0x100: "R+"}),
        ("writeback/writeback_start", "reason", RELEASES, {0: "background", 3: "periodic", 99: None}),
        ("irq/softirq_entry", "vec", RELEASES, {1: "TIMER", 3: "NET_RX", 10: None}),
        ("sock/inet_sock_set_state", "newstate", RELEASES, {1: "TCP_ESTABLISHED", 2: "TCP_SYN_SENT"}),
        ("kmem/kmalloc", "gfp_flags", RELEASES, {0: "none", 0xDC0: "GFP_KERNEL|__GFP_ZERO"}),
        ("scsi/scsi_dispatch_cmd_done", "result", ("5.10",), {2: SCSI}),
        ("libata/ata_qc_issue", "cmd", ("6.1",), {0xA0: "ATA_CMD_PACKET"}),
    ],
)  # fmt: skip
def test_words_of_real_kernels(
    event: str, field: str, releases: tuple[str, ...], shown: dict[int, str | None]
) -> None:
    for release in releases:
        found = words(release, event, field)
        assert {number: found(number) for number in shown} == shown, release


def test_a_name_that_the_kernel_left_is_found_among_its_enumerators() -> None:
    without = print_words(form("6.1", "libata/ata_qc_issue"), "cmd")
    assert without is None
    assert words("6.1", "libata/ata_qc_issue", "cmd")(0x25) == "ATA_CMD_READ_EXT"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("REC->f", 6),
        ("(REC->f & 0xff) >> 1", 3),
        ("((u8)(REC->f - 7))", 255),
        ("~REC->f & 0xf", 9),
        ("REC->f == SIX ? 1UL << 4 : 'a'", 16),
        ('REC->f & 1 ? "odd" : "even"', "even"),
        ("!REC->f || REC->f > 010", 0),
        ('__print_symbolic(REC->f & 3, { 1, "a" }, { 1 + 1, "b" })', "b"),
        ('__print_symbolic(REC->f, { 1, "a" }, { UNKNOWN, "b" }, { })', 6),
        ('__print_symbolic(-REC->f, { -6, "a" })', "a"),
        ('__print_flags(REC->f, "|", { 4, "C" }, { 2, "B" })', "C|B"),
        ('__print_flags(REC->f, "", { 6, "both" }, { 2, "B" })', "both"),
        ('__print_flags(REC->f, ",", { (gfp_t)0x4u, "C" })', "C|0x2"),
        ('__print_flags(REC->f << 60, "|", { 4, "C" })', 6 << 60),
        ('REC->f ? __print_flags(REC->f, "|", { 6, "x" "y" }) : "none"', "xy"),
        ("REC->f[1]", None),
        ("__get_str(f)", None),
        ("REC->f / 2", None),
        ("({ int x = 1; x; })", None),
        ("sizeof(unsigned long)", None),
    ],
)
def test_arguments(text: str, value: int | str | None) -> None:
    assert argument(text) == value


def test_what_stands_side_by_side_is_one_word_and_other_places_are_joined() -> None:
    fmt = '"a=%s%s b=%s c=%d d=%s", REC->a & 1 ? "x" : "y", __print_symbolic(REC->a, {1, "one"}), '
    fmt += '__print_flags(REC->a, ":", {2, "two"}, {4, "four"}), REC->a, REC->a ? "true" : "false"'
    found = print_words(made(fmt, "a"), "a")
    assert found is not None
    assert {number: found(number) for number in (0, 1, 6, 8)} == {
        0: "y",
        1: "xone",
        6: "y|two|four",
        8: "y",
    }


def test_only_words_for_the_field_itself_count() -> None:
    fmt = '"%s %s %d", REC->a ? __print_symbolic(REC->b, {1, "one"}) : "no", REC->ab ? "yes" : "no", REC->a'
    form = made(fmt, "a", "b", "ab")
    found = print_words(form, "b")
    assert found is not None
    assert (found(1), found(2)) == ("one", None)
    assert print_words(form, "a") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(" * 100 + "1" + ")" * 100,
        "(u8)" * 100 + "1",
        "+".join(["REC->f"] * 1000),
        "1 +",
        "REC->f)",
        '__print_flags(REC->f, "|", 1)',
        "0x10000000000000000",
        "a $ b",
        '"open',
        "1" * 70_000,
    ],
)
def test_damaged_arguments_are_refused(text: str) -> None:
    with pytest.raises(GrammarError):
        parse_argument(text, {})


PIECES = st.sampled_from(
    'REC->f|__print_symbolic(|__print_flags(|"|"|,|{|}|(|)|?|:|&|~|<<|>>|-|1|63|64|0xff|UL|(u8)|"w"|SIX|[|]|*|sizeof('
    .split("|")
)  # fmt: skip


@given(st.lists(PIECES, max_size=30).map(" ".join) | st.text(max_size=60))
def test_any_text_is_refused_or_gives_a_value(text: str) -> None:
    try:
        found = parse_argument(text, {"SIX": 6})
    except GrammarError:
        return
    for part in (found, *found.words_of("f")):
        for value in (-1, 0, 6, 2**64 - 1):
            if part.compute is not None:
                with suppress(ArithmeticError):
                    assert isinstance(part.compute(value), int | str)


@st.composite
def expressions(draw: st.DrawFn, deep: int = 4) -> str:
    """An expression that Python, with the same operators, can compute."""
    if not deep or draw(st.booleans()):
        return draw(st.sampled_from(["f", "1", "2", "0xff", "6"]))
    left, right = draw(expressions(deep - 1)), draw(expressions(deep - 1))
    sign = draw(st.sampled_from(["+", "-", "*", "&", "|", "^"]))
    return draw(st.sampled_from([f"({left} {sign} {right})", f"({left} >> 2)", f"~{left}", f"-{left}"]))


@given(expressions(), st.integers(-(2**31), 2**32 - 1))
def test_numbers_are_computed_as_by_python(text: str, value: int) -> None:
    compute = parse_argument(text.replace("f", "REC->f").replace("0xREC->fREC->f", "0xff"), {}).compute
    assert compute is not None
    found = compute(value)
    assert isinstance(found, int)
    assert found & (2**64 - 1) == eval(text, {"f": value}) & (2**64 - 1)
