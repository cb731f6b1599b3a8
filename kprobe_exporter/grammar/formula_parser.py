"""Parser of the expressions of ``let``, ``where`` and ``value``: C's operators, and strings."""

import re
from collections.abc import Mapping
from typing import NoReturn

from kprobe_exporter.errors import GrammarError, one_line
from kprobe_exporter.grammar.filter import LONGEST, LONGEST_STRING, seconds_of
from kprobe_exporter.grammar.formula import (
    Name,
    Node,
    Number,
    Operation,
    Text,
    binary,
    insert,
    logical,
)
from kprobe_exporter.grammar.lexis import LONG_MIN, closest, fail, kernel_number
from kprobe_exporter.grammar.precedence import MOST_CHAINED, PrecedenceParser, Token, tokens
from kprobe_exporter.model.condition import COMPARISONS

_TOKEN = re.compile(
    r"(?!--|\+\+|->)(?:(?P<time>[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ns|us|ms|s|m|h)(?![\w.]))"
    r"|(?P<fraction>[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)(?![\w.]))"
    r"|(?P<number>[0-9]\w*)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<string>\"[^\"]*\"|'[^']*')"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|<<|>>|[-+*/%&|^~!<>?:(),]))",
    re.ASCII,
)

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}

_FUNCTIONS = {"min": 2, "max": 2, "if": 3}
"""The functions, with the least number of their arguments."""


def parse_formula(text: str) -> Node:
    """Parse an expression; raises GrammarError.

    Whether its names exist, and their types, are not checked here: see ``wrong_types`` of ``evaluate``.

    The kernel's filters are expressions too, with the same meaning. So ``!`` before the comparison of a field
    with a literal negates that, where C would negate the field; before anything else that continues with an
    operator, parentheses have to say what is meant.
    """
    if len(text.encode(errors="surrogatepass")) > LONGEST:
        fail(f"the expression is longer than {LONGEST} bytes", text, LONGEST)
    parser = _Parser(text, tokens(text, _TOKEN, _fail_character))
    if parser.token.kind == "end":
        fail("the expression is empty, write one such as count > 4096", text)
    return parser.whole()


def _fail_character(text: str, at: int, before: list[Token]) -> NoReturn:
    char = text[at]
    if text.startswith(("--", "++"), at):
        fail(f"{char * 2!r} has no meaning here, write {char} once or a blank between", text, at)
    if char in "\"'":
        fail(f"the closing {char} of this string is missing", text, at)
    if char == "=" and before and before[-1].kind == "name":
        fail(f"after {before[-1].text!r} must come an operator, equality is ==", text, at)
    if char in ".-" and before and before[-1].kind == "name":
        fail("an expression has no members: fetch them under names of their own", text, at)
    fail(f"{one_line(char)!r} has no meaning in an expression", text, at)


