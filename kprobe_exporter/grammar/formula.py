"""The syntax tree of an expression of ``let``, ``where`` or ``value``, and the mistakes in it."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.condition import And, Comparison, Filter, Not, Operator, Or
from kprobe_exporter.grammar.evaluate import FieldType, matcher, wrong_comparison
from kprobe_exporter.grammar.filter import DURATION
from kprobe_exporter.grammar.lexis import fail
from kprobe_exporter.model.condition import COMPARISONS, SHIFTS, Condition

MOST_NODES = 2000
"""Nodes of an expression in which each ``let`` stands for its own expression."""

COMPUTED = FieldType("computed")
"""The type of a field that is computed: a number of 64 bits."""


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression; ``column`` is where it begins in its text, counted from 0."""

    column: int

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
    def names(self) -> "Iterator[Name]":
        """All names in it, from left to right."""
        return (node for node in self.walk() if isinstance(node, Name))

    @property
    def fields(self) -> frozenset[str]:
        """The names in it, each once."""
        return frozenset(node.name for node in self.names)

    def insert(self, trees: "Mapping[str, Node]") -> "Node":
        """Return the expression with each name in ``trees`` replaced by its tree."""
        return self


@dataclass(frozen=True, slots=True)
class Name(Node):
    """The name of a field, of a ``let``, or of a label."""

    name: str

    def insert(self, trees: Mapping[str, Node]) -> Node:
        return trees.get(self.name, self)


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
class Unary(Node):
    """``-``, ``~`` or ``!`` and an operand."""

    operator: str
    operand: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.operand,)

    def insert(self, trees: Mapping[str, Node]) -> Node:
        return replace(self, operand=self.operand.insert(trees))


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """An operator of C between two operands; ``min`` and ``max`` too, and ``~``, which matches a pattern."""

    operator: str
    left: Node
    right: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.left, self.right

    def insert(self, trees: Mapping[str, Node]) -> Node:
        return replace(self, left=self.left.insert(trees), right=self.right.insert(trees))

    @property
    def comparison(self) -> Comparison | None:
        """The comparison of a field with a literal that this is, as in the kernel's filters; else None."""
        if not isinstance(self.left, Name) or self.operator not in {*COMPARISONS, "~", "&"}:
            return None
        name, sign, column = self.left.name, self.operator, self.left.column
        operator: Operator = sign  # type: ignore[assignment]  # it is one of those above
        if isinstance(self.right, Text):
            return Comparison(name, operator, self.right.text, column=column)
        if not isinstance(self.right, Number) or operator == "~":
            return None
        number = self.right
        return Comparison(name, operator, number.value, number.written, number.time, column)


