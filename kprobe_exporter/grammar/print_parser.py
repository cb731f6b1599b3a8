"""Parser of the arguments of a tracepoint's ``print fmt``: C expressions with tables of words in them."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.formula_parser import PRECEDENCE
from kprobe_exporter.grammar.lexis import fail, kernel_number
from kprobe_exporter.grammar.print_expression import (
    BITS,
    HIGHEST,
    MASK,
    Expression,
    applied,
    cast,
    choice,
    constant,
    folded,
    joined,
    table,
    unknown,
)

SYMBOLIC = frozenset({"__print_symbolic", "__print_symbolic_u64"})
FLAGS = frozenset({"__print_flags", "__print_flags_u64"})
"""The macros of include/trace/stages/stage3_trace_output.h that print words for a number."""

DEEPEST = 40
"""Parentheses and casts in each other."""

LONGEST = 1 << 16
"""Characters of an argument. The longest of Linux 7.2 has 11,000."""

_TOKEN = re.compile(
    r"(?P<number>0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})(?:[uU]?[lL]{0,2}|[lL]{1,2}[uU])(?!\w)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<char>'[^'\\]')"
    r"|(?P<sign>->|&&|\|\||==|!=|<=|>=|<<|>>|[-+*/%&|^~!<>?:(){}\[\],.;=])",
    re.ASCII,
)
_BLANKS = re.compile(r"\s*")
_ESCAPE = re.compile(r"\\(.)")

_WORDS_OF_TYPES = frozenset({"unsigned", "signed", "long", "int", "short", "char", "const", "struct", "enum"})


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


def parse_argument(text: str, constants: Mapping[str, int]) -> Expression:
    """Parse one argument; raises GrammarError.

    ``constants`` are the values of names that the kernel did not replace by numbers (TRACE_DEFINE_ENUM of
    include/linux/tracepoint.h is what makes it replace them). A word whose number is unknown is left out.
    """
    if len(text) > LONGEST:
        fail(f"an argument of print fmt is longer than {LONGEST} characters", text, LONGEST)
    parser = _Parser(text, list(_tokens(text)), constants)
    found = parser.choice()
    parser.expect("")
    return found


def identifiers(text: str) -> frozenset[str]:
    """Return the names in an argument that may be constants; fields and functions are not."""
    try:
        tokens = list(_tokens(text))
    except GrammarError:
        return frozenset()
    found = set()
    for before, token, after in zip([_Token("", "", 0), *tokens], tokens, tokens[1:], strict=False):
        if token.kind == "name" and before.text not in ("->", ".") and after.text not in ("->", "("):
            found.add(token.text)
    return frozenset(found - _WORDS_OF_TYPES - BITS.keys())


def _tokens(text: str) -> Iterator[_Token]:
    at = _BLANKS.match(text).end()  # type: ignore[union-attr]  # it matches the empty string
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            fail("this character has no meaning in a print fmt", text, at)
        kind = found.lastgroup or ""
        yield _Token(kind, found[kind], at)
        at = _BLANKS.match(text, found.end()).end()  # type: ignore[union-attr]
    yield _Token("end", "", len(text))


class _Parser:
    """Recursive descent by precedence. What it does not know becomes an expression without ``compute``."""

    def __init__(self, text: str, tokens: list[_Token], constants: Mapping[str, int]) -> None:
        self.text, self.tokens, self.constants = text, tokens, constants
        self.at = self.depth = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def take(self, sign: str) -> bool:
        if self.token.text != sign or self.token.kind not in ("sign", "end"):
            return False
        self.at += self.token.kind == "sign"
        return True

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            fail(f"{sign or 'the end'!r} must come here", self.text, self.token.column)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            fail(f"parts are nested more than {DEEPEST} deep", self.text, self.token.column)

    def choice(self) -> Expression:
        """Parse an operand of the lowest level, and perhaps ``? YES : NO`` after it."""
        self.deeper()
        test = self.binary(1)
        if self.take("?"):
            yes = self.choice()
            self.expect(":")
            test = choice(test, yes, self.choice())
        self.depth -= 1
        return test

    def binary(self, lowest: int) -> Expression:
        left = self.unary()
        while self.token.kind == "sign" and (level := PRECEDENCE.get(self.token.text, 0)) >= lowest:
            sign = self.token.text
            self.at += 1
            left = joined(sign, left, self.binary(level + 1))
            if left.height > HIGHEST:
                fail(f"more than {HIGHEST} operators work on each other", self.text, self.token.column)
        return left

    def unary(self) -> Expression:
        signs: list[str] = []
        while (
            len(signs) < DEEPEST
            and self.token.kind == "sign"
            and self.token.text in ("-", "+", "~", "!", "*", "&")
        ):
            signs.append(self.token.text)
            self.at += 1
        found = self.primary()
        for sign in reversed(signs):
            found = applied(sign, found)
        return found

    def primary(self) -> Expression:
        token = self.token
        self.at += token.kind != "end"
        if token.kind == "name":
            return self.named(token)
        if token.text == "(" and token.kind == "sign":
            return self.group()
        if token.text == "{":  # an array of the kernel's, as in __print_array
            return unknown(self.operands("}"))
        if token.kind == "string":
            return constant(_ESCAPE.sub(r"\1", self.string(token)))
        if token.kind == "char":
            return constant(ord(token.text[1]))
        if token.kind != "number":
            fail("an operand must come here", self.text, token.column)
        value = kernel_number(token.text)
        if value is None:
            fail("this is no 64-bit number", self.text, token.column)
        return constant(value)

    def string(self, first: _Token) -> str:
        """Return a string of which the first part was taken, without quotes."""
        parts = [first.text[1:-1]]
        while self.token.kind == "string":
            parts.append(self.token.text[1:-1])
            self.at += 1
        return "".join(parts)

    def named(self, token: _Token) -> Expression:
        """Parse what begins with a name that was taken."""
        if token.text == "REC" and self.take("->"):
            field = self.token
            self.at += field.kind == "name"
            found = Expression(frozenset((field.text,)), lambda value: value)
            return self.followed(found)
        if self.take("("):
            if token.text in SYMBOLIC | FLAGS:
                return self.table(flags=token.text in FLAGS)
            return self.followed(self.skipped() if token.text == "sizeof" else unknown(self.operands(")")))
        value = self.constants.get(token.text, {"true": 1, "false": 0}.get(token.text))
        return self.followed(Expression() if value is None else constant(value))

    def followed(self, found: Expression) -> Expression:
        """Parse elements and members after an operand, which are not known here."""
        while self.token.text in ("[", "->", ".") and self.token.kind == "sign":
            bracket = self.take("[")
            if bracket:
                found = unknown((found, *self.operands("]")))
            else:
                self.at += 2 if self.tokens[self.at + 1].kind == "name" else 1
                found = unknown((found,))
        return found

    def operands(self, closing: str) -> tuple[Expression, ...]:
        """Parse a list up to a bracket that closes it."""
        found: list[Expression] = []
        while not self.take(closing):
            found.append(self.choice())
            if not self.take(","):
                self.expect(closing)
                break
        return tuple(found)

    def skipped(self) -> Expression:
        """Skip a type or a statement in parentheses, of which the first was taken."""
        depth = 1
        while depth:
            if self.token.kind == "end":
                self.expect(")")
            depth += (self.token.text == "(") - (self.token.text == ")")
            self.at += 1
        return Expression()

    def group(self) -> Expression:
        """Parse a cast and its operand, or what is in parentheses, of which the first was taken."""
        if self.token.text == "{":
            return self.skipped()
        start, names = self.at, list[str]()
        while self.token.kind == "name" or (names and self.token.text == "*"):
            names.append(self.token.text)
            self.at += 1
        if names and self.take(")") and self.is_type(names):
            self.deeper()
            operand = self.unary()
            self.depth -= 1
            return cast(" ".join(names), operand)
        self.at = start
        found = self.choice()
        self.expect(")")
        return self.followed(found)

    def is_type(self, names: list[str]) -> bool:
        """Whether these names in parentheses are a type: an operand follows, or only types are so called."""
        if len(names) > 1 or names[0] in _WORDS_OF_TYPES or names[0] in BITS:
            return True
        follows = self.token
        return follows.kind in ("name", "number", "string") or follows.text in ("(", "~", "!")

    def table(self, *, flags: bool) -> Expression:
        """Parse the operands of ``__print_symbolic(`` or ``__print_flags(``."""
        value = self.choice()
        if flags:
            self.expect(",")
            self.choice()
        rows: list[tuple[int, str]] = []
        while self.take(","):
            if self.token.text == ")":
                break
            self.expect("{")
            if self.take("}"):
                continue
            number = self.choice()
            self.expect(",")
            word = self.choice()
            self.take(",")
            self.expect("}")
            known, text = folded(number), folded(word)
            if isinstance(known, int) and isinstance(text, str) and text:
                rows.append((known & MASK, text))
        self.expect(")")
        return table(value, rows, flags=flags)
