"""Parser of the arguments of a tracepoint's ``print fmt``: C expressions with tables of words in them."""

import re
from collections.abc import Mapping
from typing import NoReturn

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.lexis import fail, kernel_number
from kprobe_exporter.grammar.precedence import PrecedenceParser, Token, tokens
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
_ESCAPE = re.compile(r"\\(.)")

_WORDS_OF_TYPES = frozenset({"unsigned", "signed", "long", "int", "short", "char", "const", "struct", "enum"})


def parse_argument(text: str, constants: Mapping[str, int]) -> Expression:
    """Parse one argument; raises GrammarError.

    ``constants`` are the values of names that the kernel did not replace by numbers (TRACE_DEFINE_ENUM of
    include/linux/tracepoint.h is what makes it replace them). A word whose number is unknown is omitted.
    """
    if len(text) > LONGEST:
        fail(f"an argument of print fmt is longer than {LONGEST} characters", text, LONGEST)
    return _Parser(text, constants).whole()


def identifiers(text: str) -> frozenset[str]:
    """Return the names in an argument that may be constants; fields and functions are not."""
    try:
        found = tokens(text, _TOKEN, _fail_character)
    except GrammarError:
        return frozenset()
    names = {
        token.text
        for before, token, after in zip([found[-1], *found], found, found[1:], strict=False)
        if token.kind == "name" and before.text not in ("->", ".") and after.text not in ("->", "(")
    }
    return frozenset(names - _WORDS_OF_TYPES - BITS.keys())


def _fail_character(text: str, at: int, before: list[Token]) -> NoReturn:
    fail("this character has no meaning in a print fmt", text, at)


class _Parser(PrecedenceParser[Expression]):
    """Syntax that it does not know becomes an expression without ``compute``."""

    signs = frozenset("-+~!*&")
    deepest = 80  # parentheses and what is in them, casts and their operands, each count

    def __init__(self, text: str, constants: Mapping[str, int]) -> None:
        super().__init__(text, tokens(text, _TOKEN, _fail_character))
        self.constants = constants

    def chosen(self, test: Expression, yes: Expression, no: Expression) -> Expression:
        return choice(test, yes, no)

    def joined(self, sign: Token, left: Expression, right: Expression) -> Expression:
        found = joined(sign.text, left, right)
        if found.height > HIGHEST:
            fail(f"more than {HIGHEST} operators work on each other", self.text, sign.column)
        return found

    def applied(self, sign: Token, operand: Expression) -> Expression:
        return applied(sign.text, operand)

    def primary(self) -> Expression:
        token = self.token
        self.deeper(token.column)
        self.at += token.kind != "end"
        found = self.operand(token)
        self.depth -= 1
        return found

    def operand(self, token: Token) -> Expression:
        """Parse what begins with a token that was taken."""
        if token.kind == "name":
            return self.named(token)
        if token.text == "(" and token.kind == "sign":
            return self.parentheses(token)
        if token.text == "{":  # an array of the kernel's, as in __print_array
            return unknown(self.operands(token, "}"))
        if token.kind == "string":
            return constant(_ESCAPE.sub(r"\1", self.string(token)))
        if token.kind == "char":
            return constant(ord(token.text[1]))
        value = kernel_number(token.text) if token.kind == "number" else None
        if value is None:
            fail("an operand must come here", self.text, token.column)
        return constant(value)

    def string(self, first: Token) -> str:
        """Return a string of which the first part was taken, without quotes."""
        parts = [first.text[1:-1]]
        while self.token.kind == "string":
            parts.append(self.token.text[1:-1])
            self.at += 1
        return "".join(parts)

    def named(self, token: Token) -> Expression:
        """Parse what begins with a name that was taken."""
        if token.text == "REC" and self.take("->"):
            field = self.token
            self.at += field.kind == "name"
            found = Expression(frozenset((field.text,)), lambda value: value)
            return self.followed(found)
        if self.take("("):
            if token.text in SYMBOLIC | FLAGS:
                return self.table(token)
            return self.followed(
                self.skipped(token) if token.text == "sizeof" else unknown(self.operands(token, ")"))
            )
        value = self.constants.get(token.text, {"true": 1, "false": 0}.get(token.text))
        return self.followed(Expression() if value is None else constant(value))

    def followed(self, found: Expression) -> Expression:
        """Parse elements and members after an operand, which are not known here."""
        while self.token.text in ("[", "->", ".") and self.token.kind == "sign":
            sign = self.token
            if self.take("["):
                found = unknown((found, *self.operands(sign, "]")))
            else:
                self.at += 2 if self.tokens[self.at + 1].kind == "name" else 1
                found = unknown((found,))
        return found

    def operands(self, opened: Token, closing: str) -> tuple[Expression, ...]:
        """Parse a list up to a bracket that closes it."""
        found: list[Expression] = []
        while not self.take(closing):
            found.append(self.choice())
            if not self.take(","):
                self.expect(closing, opened)
                break
        return tuple(found)

    def skipped(self, opened: Token) -> Expression:
        """Skip a type or a statement in parentheses, of which the first was taken."""
        depth = 1
        while depth:
            if self.token.kind == "end":
                self.expect(")", opened)
            depth += (self.token.text == "(") - (self.token.text == ")")
            self.at += 1
        return Expression()

    def parentheses(self, opened: Token) -> Expression:
        """Parse a cast and its operand, or what is in parentheses, of which the first was taken."""
        if self.token.text == "{":
            return self.skipped(opened)
        start, names = self.at, list[str]()
        while self.token.kind == "name" or (names and self.token.text == "*"):
            names.append(self.token.text)
            self.at += 1
        if names and self.take(")") and self.is_type(names):
            return cast(" ".join(names), self.unary())
        self.at = start
        return self.followed(self.group(opened))

    def is_type(self, names: list[str]) -> bool:
        """Whether these names in parentheses are a type: an operand follows, or only types are so called."""
        if len(names) > 1 or names[0] in _WORDS_OF_TYPES or names[0] in BITS:
            return True
        follows = self.token
        return follows.kind in ("name", "number", "string") or follows.text in ("(", "~", "!")

    def table(self, name: Token) -> Expression:
        """Parse the operands of ``__print_symbolic(`` or ``__print_flags(``."""
        value, flags = self.choice(), name.text in FLAGS
        if flags:
            self.expect(",", name)
            self.choice()
        rows: list[tuple[int, str]] = []
        while self.take(","):
            if self.token.text == ")":
                break
            self.expect("{", name)
            if self.take("}"):
                continue
            number = self.choice()
            self.expect(",", name)
            word = self.choice()
            self.take(",")
            self.expect("}", name)
            known, text = folded(number), folded(word)
            if isinstance(known, int) and isinstance(text, str) and text:
                rows.append((known & MASK, text))
        self.expect(")", name)
        return table(value, rows, flags=flags)
