"""Filters applied to fields: which are refused, which records pass; patterns against the kernel's way."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.grammar.evaluate import (
    COMMON_FIELDS,
    FLOAT,
    OTHER,
    STRING,
    FieldType,
    Value,
    field_type,
    matcher,
    wrong_comparison,
)
from kprobe_exporter.grammar.fetch import parse_fetch
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import Comparison
from tests.support.conditions import compile_filter
from tests.support.kernel_filters import by_types, refused
from tests.support.patience import patience
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
    "array": OTHER,
    "duration": FLOAT,
    **COMMON_FIELDS,
}


def passes(text: str, value: Value, *, typed: bool = True) -> bool:
    parsed = parse_filter(text, fractions=True)
    (name,) = parsed.fields
    return compile_filter(by_types(parsed, KNOWN) if typed else parsed)({name: value})


@pytest.mark.parametrize(
    ("text", "value", "result"),
    [
        ("s32 == -2", -2, True),
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
    ("text", "message"),
    [
        ("u8 == 'a'", "'u8' is a number, take the quotes away"),
        ("text == 0x10", "'text' is a string, put 0x10 in quotes"),
        ("comm != 1", "put 1 in quotes"),
        ("array == 1", "'array' is an array"),
        ("u64 == -1", "'u64' is unsigned"),
        ("u64 == -0x0", "'u64' is unsigned"),
        ("s32 < 9223372036854775808", "'s32' is signed"),
        ("duration & 1", "it has no bits"),
        ("u8 < 0.5", "'u8' is a whole number"),
    ],
)
def test_checks(text: str, message: str) -> None:
    (part,) = parse_filter(text, fractions=True).comparisons
    assert message in wrong_comparison(part, KNOWN[part.name])


def test_each_comparison_is_checked() -> None:
    good = "u8 < 3 && text ~ 'a*' && chars == 'x' && cpu == 1 && common_pid != -5"
    assert not refused(parse_filter(good), KNOWN)
    assert refused(parse_filter(f"{good} && u8 == 'x'"), KNOWN)
    assert refused(parse_filter(f"{good} && nothing == 1"), KNOWN)


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
    assert isinstance(compile_filter(by_types(parsed, types))(event), bool)


@pytest.mark.parametrize("operator", ["==", "!=", "<", "<=", ">", ">="])
def test_a_duration_may_be_compared_with_a_fraction(operator: str) -> None:
    parsed = parse_filter(f"duration {operator} 0.25", fractions=True)
    assert not refused(parsed, KNOWN)


def kernel_glob(pattern: bytes, value: bytes) -> bool:
    """Match as lib/glob.c does, but by recursion: slow and plain."""
    head, rest = pattern[:1], pattern[1:]
    if head == b"*":
        return any(kernel_glob(rest, value[at:]) for at in range(len(value) + 1))
    if head == b"\\":
        head, rest = rest[:1], rest[1:]
        allowed = set(head)
    elif head == b"?":
        allowed = set(range(1, 256))
    else:
        members = kernel_class(rest) if head == b"[" else None
        allowed, rest = members or (set(head), rest)
    if not value or not head:
        return value == head
    return value[0] in allowed and kernel_glob(rest, value[1:])


def kernel_class(text: bytes) -> tuple[set[int], bytes] | None:
    inverted = text.startswith(b"!")
    text = text[inverted:]
    allowed: set[int] = set()
    first = True
    while first or not text.startswith(b"]"):
        if not text:
            return None
        low, text, first = text[0], text[1:], False
        high = low
        if text.startswith(b"-") and not text.startswith(b"-]"):
            if len(text) == 1:
                return None
            high, text = text[1], text[2:]
        allowed |= set(range(low, high + 1))
    return (set(range(1, 256)) - allowed if inverted else allowed), text[1:]


def kernel_match(pattern: bytes, value: bytes, fixed: int | None) -> bool:
    """Match as filter_parse_regex() and the five regex_match_*() of trace_events_filter.c do."""
    inverted = pattern.startswith(b"!")
    pattern = pattern[inverted:]
    stars = [at for at, byte in enumerate(pattern) if byte == ord("*")]
    inner = [at for at in stars if 0 < at < len(pattern) - 1]
    special = next((at for at, byte in enumerate(pattern) if byte in b"[?\\"), len(pattern))
    if pattern[:1].isdigit():
        found = value == pattern
    elif special < len(pattern) or inner:
        found = kernel_glob(pattern, value)
    elif not stars:
        found = value == pattern
    elif stars == [0]:
        size = len(value) if fixed is None else fixed - 1
        memory = value + bytes(64)
        end = pattern[1:]
        found = size >= len(end) and memory[size - len(end) : size] == end
    elif stars[0] == 0:
        found = pattern[1:-1] in value
    else:
        found = value.startswith(pattern[:-1])
    return found is not inverted


PATTERNS = st.text(alphabet="ab1*?[]!-\\", max_size=9)
VALUES = st.text(alphabet="ab1*[]!-\\c", max_size=9).map(str.encode)


@given(PATTERNS, VALUES, st.sampled_from((None, 16)))
def test_as_the_kernel(pattern: str, value: bytes, fixed: int | None) -> None:
    known = STRING if fixed is None else FieldType("chars", fixed)
    test = compile_filter(by_types(Comparison("x", "~", pattern), {"x": known}))
    assert test({"x": value}) is kernel_match(pattern.encode(), value, fixed)


@given(st.text(max_size=5), st.text(max_size=5))
def test_without_a_pattern(wanted: str, value: str) -> None:
    assert matcher(wanted, False)(value.encode()) is (wanted == value)


@pytest.mark.parametrize(
    ("pattern", "value", "found"),
    [
        ("bash", b"bash", True),
        ("bash", b"bas", False),
        ("ba*", b"bash", True),
        ("*sh", b"bash", True),
        ("*as*", b"bash", True),
        ("*", b"", True),
        ("b*h", b"bash", True),
        ("b??h", b"bash", True),
        ("[a-c]ash", b"bash", True),
        ("[!a-c]ash", b"bash", False),
        ("[c-a]ash", b"bash", False),
        ("[!c-a]ash", b"bash", True),
        ("b[ash", b"b[ash", True),
        (r"\*", b"*", True),
        (r"\*", b"x", False),
        ("a*\\", b"ab", True),
        ("!bash", b"bash", False),
        ("!ba*", b"sh", True),
        ("1*", b"1*", True),
        ("1*", b"12", False),
        ("[a]*\xff", b"ab\xc3\xbf", True),
    ],
)
def test_matches(pattern: str, value: bytes, found: bool) -> None:
    assert matcher(pattern, True)(value) is found


def test_end_of_an_array() -> None:
    """The kernel compares the last of comm's 16 bytes, which are NULs after a short name."""
    assert not passes("comm ~ '*sh'", b"bash")
    assert passes("comm ~ '*sh'", b"kprobe-test-zsh")


def test_many_stars_take_no_time() -> None:
    pattern, value = "a*" * 60 + "b?c", b"a" * 4000
    begun = time.thread_time()
    assert not matcher(pattern, True)(value)
    assert time.thread_time() - begun < patience(0.5)  # of CPU time, regardless of other load
