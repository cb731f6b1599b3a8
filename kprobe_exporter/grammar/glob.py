"""Patterns of the filter operator ``~``, matched as by filter_parse_regex() and lib/glob.c."""

import re
from collections.abc import Callable

Matcher = Callable[[bytes], bool]


def matcher(pattern: str, is_pattern: bool, fixed: int | None = None) -> Matcher:
    """Return a function that matches a field's bytes against ``pattern``, literally unless ``is_pattern``.

    ``fixed`` is the size of a field that is an array of characters. The bytes end before the value's NUL.
    """
    wanted = pattern.encode()
    if not is_pattern:
        return lambda value: value == wanted
    if not wanted.startswith(b"!"):
        return _pattern(wanted, fixed)
    matches = _pattern(wanted[1:], fixed)
    return lambda value: not matches(value)


def _pattern(wanted: bytes, fixed: int | None) -> Matcher:
    """The kernel has separate matchers for ``x``, ``x*``, ``*x`` and ``*x*``, with their own edge cases.

    A pattern that begins with a digit is taken literally, including its stars (MATCH_INDEX).
    """
    stars = wanted.count(b"*")
    if wanted[:1].isdigit() or not re.search(rb"[*?\[\\]", wanted):
        return lambda value: value == wanted
    leading, trailing = wanted.startswith(b"*"), len(wanted) > 1 and wanted.endswith(b"*")
    if re.search(rb"[?\[\\]", wanted) or stars > leading + trailing:
        whole = re.compile(_glob(wanted), re.DOTALL)
        return lambda value: whole.fullmatch(value) is not None
    text = wanted.strip(b"*")
    if leading and trailing:
        return lambda value: text in value
    if trailing:
        return lambda value: value.startswith(text)
    if fixed is None:
        return lambda value: value.endswith(text)
    # regex_match_end() compares the end of the array, not the end of the string in it.
    return lambda value: value.ljust(fixed, b"\0")[: fixed - 1].endswith(text)


def _glob(pattern: bytes) -> bytes:
    """Return a regular expression that matches like glob_match() of lib/glob.c.

    In kernels before 6.12, ``[!x]`` also matches the end of the string.

    Each star is followed by the first match of the text up to the next star, without backtracking. This
    bounds the time as in the kernel.
    """
    segments, at = [b""], 0
    while at < len(pattern):
        char, at = pattern[at : at + 1], at + 1
        if char == b"*":
            segments.append(b"")
            continue
        if char == b"?":
            token = b"."
        elif char == b"[":
            token, at = _class(pattern, at)
        elif char == b"\\":
            if at == len(pattern):  # it escapes the NUL, so the pattern ends here
                break
            token, at = re.escape(pattern[at : at + 1]), at + 1
        else:
            token = re.escape(char)
        segments[-1] += token
    head, *middle = segments
    if not middle:
        return head
    last = middle.pop()
    return head + b"".join(b"(?>.*?" + part + b")" for part in middle) + b".*" + last


_RANGE = rb"(?:-[^\]])?+"
_CLASS = re.compile(rb"(!?+)(." + _RANGE + rb"(?:[^\]]" + _RANGE + rb")*+)\]", re.DOTALL)


def _class(pattern: bytes, start: int) -> tuple[bytes, int]:
    """Return the class after ``[`` and the position after it. An unclosed class is a plain ``[``."""
    found = _CLASS.match(pattern, start)
    if found is None:
        return rb"\[", start
    ranges = re.findall(rb"(.)(?:-(.))?", found[2], re.DOTALL)
    allowed = {byte for low, high in ranges for byte in range(low[0], (high or low)[0] + 1)}
    members = b"".join(b"\\x%02x" % byte for byte in sorted(allowed))
    if not members:  # a reversed range is empty
        return (b"." if found[1] else b"(?!)"), found.end()
    return b"[" + b"^" * len(found[1]) + members + b"]", found.end()
