"""Shared by the parsers of filters, expressions and ``print fmt``: tokens, and C's precedence."""

import re
from collections.abc import Callable
from typing import ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from kprobe_exporter.errors import one_line
from kprobe_exporter.grammar.lexis import fail

DEEPEST = 50  # levels of nested parentheses; the kernel has no limit of its own

MOST_CHAINED = 200
"""Operators in a row without parentheses, other than ``&&`` and ``||``."""

_LEVELS = ("||", "&&", "|", "^", "&", "== != ~", "< <= > >=", "<< >>", "+ -", "* / %")
_PRECEDENCE = {sign: level for level, signs in enumerate(_LEVELS, 1) for sign in signs.split()}
"""The precedence of each binary operator, as in C; ``~`` compares as ``==`` does."""

_BLANKS = re.compile(r"[ \t\r\n]*")

Tree = TypeVar("Tree")


class Token(NamedTuple):
    """A word of a text: its kind, which is ``end`` behind the last one, and the column where it begins."""

    kind: str
    text: str
    column: int


def tokens(
    text: str, pattern: re.Pattern[str], refuse: Callable[[str, int, list[Token]], NoReturn]
) -> list[Token]:
    """Split a text into tokens; their kinds are the names of the groups in ``pattern``.

    ``refuse`` is called with the text, the column and the tokens so far where no token begins.
    """
    found: list[Token] = []
    at = _BLANKS.match(text).end()  # type: ignore[union-attr]  # it matches the empty string
    while at < len(text):
        token = pattern.match(text, at)
        if token is None:
            refuse(text, at, found)
        kind = token.lastgroup or ""
        found.append(Token(kind, token[kind], at))
        at = _BLANKS.match(text, token.end()).end()  # type: ignore[union-attr]
    return [*found, Token("end", "", len(text))]


class PrecedenceParser(Generic[Tree]):
    """Recursive descent by precedence; ``token`` is the next one.

    A language adds its ``primary`` operands and the trees that operators make of operands.
    """

    signs: ClassVar[frozenset[str]] = frozenset()
    """The operators before one operand."""

    deepest: ClassVar[int] = DEEPEST
    nested: ClassVar[str] = "parts can be nested"

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text, self.tokens = text, tokens
        self.at = self.depth = 0

    def primary(self) -> Tree:
        raise NotImplementedError

    def applied(self, sign: Token, operand: Tree) -> Tree:
        """Return what the operator ``sign`` makes of one operand."""
        raise NotImplementedError

    def joined(self, sign: Token, left: Tree, right: Tree) -> Tree:
        """Return what the operator ``sign`` makes of two operands."""
        raise NotImplementedError

    def chosen(self, test: Tree, yes: Tree, no: Tree) -> Tree:
        """Return the tree of ``TEST ? YES : NO``."""
        raise NotImplementedError

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def advance(self) -> Token:
        """Return the next token, and go behind it."""
        self.at += 1
        return self.tokens[self.at - 1]

    def take(self, sign: str) -> bool:
        """Go behind the next token if it is ``sign``; return whether it is."""
        found = self.token.kind == "sign" and self.token.text == sign
        if found:
            self.advance()
        return found

    def expect(self, sign: str, opened: Token) -> None:
        """Refuse another token than ``sign``, which belongs to ``opened``."""
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
        if self.depth > self.deepest:
            fail(f"{self.nested} {self.deepest} deep, not more", self.text, column)

    def whole(self) -> Tree:
        """Parse the whole text."""
        tree = self.choice()
        if self.token.kind != "end":
            self.fail_after()
        return tree

    def choice(self) -> Tree:
        """Parse an operand of the lowest level, and perhaps ``? YES : NO`` after it."""
        test, opened = self.binary(), self.token
        if not self.take("?"):
            return test
        self.deeper(opened.column)
        yes = self.choice()
        self.expect(":", opened)
        no = self.choice()
        self.depth -= 1
        return self.chosen(test, yes, no)

    def binary(self, lowest: int = 1) -> Tree:
        """Parse operands joined by operators of the level ``lowest`` or higher ones, which bind closer."""
        left, chained = self.unary(), 0
        while (level := self.level()) >= lowest:
            sign = self.advance()
            chained += level > 2
            if chained > MOST_CHAINED:
                fail(f"more than {MOST_CHAINED} operators in a row: use parentheses", self.text, sign.column)
            left = self.joined(sign, left, self.binary(level + 1))
        return left

    def level(self) -> int:
        """Return the level of the operator that comes next, 0 if none does."""
        return _PRECEDENCE.get(self.token.text, 0) if self.token.kind == "sign" else 0

    def unary(self) -> Tree:
        """Parse an operand and the operators before it."""
        token = self.token
        if token.kind != "sign" or token.text not in self.signs:
            return self.primary()
        self.deeper(token.column)
        self.advance()
        operand = self.unary()
        self.depth -= 1
        return self.applied(token, operand)

    def group(self, opened: Token) -> Tree:
        """Parse the rest of the parentheses that ``opened`` begins."""
        self.deeper(opened.column)
        inner = self.choice()
        self.expect(")", opened)
        self.depth -= 1
        return inner
