"""Filters applied to fields: which filters are refused, and which records pass."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.grammar.condition import Filter
from kprobe_exporter.grammar.evaluate import (
    COMMON_FIELDS,
    FLOAT,
    OTHER,
    STRING,
    FieldType,
    Value,
    check_fields,
    compile_filter,
    field_type,
)
from kprobe_exporter.grammar.fetch import parse_fetch
from kprobe_exporter.grammar.filter import parse_filter
from tests.unit.grammar.generate import filter_text

U8, U16, S32, U64 = (FieldType("int", n, signed) for n, signed in
                     ((1, False), (2, False), (4, True), (8, False)))  # fmt: skip
KNOWN = {
    "u8": U8,
    "u16": U16,
    "s32": S32,
    "u64": U64,
    "text": STRING,
    "chars": FieldType("chars", 8),
    "pointer": FieldType("pointer"),
    "array": OTHER,
    "duration": FLOAT,
    **COMMON_FIELDS,
}


def passes(text: str, value: Value, *, typed: bool = True) -> bool:
    parsed = parse_filter(text, fractions=True)
    (name,) = parsed.fields
    return compile_filter(parsed, KNOWN if typed else None)({name: value})


@pytest.mark.parametrize(
    ("text", "value", "result"),
    [
        ("s32 == -2", -2, True),
        ("s32 == -2", 4294967294, True),
        ("s32 == 4294967294", -2, True),
        ("s32 < 0", -1, True),
        ("s32 < 4294967295", -1, False),
        ("s32 <= 2147483648", -(2**31), True),
        ("s32 > -1", 0, True),
        ("u8 == 256", 0, True),
        ("u8 < 257", 0, True),
        ("u8 < 257", 1, False),
        ("u8 >= 0xff", 255, True),
        ("u16 & 0x10000", 0xFFFF, False),
        ("u16 & 0x8000", 0xFFFF, True),
        ("s32 & -1", 1, True),
        ("u64 == 18446744073709551615", 2**64 - 1, True),
        ("u64 != 1", 2, True),
        ("u64 & 6", 9, False),
        ("cpu == 1", 1, True),
        ("cpu & 1", 1, False),
        ("text == 'ab'", b"ab", True),
        ("text == 'ab'", b"abc", False),
        ("text != 'ab'", b"abc", True),
        ("text ~ 'a*'", b"abc", True),
        ("text ~ '*c'", b"abc", True),
        ("comm ~ '*c'", b"abc", False),
        ("chars ~ '*g'", b"abcdefg", True),
        ("chars ~ '*h'", b"abcdefgh", False),
        ("duration > 0.5", 0.6, True),
        ("duration > 1", 1.5, True),
        ("duration <= 1e-3", 0.001, True),
        ("unknown > 5", 6, True),
        ("unknown & 4", 6, True),
    ],
)
def test_compares(text: str, value: Value, result: bool) -> None:
    assert passes(text, value) is result


def test_without_types_numbers_are_plain() -> None:
    assert not passes("s32 == 4294967294", -2, typed=False)
    assert passes("comm ~ '*c'", b"abc", typed=False)


@pytest.mark.parametrize("value", [None, b"x", 1, 1.5])
def test_what_cannot_be_compared_is_unequal(value: Value) -> None:
    for wrong in ("a == 7", "a < 7", "a & 7", "a > 7") if not isinstance(value, int | float) else ():
        assert not passes(wrong, value)
    for wrong in ("a == 'y'", "a ~ 'y*'"):
        assert not passes(wrong, value)
    for right in ("a != 7", "a != 'y'", "!a == 7"):
        assert passes(right, value)
    assert compile_filter(parse_filter("a != 1"))({})


@pytest.mark.parametrize(
    ("text", "results"),
    [
        # for (a, b, c) = 000, 001, 010 … 111
        ("a==1 || b==1 && c==1", "00011111"),
        ("(a==1 || b==1) && c==1", "00010101"),
        ("!a==1 && b==1", "00110000"),
        ("!(a==1 && b==1)", "11111100"),
        ("!(a==1 || !b==1) || c==1", "01110101"),
        ("!!(a==1)", "00001111"),
        ("a==1 && b==1 || !c==1 && !a==1", "10100011"),
    ],
)
def test_logic(text: str, results: str) -> None:
    test = compile_filter(parse_filter(text))
    events = [{"a": n >> 2, "b": n >> 1 & 1, "c": n & 1} for n in range(8)]
    assert "".join(str(int(test(event))) for event in events) == results


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("u8 == 1 && cuont == 2", 11, "no field 'cuont', there are COMM, CPU"),
        ("tetx == 'a'", 0, "no field 'tetx', did you mean 'text'"),
        ("u8 == 'a'", 0, "'u8' is a number, take the quotes away"),
        ("text == 0x10", 0, "'text' is a string, put 0x10 in quotes"),
        ("comm != 1", 0, "put 1 in quotes"),
        ("array == 1", 0, "'array' is an array"),
        ("u64 == -1", 0, "'u64' is unsigned"),
        ("u64 == -0x0", 0, "'u64' is unsigned"),
        ("s32 < 9223372036854775808", 0, "'s32' is signed"),
        ("duration & 1", 0, "it has no bits"),
        ("u8 < 0.5", 0, "'u8' is a whole number"),
    ],
)
def test_checks(text: str, at: int, message: str) -> None:
    (error,) = check_fields(parse_filter(text, fractions=True), KNOWN, text)
    assert message in error.message
    assert (error.text, error.column) == (text, at)


def test_all_problems_are_told() -> None:
    text = "nothing == 1 && u8 == 'x' && s32 == -1"
    assert [error.column for error in check_fields(parse_filter(text), KNOWN, text)] == [0, 16]
    good = "u8 < 3 && text ~ 'a*' && pointer == 'x' && cpu == 1 && common_pid != -5"
    assert check_fields(parse_filter(good), KNOWN) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$retval:s32", S32),
        ("%di:x16", U16),
        ("%di:char", U8),
        ("%di:b3@0/8", U8),
        ("%di:symbol", U64),
        ("%di", U64),
        ("%di:symstr", STRING),
        ("$comm", STRING),
        ("+0(%di):u8[8]", OTHER),
        ("+0(%di):string[8]", OTHER),
    ],
)
def test_types_of_arguments(text: str, expected: FieldType) -> None:
    assert field_type(parse_fetch(text)) == expected


def test_no_filter() -> None:
    with pytest.raises(TypeError):
        compile_filter(Filter())


EVENTS = st.fixed_dictionaries(
    {name: st.integers(0, 300) for name in ("u8", "u16", "u32", "u64")}
    | {name: st.integers(-300, 300) for name in ("s8", "s16", "s32", "s64", "cpu")}
    | {name: st.sampled_from((b"", b"a", b"abc", b"[x]", None)) for name in ("text", "comm")}
)


@given(st.integers(0, 2**32).map(random.Random), EVENTS)
def test_written_back_it_passes_the_same(source: random.Random, event: dict[str, Value]) -> None:
    parsed = parse_filter(filter_text(source))
    result = compile_filter(parsed)(event)
    assert compile_filter(parse_filter(parsed.render()))(event) is result
    types = dict.fromkeys(parsed.fields, FieldType("int")._replace(signed=True))
    types |= {"text": STRING, "comm": STRING}
    assert isinstance(compile_filter(parsed, types)(event), bool)


@pytest.mark.parametrize("operator", ["==", "!=", "<", "<=", ">", ">="])
def test_a_duration_may_be_compared_with_a_fraction(operator: str) -> None:
    parsed = parse_filter(f"duration {operator} 0.25", fractions=True)
    assert check_fields(parsed, KNOWN) == ()
    (problem,) = check_fields(parse_filter("duration & 1", fractions=True), KNOWN)
    assert "it has no bits" in problem.message
