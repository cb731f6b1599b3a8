"""Parser of the expressions of ``let``, ``where`` and ``value``: C's operators, and strings."""

import re
from typing import NamedTuple, NoReturn

from kprobe_exporter.errors import one_line
from kprobe_exporter.grammar.filter import DEEPEST, LONGEST, LONGEST_STRING, seconds_of
from kprobe_exporter.grammar.formula import Binary, Choice, Logical, Name, Node, Number, Text, Unary
from kprobe_exporter.grammar.lexis import LONG_MIN, closest, fail, kernel_number
from kprobe_exporter.model.condition import COMPARISONS

MOST_CHAINED = 200
"""Operators in a row without parentheses, other than ``&&`` and ``||``."""

_TOKEN = re.compile(
    r"(?P<time>[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ns|us|ms|s|m|h)(?![\w.]))"
    r"|(?P<fraction>[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)(?![\w.]))"
    r"|(?P<number>[0-9]\w*)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<string>\"[^\"]*\"|'[^']*')"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|<<|>>|[-+*/%&|^~!<>?:(),])",
    re.ASCII,
)
_BLANKS = re.compile(r"[ \t\r\n]*")

_LEVELS = ("||", "&&", "|", "^", "&", "== != ~", "< <= > >=", "<< >>", "+ -", "* / %")
PRECEDENCE = {sign: level for level, signs in enumerate(_LEVELS, 1) for sign in signs.split()}
"""The precedence of each binary operator, as in C; ``~`` compares as ``==`` does."""

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}

_FUNCTIONS = {"min": 2, "max": 2, "if": 3}
"""The functions, with the least number of their arguments."""


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


def parse_formula(text: str) -> Node:
    """Parse an expression; raises GrammarError.

    Whether its names exist, and their types, are not checked here: see ``wrong_types`` of ``formula``.

    The kernel's filters are expressions too, with the same meaning. So ``!`` before the comparison of a field
    with a literal negates that, where C would negate the field; before anything else that continues with an
    operator, parentheses have to say what is meant.
    """
    if len(text.encode(errors="surrogatepass")) > LONGEST:
        fail(f"the expression is longer than {LONGEST} bytes", text, LONGEST)
    parser = _Parser(text, _tokens(text))
    if parser.token.kind == "end":
        fail("the expression is empty, write one such as count > 4096", text)
    tree = parser.choice()
    if parser.token.kind != "end":
        parser.fail_after()
    return tree


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = _BLANKS.match(text).end()  # type: ignore[union-attr]  # it matches the empty string
    while at < len(text):
        if text.startswith(("--", "++"), at):
            fail(
                f"{text[at : at + 2]!r} has no meaning here, write {text[at]} once or a blank between",
                text,
                at,
            )
        found = _TOKEN.match(text, at)
        if found is None or text.startswith("->", at):
            _fail_character(text, at, tokens)
        tokens.append(_Token(found.lastgroup or "", found[0], at))
        at = _BLANKS.match(text, found.end()).end()  # type: ignore[union-attr]
    return [*tokens, _Token("end", "", len(text))]


def _fail_character(text: str, at: int, tokens: list[_Token]) -> NoReturn:
    char = text[at]
    if char in "\"'":
        fail(f"the closing {char} of this string is missing", text, at)
    if char == "=" and tokens and tokens[-1].kind == "name":
        fail(f"after {tokens[-1].text!r} must come an operator, equality is ==", text, at)
    if char in ".-" and tokens and tokens[-1].kind == "name":
        fail("an expression has no members: fetch them under names of their own", text, at)
    fail(f"{one_line(char)!r} has no meaning in an expression", text, at)


