"""The syntax tree of filters, and of the expressions of ``let``, ``where`` and ``value``."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.lexis import fail
from kprobe_exporter.model.condition import COMPARISONS

Operator: TypeAlias = Literal["~", "!=", "==", "<=", "<", ">=", ">", "&"]
"""The operators that compare a field with a literal."""

MOST_NODES = 2000
"""Nodes of an expression in which each ``let`` stands for its own expression."""

DURATION = "duration"
"""The agent's field that is a time: seconds from the first event of a call or a pair to the last."""


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression; ``column`` is where it begins in its text, counted from 0."""

    column: int = field(default=0, compare=False, kw_only=True)

    @property
    def start(self) -> int:
        """The column of its first character."""
        return self.column

    @property
    def parts(self) -> "tuple[Node, ...]":
        """The operands, from left to right."""
        return ()

    def walk(self) -> "Iterator[Node]":
        """Yield this node and all below it, from left to right."""
        yield self
        for part in self.parts:
            yield from part.walk()

    @property
    def comparisons(self) -> "tuple[Comparison, ...]":
        """All comparisons of fields with literals, from left to right."""
        return tuple(node for node in self.walk() if isinstance(node, Comparison))

    @property
    def names(self) -> "Iterator[Name | Comparison]":
        """All parts that have a name, from left to right."""
        return (node for node in self.walk() if isinstance(node, Name | Comparison))

    @property
    def fields(self) -> frozenset[str]:
        """The names in it, each once."""
        return frozenset(node.name for node in self.names)

    def with_leaves(self, one: "Callable[[Node], Node]") -> "Node":
        """Return the expression with each part that has no operands replaced by the result of ``one``."""
        return one(self)

    def change(self, one: "Callable[[Comparison], Node]") -> "Node":
        """Return the expression with each comparison replaced by the result of ``one``."""
        return self.with_leaves(lambda leaf: one(leaf) if isinstance(leaf, Comparison) else leaf)

    def rename(self, names: Mapping[str, str]) -> "Node":
        """Return the filter with the fields in ``names`` renamed."""
        return self.change(lambda part: replace(part, name=names.get(part.name, part.name)))

    def render(self) -> str:
        """Return a filter as one line for the kernel, which ``parse_filter`` parses into an equal one."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Name(Node):
    """The name of a field, of a ``let``, or of a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A number as ``written``; with a unit of ``time`` such as ``10ms`` its value is in seconds."""

    value: int | float
    written: str
    time: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it can be computed with; times are then nanoseconds."""
        return bool(self.time) or isinstance(self.value, int)


@dataclass(frozen=True, slots=True)
class Text(Node):
    """A string in quotes."""

    text: str


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """``FIELD OPERATOR VALUE``, at the field's column.

    ``written`` is a number's original spelling, such as ``0x40``. ``time`` is that of a number with a unit of
    time, such as ``10ms``, whose ``value`` is in seconds. ``value_column`` is where the value begins.
    """

    name: str
    operator: Operator
    value: int | float | str
    written: str = field(default="", compare=False)
    time: str = field(default="", compare=False)
    value_column: int = field(default=0, compare=False, kw_only=True)

    @property
    def start(self) -> int:
        return min(self.column, self.value_column)

    @property
    def literal(self) -> Number | Text:
        """The value as a node of its own."""
        if isinstance(self.value, str):
            return Text(self.value, column=self.value_column)
        return Number(self.value, self.written, self.time, column=self.value_column)

    def render(self) -> str:
        if isinstance(self.value, str):
            quote = "'" if '"' in self.value else '"'
            return f"{self.name} {self.operator} {quote}{self.value}{quote}"
        return f"{self.name} {self.operator} {self.written or self.value}"


@dataclass(frozen=True, slots=True)
class Operation(Node):
    """An operator and its operands.

    ``&&`` and ``||`` have two or more, never another one of the same operator. ``!``, ``-`` and ``~`` have
    one; ``?:`` has three, of which only the chosen one is computed; C's others, ``min`` and ``max`` have two.
    """

    operator: str
    operands: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.operands

    def with_leaves(self, one: Callable[[Node], Node]) -> Node:
        return replace(self, operands=tuple(operand.with_leaves(one) for operand in self.operands))

    def render(self) -> str:
        if self.operator == "!":
            text = self.operands[0].render()
            return f"!({text})" if isinstance(self.operands[0], Operation) else f"!{text}"
        return f" {self.operator} ".join(
            f"({part.render()})" if isinstance(part, Operation) and part.operator == "||" else part.render()
            for part in self.operands
        )


def logical(operator: str, *operands: Node) -> Operation:
    """Return the operands with ``&&`` or ``||`` between them."""
    flat = (part for operand in operands for part in _operands(operand, operator))
    return Operation(operator, tuple(flat), column=operands[0].start)


def _operands(tree: Node, operator: str) -> tuple[Node, ...]:
    return tree.operands if isinstance(tree, Operation) and tree.operator == operator else (tree,)


def binary(operator: str, left: Node, right: Node) -> Node:
    """Return two operands with an operator between them; a Comparison of a field with a literal."""
    if isinstance(left, Name) and operator in {*COMPARISONS, "~", "&"}:
        name, column, behind = left.name, left.column, right.column
        sign: Operator = operator  # type: ignore[assignment]  # it is one of those above
        match right:
            case Text(text=text):
                return Comparison(name, sign, text, column=column, value_column=behind)
            case Number(value=value, written=written, time=time) if operator != "~":
                return Comparison(name, sign, value, written, time, column=column, value_column=behind)
    return Operation(operator, (left, right), column=min(left.start, right.start))


def insert(tree: Node, trees: Mapping[str, Node]) -> Node:
    """Return the expression with each ``let`` in ``trees`` in place of its name. Raises GrammarError."""

    def inserted(leaf: Node) -> Node:
        if isinstance(leaf, Comparison) and leaf.name in trees:
            return binary(leaf.operator, trees[leaf.name], leaf.literal)
        return trees.get(leaf.name, leaf) if isinstance(leaf, Name) else leaf

    size = sum(_size(trees[node.name]) if node.name in trees else 1 for node in tree.names)
    if size > MOST_NODES:
        raise GrammarError(f"with all that its names stand for, this has more than {MOST_NODES} parts")
    return tree.with_leaves(inserted)


def _size(tree: Node) -> int:
    return sum(3 if isinstance(node, Comparison) else 1 for node in tree.walk())


def split(whole: Node, wanted: Callable[[Node], bool]) -> tuple[Node | None, Node | None]:
    """Split an expression into the operands of ``&&`` that are ``wanted`` and the rest.

    It is true if both parts are. A part without operands is None.
    """
    parts = _operands(whole, "&&")
    return _all([part for part in parts if wanted(part)]), _all([part for part in parts if not wanted(part)])


def _all(operands: list[Node]) -> Node | None:
    return logical("&&", *operands) if len(operands) > 1 else next(iter(operands), None)


def as_filter(tree: Node) -> Node:
    """Return an expression that is a filter of the kernel's. Raises GrammarError for another one."""
    if isinstance(tree, Operation) and tree.operator in ("&&", "||", "!"):
        for operand in tree.operands:
            as_filter(operand)
    elif not isinstance(tree, Comparison):
        fail("the kernel compares fields with numbers and strings, and computes nothing", "", tree.column)
    return tree
