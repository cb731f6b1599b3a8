"""Parser of the kernel's event filter language (kernel/trace/trace_events_filter.c)."""

import re
from decimal import Decimal
from typing import NoReturn

from kprobe_exporter.grammar.formula import Comparison, Node, Operation, Operator, logical
from kprobe_exporter.grammar.lexis import LONG_MIN, SECONDS, fail, kernel_number, refuse_forbidden
from kprobe_exporter.grammar.precedence import PrecedenceParser, Token

LONGEST = 4094  # bytes of a filter: event_filter_write() takes less than a page, and a newline may follow
LONGEST_STRING = 255  # bytes between quotes: MAX_FILTER_STR_VAL of include/linux/trace_events.h less the NUL

KERNEL_WORDS = {"common_comm": "COMM", "common_cpu": "CPU"}
"""Our fields, and the kernel's words for them in filters, which no event uses for a field of its own."""


def parse_filter(text: str, *, fractions: bool = False) -> Node:
    """Parse a filter; raises GrammarError.

    Whether the fields exist is not checked here: see ``check_fields`` of ``evaluate``. ``fractions`` allows
    numbers such as ``0.25`` and ``1e-3``, and times such as ``10ms``, which the agent can compare and the
    kernel cannot; see ``wrong_time`` of ``evaluate``.
    """
    refuse_forbidden(text, LONGEST)
    result = _Parser(text, fractions).whole()
    if len(result.render()) > LONGEST:
        fail(f"the filter is longer than the {LONGEST} bytes that the kernel takes", text, len(text))
    return result


def in_kernels_words(text: str) -> str:
    """Return a filter for the kernel, in which its own words stand for our fields; raises GrammarError."""
    parsed = parse_filter(text)
    return parsed.rename(KERNEL_WORDS).render() if parsed.fields & KERNEL_WORDS.keys() else text


_FIELD = re.compile(r"[A-Za-z0-9_]+")

USER_STRING = ".ustring"
"""Behind the name of a tracepoint's field: the program's string to which the field points (since 5.17)."""

_OPERATOR = re.compile(r"~|!=|==|<=|<|>=|>|&(?!&)")
_SIGN = re.compile(r"\|\||&&|[()]")
_NOT = re.compile(r"!(?![=~])")
_DIGITS = re.compile(r"-?[A-Za-z0-9]*")
_FRACTION = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ns|us|ms|s|m|h)(?![\w.])")


def seconds_of(time: str) -> Decimal:
    """Return the seconds of a number with a unit of time, such as ``10ms``."""
    found = _TIME.fullmatch(time)
    assert found is not None
    return Decimal(found[1]) * SECONDS[found[2]]


_INSTEAD = {
    "=~": "a pattern is matched by ~",
    "=": "equality is ==",
    "!~": "write !(FIELD ~ PATTERN)",
    "|": "there is no |",
}


