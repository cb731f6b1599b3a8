"""Nodes: what they parse to, how they are written back, where their errors point."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import Comparison, Node, Operation, split
from tests.unit.grammar.corpus import assert_points_into
from tests.unit.grammar.generate import filter_text


def And(operands: tuple[Node, ...]) -> Node:
    return Operation("&&", operands)


def Or(operands: tuple[Node, ...]) -> Node:
    return Operation("||", operands)


def Not(operand: Node) -> Node:
    return Operation("!", (operand,))


A, B, C, D = (Comparison(name, "==", 1) for name in "abcd")


@pytest.mark.parametrize(
    ("text", "parsed", "line"),
    [
        ("a==1", A, "a == 1"),
        ("  a\t== 1 ", A, "a == 1"),
        ("return < -2", Comparison("return", "<", -2), "return < -2"),
        ("f & 0x40", Comparison("f", "&", 64), "f & 0x40"),
        ("f>=010", Comparison("f", ">=", 8), "f >= 010"),
        ("9p != 1", Comparison("9p", "!=", 1), "9p != 1"),
        ('c == "a b"', Comparison("c", "==", "a b"), 'c == "a b"'),
        ("c ~ 'a\"*'", Comparison("c", "~", 'a"*'), "c ~ 'a\"*'"),
        ('c != ""', Comparison("c", "!=", ""), 'c != ""'),
        ('c == "a && !b"', Comparison("c", "==", "a && !b"), 'c == "a && !b"'),
        ("a==1&&b==1", And((A, B)), "a == 1 && b == 1"),
        ("a==1 && b==1 && c==1", And((A, B, C)), "a == 1 && b == 1 && c == 1"),
        ("a==1 && (b==1 && c==1)", And((A, B, C)), "a == 1 && b == 1 && c == 1"),
        ("a==1||b==1&&c==1", Or((A, And((B, C)))), "a == 1 || b == 1 && c == 1"),
        ("(a==1||b==1)&&c==1", And((Or((A, B)), C)), "(a == 1 || b == 1) && c == 1"),
        ("!a==1 && b==1", And((Not(A), B)), "!a == 1 && b == 1"),
        ("!(a==1 || b==1)", Not(Or((A, B))), "!(a == 1 || b == 1)"),
        ("!!a==1", A, "a == 1"),
        ("! ( a==1 )", Not(A), "!a == 1"),
        ("!(!(a==1))", Not(Not(A)), "!(!a == 1)"),
        ("((((a==1))))", A, "a == 1"),
    ],
)
def test_parses_and_writes_back(text: str, parsed: Node, line: str) -> None:
    assert parse_filter(text) == parsed
    assert parse_filter(text).render() == line
    assert parse_filter(line) == parsed


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", 0, "the filter is empty"),
        ("  ", 0, "the filter is empty"),
        ("0", 1, "after '0' must come an operator"),
        ("a", 1, "after 'a' must come an operator"),
        ("a = 1", 2, "equality is =="),
        ("a =~ 1", 2, "a pattern is matched by ~"),
        ("a !~ 'x'", 2, "write !.FIELD ~ PATTERN."),
        ("a | 1", 2, r"there is no \|"),
        ("a && b == 1", 2, "must come an operator"),
        ("a.ustring == 1", 13, "a.ustring is a string: put what it is compared with in quotes"),
        ("a.function == vfs_read", 1, "is not done here"),
        ("a & CPUS{1}", 4, "is not done here"),
        ("a == ", 5, "a number or a string"),
        ("a == b", 5, "put a string in quotes"),
        ("a == 08", 5, "write it as 10"),
        ("a == 1x", 5, "write it as 10"),
        ("a == 0.5", 6, r"must be && or \|\| before '.5'"),
        ("a == +1", 5, "a number or a string"),
        ("a == 18446744073709551616", 5, "no 64-bit number"),
        ("a == -9223372036854775809", 5, "no 64-bit number"),
        ("a == 0x00000000000000000000001", 5, "no 64-bit number"),
        ("a ~ 1", 4, "takes a pattern in quotes"),
        ("a < 'x'", 4, "cannot be compared by <"),
        ("a == 'x", 5, "closing ' of this string is missing"),
        (f"a == '{'x' * 256}'", 5, "255 bytes"),
        ("a == 1 b == 2", 7, r"there must be && or \|\| before 'b'"),
        ("a == 1 & b == 2", 7, r"must be && or \|\| before '&'"),
        ("a == 1 &&", 9, "a field's name must be here"),
        ("a == 1 && ) ", 10, "a field's name must be here"),
        ("(a == 1", 0, r"this '\(' has no '\)'"),
        ("a == 1)", 6, r"this '\)' has no '\('"),
        ("(a == 1 b == 2)", 8, r"must be && or \|\|"),
        ("()", 1, "a field's name must be here"),
        ("!", 1, "a field's name must be here"),
        ("!= 1", 0, "a field's name must be here"),
        ("a == 1\n", 6, "a newline"),
        ("a == 1 # x", 7, "a '#'"),
        ("a == 'é'", 6, "U.00E9"),
        ("(" * 51 + "a==1" + ")" * 51, 50, "50 deep"),
        ("a==1" + " " * 4091, 4094, "longer than"),
        ("&&".join(["a==1"] * 600), 3598, "longer than"),
    ],
)
def test_errors_point(text: str, at: int, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        parse_filter(text)
    assert (caught.value.text, caught.value.column) == (text, at)


def test_deep_parentheses() -> None:
    text = "(" * 50 + "!a == 1" + " || b == 1)" * 50
    assert parse_filter(parse_filter(text).render()) == parse_filter(text)


def test_fractions() -> None:
    assert parse_filter("d > 0.25", fractions=True) == Comparison("d", ">", 0.25)
    assert parse_filter("d > 1e-3", fractions=True).render() == "d > 1e-3"
    assert parse_filter("d > 0x10", fractions=True) == Comparison("d", ">", 16)
    for bad in ("d & 0.5", "d > .5", "d > 1.", "d > 0.5d"):
        with pytest.raises(GrammarError):
            parse_filter(bad, fractions=True)


def test_fields_and_names() -> None:
    parsed = parse_filter("return < 0 && !(comm == 'x' || return == -2)")
    assert parsed.fields == {"return", "comm"}
    assert [part.column for part in parsed.comparisons] == [0, 16, 31]
    renamed = parsed.rename({"return": "ret"})
    assert renamed.render() == 'ret < 0 && !(comm == "x" || ret == -2)'


def test_split() -> None:
    def only_ab(part: Node) -> bool:
        return part.fields <= {"a", "b"}

    assert split(parse_filter("a==1 && c==1 && b==1"), only_ab) == (And((A, B)), C)
    assert split(parse_filter("a==1 || c==1"), only_ab) == (None, Or((A, C)))
    assert split(A, only_ab) == (A, None)
    nested = parse_filter("(a==1 || b==1) && d==1")
    assert split(nested, only_ab) == (Or((A, B)), D)


def assert_sound(text: str) -> None:
    try:
        parsed = parse_filter(text)
    except GrammarError as error:
        assert_points_into(text, error)
    else:
        assert parse_filter(parsed.render()) == parsed


@given(st.text())
def test_noise(text: str) -> None:
    assert_sound(text)


@given(st.text(alphabet="ab =!~<>&|()'\"01-x\n#.*[]", max_size=60))
def test_noise_of_the_right_letters(text: str) -> None:
    assert_sound(text)


@given(st.integers(0, 2**32).map(random.Random))
def test_random_filters(source: random.Random) -> None:
    assert_sound(filter_text(source))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10ms", 0.01), ("1.5us", 1.5e-6), ("999ns", 9.99e-7), ("2s", 2.0), ("1m", 60.0), ("0.5h", 1800.0)],
)
def test_times_are_seconds(text: str, seconds: float) -> None:
    [part] = parse_filter(f"duration >= {text} ", fractions=True).comparisons
    assert part.value == pytest.approx(seconds)
    assert part.time == text
    [again] = parse_filter(part.render(), fractions=True).comparisons
    assert again.value == part.value


@pytest.mark.parametrize(
    ("text", "fractions", "message"),
    [
        ("duration > 10ms", False, "'10ms' is a time, which the kernel cannot compare"),
        ("duration > 10 ms", True, "there must be && or || before 'ms'"),
        ("duration > 10msx", True, "'10msx' is no 64-bit number"),
        ("duration > 1d", True, "'1d' is no 64-bit number"),
        ("duration & 10ms", True, "'10ms' is a time, which the kernel cannot compare"),
    ],
)
def test_times_where_they_cannot_be(text: str, fractions: bool, message: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)):
        parse_filter(text, fractions=fractions)
