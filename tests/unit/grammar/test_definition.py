"""Definitions: the corpus, what they render as, where their errors point, and random input."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.definition import ProbeKind, parse_definition
from kprobe_exporter.grammar.expression import Need
from kprobe_exporter.grammar.formula import Comparison
from kprobe_exporter.grammar.place import Address, EventName, FileOffset, Symbol
from tests.unit.grammar.corpus import Case, assert_points_into, corpus
from tests.unit.grammar.generate import definition


@pytest.mark.parametrize("case", corpus(), ids=lambda case: case.text[:60] or "empty")
def test_corpus(case: Case) -> None:
    if case.verdict in ("good", "live"):
        parsed = parse_definition(case.text)
        assert parse_definition(parsed.render()) == parsed, case.why
    else:
        with pytest.raises(GrammarError):
            parse_definition(case.text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("p:ev  vfs_read\t%di", "p:ev vfs_read arg1=%di"),
        ("p vfs_read x=%di %si", "p vfs_read x=%di arg2=%si"),
        ("p:g.e m:vfs_read+0x10", "p:g/e m:vfs_read+16"),
        ("p:g/ vfs_read", "p:g/ vfs_read"),
        ("p vfs_read%return $retval:s64", "r vfs_read arg1=$retval:s64"),
        ("r0x10:e vfs_read", "r16:e vfs_read"),
        ("r _text+123 x=$retval", "r _text+123 x=$retval"),
        ("p 18446744071578845184", "p 0xffffffff81000000"),
        ("p vfs_read count x=count", "p vfs_read count=count x=count"),
        ("p vfs_read $arg* %di", "p vfs_read $arg* arg2=%di"),
        ("p vfs_read +4(%di):u8[0x4]", "p vfs_read arg1=+4(%di):u8[4]"),
        ("p:e do_sys_open dfd=a0 a1", "p:e do_sys_open dfd=$arg1 a1=$arg2"),
        ("p:e f s3 sa +8(a0)", "p:e f s3=$stack3 sa=$stack arg3=+8($arg1)"),
        ("r:e f rv x=ra ra", "r:e f rv=$retval"),
        ("e:g/e s/v x=$f if a>1&&(b==2)", "e:g/e s.v x=$f if a > 1 && b == 2"),
        ("f f x=$retval", "f f%return x=$retval"),
        ("f8 f%return", "f8 f%return"),
        ("t:e sched_switch", "t:e sched_switch"),
        ("p /bin/a:b:4096%return(010)", "r /bin/a:b:0x1000(0x8)"),
    ],
)
def test_renders(text: str, line: str) -> None:
    parsed = parse_definition(text)
    assert parsed.render() == line
    assert parse_definition(line) == parsed


def test_parts() -> None:
    parsed = parse_definition("r8:g/e ext4:f+0 ret=$retval:s32")
    assert (parsed.kind, parsed.returns, parsed.maxactive) == (ProbeKind.KPROBE, True, 8)
    assert (parsed.group, parsed.event, parsed.place) == ("g", "e", Symbol("f", "ext4"))
    assert [(arg.name, arg.expression, arg.type) for arg in parsed.args] == [("ret", "$retval", "s32")]
    assert parse_definition("p 0x10").place == Address(16)
    assert parse_definition("p /a:1(2)").place == FileOffset("/a", 1, 2)
    event = parse_definition("e s.v x=$f if a > 1")
    assert event.place == EventName("s", "v")
    assert event.filter == Comparison("a", ">", 1)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("p vfs_read", "p_vfs_read_0"),
        ("r vfs_read", "r_vfs_read_0"),
        ("p ext4:f.isra.0+0x10", "p_ext4_f_isra_0_16"),
        ("p 0x10", None),
        ("p /usr/bin/my-app.x:0x10", "p_my_0x10"),
        ("e s.v", "v"),
        ("f f", "f__entry"),
        ("f f%return", "f__exit"),
        ("t 9p_x", "_9p_x"),
        (f"p {'f' * 80}", f"p_{'f' * 61}"),
    ],
)
def test_default_event(text: str, name: str | None) -> None:
    assert parse_definition(text).default_event == name


def test_group_and_event_are_replaced_and_checked() -> None:
    parsed = parse_definition("p:theirs/name vfs_read")
    ours = replace(parsed, group="kprobe_exporter", event="open_1")
    assert ours.render() == "p:kprobe_exporter/open_1 vfs_read"
    for bad in ("a b", "a\np", "", "9a", "a" * 64):
        with pytest.raises(GrammarError):
            replace(parsed, event=bad)
        with pytest.raises(GrammarError):
            replace(parsed, group=bad)
    twice = parse_definition("p vfs_read x=%di").args * 2
    with pytest.raises(GrammarError, match="two arguments are called 'x'"):
        replace(parsed, args=twice)


def test_nothing_renders_as_two_lines() -> None:
    parsed = parse_definition("p vfs_read x=%di")
    (arg,) = parsed.args
    for smuggled in ("%di\np:x y", "%di # x", "%di\0"):
        with pytest.raises(GrammarError):
            replace(parsed, args=(replace(arg, expression=smuggled),)).render()
    with pytest.raises(GrammarError):
        replace(parsed, place=Symbol("f\n-:x")).render()


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("p vfs_read\n-:x", 10, "a newline cannot be written"),
        ("p vfs_read\r", 10, "the character U.000D cannot"),
        ("p vfs_read # x", 11, "a '#' cannot be written"),
        ("p:e-v vfs_read", 3, "'e-v' is no event name"),
        ("p:9g/ev vfs_read", 2, "'9g' is no group name"),
        ("r5000 vfs_read", 1, "MAXACTIVE is a number from 1 to 4096"),
        ("p5 vfs_read", 1, "take it out"),
        ("r8 /bin/true:1", 1, "take it out"),
        ("p vfs_read-4", 10, r"only come \+OFFSET"),
        ("r vfs_read+8", 10, "take the offset out"),
        ("p m.x:f", 2, "'m.x' is not a module's name"),
        ("p m:", 4, "the symbol is missing"),
        ("p f^x", 3, "a symbol cannot have '.' here"),
        ("p bin/true:1", 2, "written as /PATH:OFFSET"),
        ("p vfs_read+8%exit", 12, "only come %return"),
        ("p vfs_read x=5", 13, "begins with"),
        ("p vfs_read x=%di  x=%si", 18, "two arguments are called 'x'"),
        ("p vfs_read x=%rdi", 13, "the kernel calls %rdi %di"),
        ("p vfs_read x=+8(+4(%di):u8", 22, r"must end with '\)'"),
        ("p vfs_read x=%di:u33", 17, "did you mean 'u32'"),
        ("p vfs_read x=$arg1:string", 19, r"write \+0\(\$arg1\):string"),
        ("p vfs_read x=%si:ustring", 17, r"write \+u0\(%si\):ustring"),
        ("p vfs_read x=$retval", 13, "when a named function returns"),
        ("p vfs_read x=$argg", 17, "the first is .arg1"),
        ("p vfs_read x=$com", 13, "did you mean '.comm'"),
        ("e a.b x=field", 8, "write .field"),
        ("e a.b x=$c if d = 1", 16, "equality is =="),
        ("-:g/e", 0, "deletes a probe"),
        ("p vfs_read =%di", 11, "the argument's name is missing"),
        ("p vfs_read 1x=%di", 11, "'1x' is not an argument name"),
        ("p vfs_read common_pid=%di", 11, "every event has a field 'common_pid'"),
        ("px vfs_read", 1, "after 'p' comes ':'"),
    ],
)
def test_errors_point(text: str, at: int, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        parse_definition(text)
    assert (caught.value.text, caught.value.column) == (text, at)


def test_needs() -> None:
    assert parse_definition("p vfs_read x=$arg1 y=%di:u8").needs == frozenset()
    assert parse_definition("r vfs_read x=$arg1").needs == {Need.ENTRY_ARGUMENTS}
    assert parse_definition("p vfs_read file->f_pos x=%di:char").needs == {Need.BTF, Need.CHAR}
    assert parse_definition("f vfs_read x=$arg1:%pd").needs == {Need.FPROBE, Need.DENTRY}


def test_warnings() -> None:
    assert parse_definition("p vfs_read x=$arg1").warnings == ()
    first, second = parse_definition("r:e do_sys_open rv ra").warnings
    assert "read as $retval" in first
    assert "ra is ignored" in second


def test_limits() -> None:
    many = " ".join(f"a{i}=%di:u8" for i in range(129))
    with pytest.raises(GrammarError, match="128 arguments"):
        parse_definition(f"p vfs_read {many}")
    assert len(parse_definition(f"p vfs_read {many.rsplit(maxsplit=1)[0]}").args) == 128
    names = " ".join(f"{'n' * 29}{i}=%{'r' * 10}" for i in range(100, 190))
    assert len(parse_definition(f"p vfs_read {names}").render()) < 4095
    with pytest.raises(GrammarError, match="longer than the 4094 bytes"):
        parse_definition(f"p vfs_read {names}" + " " * 100)
    unnamed = " ".join(["%" + "r" * 30] * 127)
    with pytest.raises(GrammarError, match="longer than the 4094 bytes") as caught:
        parse_definition(f"p vfs_read {unnamed}")  # too long only with the default names of its arguments
    assert caught.value.column <= len(caught.value.text)


def assert_sound(text: str) -> None:
    try:
        parsed = parse_definition(text)
    except GrammarError as error:
        assert_points_into(text, error)
    else:
        line = parsed.render()
        assert parse_definition(line) == parsed
        assert not re.search(r"[^ -~]|#", line)


@given(st.text())
def test_noise(text: str) -> None:
    assert_sound(text)


@given(st.text(alphabet="prfet:/.09%$@+-u()\\\"'=[]b#\n\t ascmdx_>&|", max_size=80))
def test_noise_of_the_right_letters(text: str) -> None:
    assert_sound(text)


@given(st.sampled_from(corpus()), st.integers(0, 200), st.text(max_size=2))
def test_spoilt_definitions(case: Case, at: int, noise: str) -> None:
    assert_sound(case.text[:at] + noise + case.text[at + 1 :])


@given(st.integers(0, 2**32).map(random.Random))
def test_random_definitions(source: random.Random) -> None:
    assert_sound(definition(source))


def test_an_argument_without_a_name_is_not_called_what_every_event_has() -> None:
    """Its name is ``argN`` then, as in generate_probe_arg_name() of kernel/trace/trace_probe.c."""
    (arg,) = parse_definition("p vfs_read common_pid").args
    assert arg.name == "arg1"
    (long,) = parse_definition(f"p vfs_read {'a' * 33}").args
    assert long.name == "arg1"
