"""Expressions: their precedence, what is refused and where, and that the kernel's filters are expressions."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.errors import GrammarError
from kprobe_exporter.grammar.evaluate import COMPUTED, FLOAT, OTHER, STRING, FieldType, as_number, wrong_types
from kprobe_exporter.grammar.filter import parse_filter
from kprobe_exporter.grammar.formula import as_filter, insert
from kprobe_exporter.grammar.formula_parser import parse_formula
from tests.unit.grammar.generate import filter_text

TYPES = {
    "n": FieldType("int", 8, signed=True),
    "u": FieldType("int", 8),
    "name": STRING,
    "list": OTHER,
    "duration": FLOAT,
    "lag": COMPUTED,
}


@given(st.integers(0, 2**32).map(random.Random))
def test_a_filter_of_the_kernels_is_an_expression_with_the_same_meaning(source: random.Random) -> None:
    parsed = parse_filter(filter_text(source))
    assert as_filter(parse_formula(parsed.render())) == parsed


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a + b * c", "a + (b * c)"),
        ("a - b - c", "(a - b) - c"),
        ("a << b + c", "a << (b + c)"),
        ("a & b == c", "a & (b == c)"),
        ("a | b ^ c & d", "a | (b ^ (c & d))"),
        ("a < b == c > d", "(a < b) == (c > d)"),
        ("a || b && c", "a || (b && c)"),
        ("a ? b : c ? d : e", "a ? b : (c ? d : e)"),
        ("if(a, b, c)", "a ? b : c"),
        ("-a * ~b", "(-a) * (~b)"),
        ("!a == 3", "!(a == 3)"),
        ("!a & 4 && b", "!(a & 4) && b"),
        ("3 < a", "a > 3"),
        ("min(a, b, c)", "min(min(a, b), c)"),
        ("min < max", "(min) < (max)"),
        ("\n a\t+ b ", "a+b"),
    ],
)
def test_precedence(text: str, same: str) -> None:
    assert as_number(parse_formula(text)) == as_number(parse_formula(same))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("¦", "the expression is empty"),
        ("a ¦= 1", "after 'a' must come an operator, equality is =="),
        ("a ¦b", "there must be an operator before 'b'"),
        ("a + ¦", "a field, a number or a string must follow here"),
        ("¦(a + 1", "this '(' has no ')'"),
        ("a + 1¦)", "this ')' has no '('"),
        ("¦* 3", "a field or a number must be before '*'"),
        ("a == ¦'x", "the closing ' of this string is missing"),
        ("a < ¦'x'", "a string cannot be compared by <"),
        ("a + b == ¦'x'", "a string is compared with a field"),
        ("a ~ ¦3", "~ takes a pattern in quotes"),
        ("¦99999999999999999999", "is no 64-bit number"),
        ("¦12x", "'12x' is no 64-bit number"),
        ("¦abs(a)", "there is no function 'abs'"),
        ("¦mix(a, b)", "did you mean 'min'?"),
        ("¦min(a)", "min takes two values or more"),
        ("¦if(a, b)", "if takes three: if(CONDITION, THEN, ELSE)"),
        ("¦!a + 1", "say by parentheses what this negates"),
        ("¦!(a) == 1", "say by parentheses what this negates"),
        ("sk¦->port", "an expression has no members"),
        ("sk¦.port", "an expression has no members"),
        ("a¦; b", "';' has no meaning in an expression"),
        ("a ¦? b", "this '?' has no ':'"),
        ("¦- 9223372036854775809", "is no 64-bit number"),
        ("a¦, b", "this ',' belongs to no function or choice"),
        ("(" * 50 + "¦(a", "parts can be nested 50 deep, not more"),
        ("a" + " + a" * 200 + " ¦+ a", "more than 200 operators in a row"),
        ("1" * 4094 + "¦1", "the expression is longer than 4094 bytes"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    column = text.index("¦")
    with pytest.raises(GrammarError) as error:
        parse_formula(text.replace("¦", ""))
    assert message in error.value.message
    assert error.value.column == column


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("¦name + 1", "'name' is a string, which can only be compared"),
        ("n + ¦list", "'list' is an array"),
        ("n / ¦0", "this divides by zero"),
        ("n % ¦0x0 > 3", "this divides by zero"),
        ("n << ¦64", "64 bits are shifted by 0 to 63, not by 64"),
        ("n + ¦0.5", "0.5 is not a whole number"),
        ("¦n > 0.5", "'n' is a whole number"),
        ("¦lag > 0.5", "'lag' is a whole number"),
        ("¦u == -1", "'u' is unsigned"),
        ("¦name == 3", "'name' is a string, put 3 in quotes"),
        ("¦n == 'x'", "'n' is a number, take the quotes away"),
        ("n > ¦10ms", "'n' is not a time, only 'duration' is"),
        ("if(¦name, 1, 2)", "'name' is a string"),
        ("¦'x'", "a string can only be compared"),
    ],
)
def test_types(text: str, message: str) -> None:
    [(column, why)] = wrong_types(parse_formula(text.replace("¦", "")), TYPES)
    assert message in why
    assert column == text.index("¦")


@pytest.mark.parametrize(
    "text",
    [
        "lag > 10ms",
        "duration > 0.5",
        "duration * 2 > 10ms",
        "name ~ 'x*' && n",
        "u - 1 < n",
        "other + 1 > -2",
    ],
)
def test_well_typed(text: str) -> None:
    assert [*wrong_types(parse_formula(text), TYPES)] == []


def test_names_stand_for_their_expressions() -> None:
    trees = {"a": parse_formula("b + 1"), "c": parse_formula("b * 2")}
    found = insert(parse_formula("if(a > c, a, -c) && !a"), trees)
    expected = parse_formula("if(b + 1 > b * 2, b + 1, -(b * 2)) && !(b + 1)")
    assert as_number(found) == as_number(expected)


def test_names_cannot_stand_for_more_and_more() -> None:
    tree = parse_formula(" + ".join(["a"] * 100))
    with pytest.raises(GrammarError, match="more than 2000 parts"):
        insert(tree, {"a": tree})


@given(st.text(alphabet="ab01.'+-*/%&|^~!<>=?:(), mshif", max_size=40))
def test_any_text_is_parsed_or_refused_within_it(text: str) -> None:
    column = 0
    try:
        parse_formula(text)
    except GrammarError as error:
        column = error.column
    assert 0 <= column <= len(text)