@dataclass(frozen=True, slots=True)
class Logical(Node):
    """``&&`` or ``||`` between two or more operands."""

    operator: str
    operands: tuple[Node, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.operands

    def insert(self, trees: Mapping[str, Node]) -> Node:
        return replace(self, operands=tuple(operand.insert(trees) for operand in self.operands))


@dataclass(frozen=True, slots=True)
class Choice(Node):
    """``if(TEST, YES, NO)``, which is ``TEST ? YES : NO``; only the chosen one is computed."""

    test: Node
    yes: Node
    no: Node

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.test, self.yes, self.no

    def insert(self, trees: Mapping[str, Node]) -> Node:
        return replace(
            self, test=self.test.insert(trees), yes=self.yes.insert(trees), no=self.no.insert(trees)
        )


def wrong_types(tree: Node, types: Mapping[str, FieldType | None]) -> Iterator[tuple[int, str]]:
    """Yield the mistakes that the types of the fields show: the column, and a sentence.

    The type of a field that is not in ``types``, or None there, is unknown.
    """
    if isinstance(tree, Binary) and (compared := tree.comparison):
        yield from _wrong_comparison(compared, types.get(compared.name), tree)
        return
    if isinstance(tree, Text):
        yield tree.column, 'a string can only be compared, as in FIELD == "text"'
    elif isinstance(tree, Number) and not tree.is_whole:
        yield tree.column, f"{tree.written} is no whole number: only 'duration' is compared with a fraction"
    elif isinstance(tree, Name) and (known := types.get(tree.name)) is not None:
        if known.is_string:
            yield tree.column, f"{tree.name!r} is a string, which can only be compared with one in quotes"
        elif known.kind == "other":
            yield tree.column, f"{tree.name!r} is an array, it cannot be computed with"
    elif isinstance(tree, Binary) and isinstance(literal := tree.right, Number):
        if tree.operator in ("/", "%") and literal.value == 0:
            yield literal.column, "this divides by zero"
        elif tree.operator in SHIFTS and not 0 <= literal.value <= 63:
            yield literal.column, f"64 bits are shifted by 0 to 63, not by {literal.written}"
    for part in tree.parts:
        yield from wrong_types(part, types)


def _wrong_comparison(
    compared: Comparison, known: FieldType | None, tree: Binary
) -> Iterator[tuple[int, str]]:
    timed = compared.name == DURATION or known is COMPUTED
    if compared.time and not timed:
        yield tree.right.column, f"{compared.name!r} is no time, only {DURATION!r} is"
    elif known and not (known is COMPUTED and compared.time) and (why := wrong_comparison(compared, known)):
        yield compared.column, why


def insert(tree: Node, trees: Mapping[str, Node]) -> Node:
    """Return the expression with each ``let`` in ``trees`` in place of its name. Raises GrammarError."""
    size = sum(_size(trees[node.name]) if node.name in trees else 1 for node in tree.names)
    if size > MOST_NODES:
        raise GrammarError(f"with all that its names stand for, this has more than {MOST_NODES} parts")
    return tree.insert(trees)


def split(tree: Node, names: Collection[str]) -> tuple[Node | None, Node | None]:
    """Return the operands of ``&&`` that name none of ``names``, and those that do; None for none of them."""
    operands = tree.operands if isinstance(tree, Logical) and tree.operator == "&&" else (tree,)
    without = [operand for operand in operands if operand.fields.isdisjoint(names)]
    rest = [operand for operand in operands if not operand.fields.isdisjoint(names)]
    return _joined(without), _joined(rest)


def _joined(operands: list[Node]) -> Node | None:
    if len(operands) < 2:
        return operands[0] if operands else None
    return Logical(operands[0].column, "&&", tuple(operands))


def _size(tree: Node) -> int:
    return sum(1 for _ in tree.walk())


def as_filter(tree: Node) -> Filter:
    """Return an expression as a filter of the kernel's. Raises GrammarError for what these do not have."""
    if isinstance(tree, Logical):
        operands = tuple(as_filter(operand) for operand in tree.operands)
        return And(operands) if tree.operator == "&&" else Or(operands)
    if isinstance(tree, Unary) and tree.operator == "!":
        return Not(as_filter(tree.operand))
    compared = tree.comparison if isinstance(tree, Binary) else None
    if compared is None:
        fail("the kernel compares fields with numbers and strings, and computes nothing", "", tree.column)
    return compared


def as_condition(tree: Node) -> Condition:
    """Return an expression as a condition, in which times are nanoseconds."""
    match tree:
        case Logical(operator=operator, operands=operands):
            return ("all" if operator == "&&" else "any"), tuple(map(as_condition, operands))
        case Unary(operator="!", operand=operand):
            return "not", as_condition(operand)
        case Binary() if compared := tree.comparison:
            return compared_field(in_nanoseconds(compared))
    return as_number(tree)


def in_nanoseconds(part: Comparison) -> Comparison:
    """Return a comparison with its duration converted from seconds to nanoseconds, the unit of records."""
    if part.name != DURATION or isinstance(part.value, str):
        return part
    # Decimal keeps what is written: 1.1e-6 s is 1100 ns, which a product of floats may miss by a bit.
    return replace(part, value=float(Decimal(str(part.value)).scaleb(9)))


def compared_field(part: Comparison) -> Condition:
    """Return a comparison of a field with a literal."""
    value = part.value
    if isinstance(value, str):
        if part.operator == "~":
            return "match", part.name, matcher(value, True)
        return "text", part.name, part.operator, value.encode()
    return "number", part.name, part.operator, value


def as_number(tree: Node) -> Condition:
    """Return an expression as a value that is computed."""
    match tree:
        case Name(name=name):
            return "field", name
        case Number(value=value, time=time):
            return "constant", int(Decimal(str(value)).scaleb(9)) if time else int(value)
        case Unary(operator="-" | "~" as operator, operand=operand):
            return "unary", operator, as_number(operand)
        case Binary(operator=operator, left=left, right=right) if _computes(tree):
            return "binary", operator, as_number(left), as_number(right)
        case Choice(test=test, yes=yes, no=no):
            return "if", as_condition(test), as_number(yes), as_number(no)
    return as_condition(tree)


def _computes(tree: Binary) -> bool:
    """Whether it gives a number: every operator does but the comparison of a field with a literal."""
    compared = tree.comparison
    return compared is None or (compared.operator == "&" and not isinstance(compared.value, str))