class _Parser:
    """Recursive descent by precedence; ``token`` is the next one."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self.text, self.tokens = text, tokens
        self.at = self.depth = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def take(self, sign: str) -> bool:
        if self.token.kind != "sign" or self.token.text != sign:
            return False
        self.at += 1
        return True

    def expect(self, sign: str, opened: _Token) -> None:
        if self.take(sign):
            return
        if self.token.kind == "end":
            fail(f"this {opened.text!r} has no {sign!r}", self.text, opened.column)
        self.fail_after()

    def fail_after(self) -> NoReturn:
        """Refuse a token that comes where an operator must be."""
        token = self.token
        if token.text == ")":
            fail("this ')' has no '('", self.text, token.column)
        if token.text in (",", ":"):
            fail(f"this {token.text!r} belongs to no function or choice", self.text, token.column)
        fail(f"there must be an operator before {one_line(token.text)!r}", self.text, token.column)

    def deeper(self, column: int) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            fail(f"parts can be nested {DEEPEST} deep, not more", self.text, column)

    def choice(self) -> Node:
        """An operand of the lowest level, and perhaps ``? YES : NO`` after it."""
        test, opened = self.binary(1), self.token
        if not self.take("?"):
            return test
        self.deeper(opened.column)
        yes = self.choice()
        self.expect(":", opened)
        no = self.choice()
        self.depth -= 1
        return Choice(test.column, test, yes, no)

    def binary(self, lowest: int) -> Node:
        """Operands joined by operators of the level ``lowest`` or higher ones, which bind closer."""
        left, chained = self.unary(), 0
        while (level := self.level()) >= lowest:
            sign = self.token
            self.at += 1
            chained += level > 2
            if chained > MOST_CHAINED:
                fail(f"more than {MOST_CHAINED} operators in a row: use parentheses", self.text, sign.column)
            left = self.joined(sign, left, self.binary(level + 1))
        return left

    def level(self) -> int:
        """Return the level of the operator that comes next, 0 if none does."""
        return PRECEDENCE.get(self.token.text, 0) if self.token.kind == "sign" else 0

    def joined(self, sign: _Token, left: Node, right: Node) -> Node:
        operator = sign.text
        if operator in ("&&", "||"):
            return Logical(left.column, operator, (*_operands(left, operator), *_operands(right, operator)))
        if isinstance(left, Number | Text) and isinstance(right, Name) and operator in _FLIPPED:
            left, right, operator = right, left, _FLIPPED[operator]
        if isinstance(right, Text):
            if operator not in ("==", "!=", "~"):
                fail(f"a string cannot be compared by {operator}, only by == != ~", self.text, right.column)
            if not isinstance(left, Name):
                fail('a string is compared with a field, as in FIELD == "text"', self.text, right.column)
        elif operator == "~":
            fail("~ takes a pattern in quotes, compare numbers by ==", self.text, right.column)
        return Binary(min(left.column, right.column), operator, left, right)

    def unary(self) -> Node:
        token = self.token
        if token.kind != "sign" or token.text not in ("-", "+", "~", "!"):
            return self.primary()
        self.deeper(token.column)
        self.at += 1
        operand = self.unary()
        self.depth -= 1
        if token.text == "!":
            return Unary(token.column, "!", self.negated(operand, token))
        if token.text == "+":
            return operand
        if token.text == "-" and isinstance(operand, Number) and not operand.written.startswith("-"):
            if isinstance(operand.value, int) and -operand.value < LONG_MIN:
                fail(f"-{operand.written} is no 64-bit number", self.text, token.column)
            time = f"-{operand.time}" if operand.time else ""
            return Number(token.column, -operand.value, f"-{operand.written}", time)
        return Unary(token.column, token.text, operand)

    def negated(self, operand: Node, sign: _Token) -> Node:
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
            return self.call(token) if self.token.text == "(" else Name(token.column, token.text)
        if token.kind == "string":
            if len(token.text.encode(errors="surrogatepass")) - 2 > LONGEST_STRING:
                fail(f"a string can have {LONGEST_STRING} bytes, not more", self.text, token.column)
            return Text(token.column, token.text[1:-1])
        return self.number(token)

    def group(self, opened: _Token) -> Node:
        """Parse what is in parentheses, of which the first was taken."""
        self.deeper(opened.column)
        inner = self.choice()
        self.expect(")", opened)
        self.depth -= 1
        return inner

    def number(self, token: _Token) -> Number:
        if token.kind == "time":
            seconds = seconds_of(token.text)
            return Number(token.column, float(seconds), f"{seconds:f}", token.text)
        if token.kind == "fraction":
            return Number(token.column, float(token.text), token.text)
        value = kernel_number(token.text)
        if value is None:
            hint = "write it as 10, 0x10 or, in octal, 010"
            fail(f"{token.text[:40]!r} is no 64-bit number, {hint}", self.text, token.column)
        return Number(token.column, value, token.text)

    def call(self, name: _Token) -> Node:
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
            return Choice(name.column, *arguments)
        if len(arguments) < least:
            fail(f"{name.text} takes two values or more", self.text, name.column)
        if len(arguments) > MOST_CHAINED:
            fail(f"{name.text} takes up to {MOST_CHAINED} values", self.text, name.column)
        first, *rest = arguments
        for one in rest:
            first = Binary(name.column, name.text, first, one)
        return first


def _operands(tree: Node, operator: str) -> tuple[Node, ...]:
    return tree.operands if isinstance(tree, Logical) and tree.operator == operator else (tree,)
