"""``regexp``: the text that group 1 of a pattern matches: ``decode: {regexp: '^(\\w+)'}``."""

import re
import warnings
from collections.abc import Iterable
from re import _parser  # type: ignore[attr-defined]  # no stub has it
from typing import Any

from kprobe_exporter.model.values import Decoder, Value

LONGEST_PATTERN = 200

LONGEST = 4096
"""Characters of a text that are searched, at most: PATH_MAX of the kernel."""

SHORTEST = 128
"""Characters that every pattern that is taken can be searched in."""

MOST_WAYS = 4 * SHORTEST**3
MOST_WAYS_LONG = 1 << 20
"""Ways to match: three unbounded repeats in SHORTEST characters and a little more, two in 1024. The worst
text takes milliseconds."""

_STARTS = ("(AT, AT_BEGINNING)", "(AT, AT_BEGINNING_STRING)")


def decoder(options: object) -> Decoder:
    """Make a decoder from a pattern with at least one group. Raises ValueError for anything else.

    Python's matcher backtracks, and a process can choose its name. A pattern that would backtrack too
    often on a text made for it is refused. A text that is too long for the pattern is never cut, since
    its end could be what the pattern asks for: the decoder returns None.
    """
    if not isinstance(options, str):
        raise ValueError("the decoder regexp wants a pattern with a group, as in {regexp: '^([a-z]+)'}")
    if len(options) > LONGEST_PATTERN:
        raise ValueError(f"a pattern has at most {LONGEST_PATTERN} characters, this one {len(options)}")
    pattern, longest = _compiled(options)

    def decode(value: Value) -> str | None:
        if value is None:
            return None
        text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
        found = pattern.search(text) if len(text) <= longest else None
        return found[1] if found else None

    return decode


def _compiled(text: str) -> tuple[re.Pattern[str], int]:
    """Return the pattern, and the most characters that it may be searched in."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested sets, which Python does not have yet
            pattern = re.compile(text)
            tree = _parser.parse(text)
        if not pattern.groups:
            raise ValueError("the pattern has no group: put what is wanted in ( )")
        anchored = str(next(iter(tree), None)) in _STARTS and not pattern.flags & re.MULTILINE

        def fits(longest: int, most: int) -> bool:
            return _ways(tree, longest) * (1 if anchored else longest) <= most

        if not fits(SHORTEST, MOST_WAYS):
            raise ValueError(
                "this pattern could take too long on a text that is made for it: begin it with ^, take"
                " fewer of * + ? and |, and none inside a group that is repeated"
            )
    except re.error as error:
        raise ValueError(f"this is no regular expression: {repr(error.msg)[1:-1]}") from None
    except (OverflowError, RecursionError):
        raise ValueError("this regular expression is too large") from None
    longest = LONGEST
    while longest > SHORTEST and not fits(longest, MOST_WAYS_LONG):
        longest //= 2
    return pattern, longest


def _ways(items: Iterable[tuple[Any, Any]], longest: int) -> int:
    """Return an upper bound of the ways in which the matcher may try these items on so many characters."""
    ways = 1
    for code, detail in items:
        ways = min(ways * _ways_of(code.name, detail, longest), MOST_WAYS + 1)
    return ways


def _ways_of(name: str, detail: Any, longest: int) -> int:
    match name:
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "AT":
            return 1
        case "SUBPATTERN":
            return _ways(detail[3], longest)
        case "BRANCH":
            return sum(_ways(branch, longest) for branch in detail[1])
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, body = detail
            most = min(most, longest)
            return int(max(1, most - least + 1) * _ways(body, longest) ** most)
    raise ValueError(
        "the decoder regexp looks neither ahead nor back: leave out (?= (?! (?<= (?> \\1 and a++"
    )