class _Parser(PrecedenceParser[Node]):
    """``at`` is the start of the next word, after any blanks; only signs and the end are tokens."""

    nested = "parentheses can be"

    def __init__(self, text: str, fractions: bool) -> None:
        super().__init__(text, [])
        self.fractions = fractions
        self.skip(0)

    @property
    def token(self) -> Token:
        sign = _SIGN.match(self.text, self.at)
        kind = "sign" if sign else "word" if self.at < len(self.text) else "end"
        return Token(kind, sign[0] if sign else "", self.at)

    def advance(self) -> Token:
        token = self.token
        self.skip(len(token.text))
        return token

    def skip(self, length: int) -> None:
        self.at = len(self.text) - len(self.text[self.at + length :].lstrip(" \t"))

    def whole(self) -> Node:
        if self.at == len(self.text):
            fail("the filter is empty, write FIELD OPERATOR VALUE, such as count > 4096", self.text)
        return super().whole()

    def fail_after(self) -> NoReturn:
        if self.text[self.at] == ")":
            super().fail_after()
        found = f"{self.text[self.at :].split()[0]!r}"
        fail(f"there must be && or || before {found}", self.text, self.at)

    def joined(self, sign: Token, left: Node, right: Node) -> Node:
        return logical(sign.text, left, right)

    def unary(self) -> Node:
        """``!`` binds to one comparison or parenthesis, as in is_not() and predicate_parse()."""
        inverted, column = False, self.at
        while _NOT.match(self.text, self.at):
            self.skip(1)
            inverted = not inverted
        result = self.group(self.advance()) if self.token.text == "(" else self.comparison()
        return Operation("!", (result,), column=column) if inverted else result

    def comparison(self) -> Node:
        found = _FIELD.match(self.text, self.at)
        if not found:
            fail("a field's name must be here, as in count > 4096", self.text, self.at)
        name, column = found[0], self.at
        if self.text.startswith(USER_STRING, found.end()):
            name += USER_STRING
        self.skip(len(name))
        operator = _OPERATOR.match(self.text, self.at)
        if not operator:
            self.fail_operator(name)
        self.skip(len(operator[0]))
        sign: Operator = operator[0]  # type: ignore[assignment]  # the pattern matches only operators
        start, time = self.at, _TIME.match(self.text, self.at)
        if name.endswith(USER_STRING) and not self.text.startswith(('"', "'"), start):
            fail(f"{name} is a string: put what it is compared with in quotes", self.text, start)
        value: int | float | str
        written, unit = "", ""
        if self.text.startswith(('"', "'"), start):
            value = self.string(sign)
        elif time and self.fractions and sign not in ("~", "&"):
            self.skip(len(time[0]))
            value, written, unit = float(seconds_of(time[0])), f"{seconds_of(time[0]):f}", time[0]
        else:
            value, written = self.number(sign)
        return Comparison(name, sign, value, written, unit, column=column, value_column=start)

    def fail_operator(self, name: str) -> NoReturn:
        rest = self.text[self.at :]
        if rest.startswith(".function"):
            fail(f"{name}.function is not done here, compare {name} itself", self.text, self.at)
        hint = next((hint for wrong, hint in _INSTEAD.items() if rest.startswith(wrong)), None)
        hint = hint or "there are ~ == != < <= > >= &"
        fail(f"after {name!r} must come an operator, {hint}", self.text, self.at)

    def string(self, operator: Operator) -> str:
        start, quote = self.at, self.text[self.at]
        end = self.text.find(quote, start + 1)
        if end < 0:
            fail(f"the closing {quote} of this string is missing", self.text, start)
        if operator not in ("==", "!=", "~"):
            fail(f"a string cannot be compared by {operator}, only by == != ~", self.text, start)
        if end - start - 1 > LONGEST_STRING:
            fail(f"a string can have {LONGEST_STRING} bytes, not more", self.text, start)
        self.skip(end + 1 - start)
        return self.text[start + 1 : end]

    def number(self, operator: Operator) -> tuple[int | float, str]:
        """Return a number and its spelling. The kernel's buffer for a number has 24 bytes."""
        start = self.at
        fraction = _FRACTION.match(self.text, start)
        if self.fractions and fraction and (fraction[1] or fraction[2]) and operator != "&":
            self.skip(len(fraction[0]))
            return float(fraction[0]), fraction[0]
        found = _DIGITS.match(self.text, start)
        digits = found[0] if found else ""
        value = kernel_number(digits, LONG_MIN) if len(digits) < 24 else None
        if value is None:
            self.fail_number(digits)
        if operator == "~":
            fail("~ takes a pattern in quotes, compare numbers by ==", self.text, start)
        self.skip(len(digits))
        return value, digits

    def fail_number(self, digits: str) -> NoReturn:
        if digits.startswith("CPUS"):
            fail("CPUS{…} is not done here, compare cpu with numbers", self.text, self.at)
        if not digits:
            fail("a number or a string in quotes must be here", self.text, self.at)
        if time := _TIME.match(self.text, self.at):
            fail(f"{time[0]!r} is a time, which the kernel cannot compare", self.text, self.at)
        hint = "put a string in quotes" if digits[0].isalpha() else "write it as 10, -10 or 0x10"
        fail(f"{digits!r} is no 64-bit number, {hint}", self.text, self.at)