class _Parser(PrecedenceParser[Node]):
    signs = frozenset("-+~!")

    def chosen(self, test: Node, yes: Node, no: Node) -> Node:
        return Operation("?:", (test, yes, no), column=test.start)

    def joined(self, sign: Token, left: Node, right: Node) -> Node:
        operator = sign.text
        if operator in ("&&", "||"):
            return logical(operator, left, right)
        if isinstance(left, Number | Text) and isinstance(right, Name) and operator in _FLIPPED:
            left, right, operator = right, left, _FLIPPED[operator]
        if isinstance(right, Text):
            if operator not in ("==", "!=", "~"):
                fail(f"a string cannot be compared by {operator}, only by == != ~", self.text, right.start)
            if not isinstance(left, Name):
                fail('a string is compared with a field, as in FIELD == "text"', self.text, right.start)
        elif operator == "~":
            fail("~ takes a pattern in quotes, compare numbers by ==", self.text, right.start)
        return binary(operator, left, right)

    def applied(self, sign: Token, operand: Node) -> Node:
        if sign.text == "!":
            return Operation("!", (self.negated(operand, sign),), column=sign.column)
        if sign.text == "+":
            return operand
        if sign.text == "-" and isinstance(operand, Number) and not operand.written.startswith("-"):
            if isinstance(operand.value, int) and -operand.value < LONG_MIN:
                fail(f"-{operand.written} is no 64-bit number", self.text, sign.column)
            time = f"-{operand.time}" if operand.time else ""
            return Number(-operand.value, f"-{operand.written}", time, column=sign.column)
        return Operation(sign.text, (operand,), column=sign.column)

    def negated(self, operand: Node, sign: Token) -> Node:
        """Return what a ``!`` before ``operand`` negates."""
        if self.level() <= 2:
            return operand
        bare, operator = self.tokens[self.at - 1].text != ")", self.token
        self.at += 1
        compares = bare and isinstance(operand, Name) and operator.text in {*COMPARISONS, "~", "&"}
        right = self.unary() if compares else None
        if not isinstance(right, Number | Text) or self.level() > 2:
            sentence = "say by parentheses what this negates, as !(a == b) or (!a) == b"
            fail(f"{sentence}: C and the kernel's filters differ", self.text, sign.column)
        return self.joined(operator, operand, right)

    def primary(self) -> Node:
        token = self.token
        if token.kind == "end":
            fail("a field, a number or a string must follow here", self.text, token.column)
        if token.kind == "sign" and token.text != "(":
            fail(f"a field or a number must be before {token.text!r}", self.text, token.column)
        self.at += 1
        if token.kind == "sign":
            return self.group(token)
        if token.kind == "name":
            return self.call(token) if self.token.text == "(" else Name(token.text, column=token.column)
        if token.kind == "string":
            if len(token.text.encode(errors="surrogatepass")) - 2 > LONGEST_STRING:
                fail(f"a string can have {LONGEST_STRING} bytes, not more", self.text, token.column)
            return Text(token.text[1:-1], column=token.column)
        return self.number(token)

    def number(self, token: Token) -> Number:
        if token.kind == "time":
            seconds = seconds_of(token.text)
            return Number(float(seconds), f"{seconds:f}", token.text, column=token.column)
        if token.kind == "fraction":
            return Number(float(token.text), token.text, column=token.column)
        value = kernel_number(token.text)
        if value is None:
            hint = "write it as 10, 0x10 or, in octal, 010"
            fail(f"{token.text[:40]!r} is no 64-bit number, {hint}", self.text, token.column)
        return Number(value, token.text, column=token.column)

    def call(self, name: Token) -> Node:
        """Parse the arguments of a function whose name was taken."""
        least = _FUNCTIONS.get(name.text)
        if least is None:
            near = closest(name.text, _FUNCTIONS) or ", there are min, max and if"
            fail(f"there is no function {one_line(name.text[:40])!r}{near}", self.text, name.column)
        opened = self.token
        self.deeper(opened.column)
        self.at += 1
        arguments = [self.choice()]
        while self.take(","):
            arguments.append(self.choice())
        self.expect(")", opened)
        self.depth -= 1
        if name.text == "if":
            if len(arguments) != 3:
                fail("if takes three: if(CONDITION, THEN, ELSE)", self.text, name.column)
            return Operation("?:", tuple(arguments), column=name.column)
        if len(arguments) < least:
            fail(f"{name.text} takes two values or more", self.text, name.column)
        if len(arguments) > MOST_CHAINED:
            fail(f"{name.text} takes up to {MOST_CHAINED} values", self.text, name.column)
        first, *rest = arguments
        for one in rest:
            first = Operation(name.text, (first, one), column=name.column)
        return first


def inserted(lets: Mapping[str, str]) -> Mapping[str, Node]:
    """Return the expressions of ``let`` with every name of another one replaced.

    Raises GrammarError for one that stands for itself, or for too much; its ``text`` is the name of that.
    """
    written = {name: parse_formula(text) for name, text in lets.items()}
    done: dict[str, Node] = {}
    while waiting := {name: tree for name, tree in written.items() if name not in done}:
        ready = [name for name, tree in waiting.items() if not tree.fields & waiting.keys()]
        if not ready:
            raise GrammarError("this is computed of itself", next(iter(waiting)))
        for name in ready:
            try:
                done[name] = insert(waiting[name], done)
            except GrammarError as error:
                raise GrammarError(error.message, name) from None
    return {name: done[name] for name in lets}
