"""Patterns of ~, compared with a plain reimplementation of the kernel's algorithm."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.grammar.glob import matcher
from tests.support.patience import patience


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
    assert matcher(pattern, True, fixed)(value) is kernel_match(pattern.encode(), value, fixed)


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
    assert not matcher("*sh", True, 16)(b"bash")
    assert matcher("*sh", True, 16)(b"kprobe-test-zsh")


def test_many_stars_take_no_time() -> None:
    pattern, value = "a*" * 60 + "b?c", b"a" * 4000
    begun = time.thread_time()
    assert not matcher(pattern, True)(value)
    assert time.thread_time() - begun < patience(0.5)  # of CPU time, regardless of other load
