"""Computed values: against a C compiler, the compiled walk against Python, and what is missing."""

import ctypes
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.aggregate.interpret import Event, compile_condition
from kprobe_exporter.aggregate.sums import Sums
from kprobe_exporter.grammar.evaluate import as_condition, as_number
from kprobe_exporter.grammar.formula_parser import parse_formula
from kprobe_exporter.model.aggregation import Group, Recipe
from kprobe_exporter.model.condition import Computed
from kprobe_exporter.model.record_layout import Field, Shape
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.values import Arg
from kprobe_exporter.plan.metric import where
from tests.model.pages import PageParser
from tests.support.compiling import compiled
from tests.support.formulas import EDGES, formulas
from tests.support.page_material import TID, Names
from tests.support.page_material import compiled as walk
from tests.support.ring_buffer import GEOMETRY, Page, event

NAMES = ("u", "v", "s", "t")
UNSIGNED = frozenset({"u", "v"})
PROGRAM = """
#include <stdint.h>
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define choose(c, a, b) ((c) ? (a) : (b))
uint64_t values[64];
void compute(uint64_t u, uint64_t v, int64_t s, int64_t t) {
%s
}
"""


def evaluate(text: str, unsigned: frozenset[str] = frozenset(), **fields: int | bytes | None) -> int | None:
    return compile_condition(as_number(parse_formula(text)), unsigned)(fields)


def in_c(text: str) -> str:
    """Return an expression in C, where no literal, call or part in parentheses is an int of 32 bits."""
    written, closing = "", []
    words = re.findall(r"[a-z]+\(|\(|\)|\d+|[^()\d]", text.replace("if(", "choose("))
    for word in words:
        if word.endswith("("):
            written += f"(0LL + {word}"
            closing.append("))")
        elif word == ")":
            written += closing.pop()
        else:
            written += f"{word}LL" if word.isdigit() else word
    return written


EXAMPLES = 60


def test_values_are_those_of_a_c_compiler(tmp_path: Path) -> None:
    """Operators, precedence and conversions, of random expressions and numbers."""
    texts: list[str] = []

    @given(formulas(NAMES))
    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=[HealthCheck.too_slow])
    def draw(text: str) -> None:
        if len(texts) < 64 and text not in texts:
            texts.append(text)

    draw()
    lines = "\n".join(f"  values[{at}] = (uint64_t)(int64_t)({in_c(text)});" for at, text in enumerate(texts))
    library = ctypes.CDLL(
        str(compiled(tmp_path / "formulas.so", PROGRAM % lines, "-shared", "-fPIC", "-fwrapv", "-O0"))
    )
    library.compute.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64]
    found = (ctypes.c_uint64 * 64).in_dll(library, "values")
    numbers = [*EDGES, 2**64 - 1, -1, -7, -(2**63), 2**63]
    for at in range(200):
        drawn = [numbers[(at * step + step) % len(numbers)] for step in (1, 3, 5, 9)]
        fields = {name: number % 2**64 for name, number in zip(NAMES, drawn, strict=True)}
        signed = {name: (fields[name] ^ 2**63) - 2**63 for name in ("s", "t")}
        library.compute(fields["u"], fields["v"], signed["s"], signed["t"])
        for number, text in enumerate(texts):
            value = evaluate(text, UNSIGNED, **{**fields, **signed})
            if value is not None:  # C does not define a shift by 64
                assert value % 2**64 == found[number], (text, {**fields, **signed})


def test_field_compared_with_a_negative_number() -> None:
    """It is compared by its value, as in a filter: no unsigned number is below 0, as C would have it."""
    values = {
        text: evaluate(text, UNSIGNED, u=1, s=-1) for text in ("u > -1", "u <= -(2)", "s > -2", "u > 0 - 1")
    }
    assert [*values.values()] == [1, 0, 1, 0]


ARGS = (
    (Arg("u64", "int", unsigned=64), Field("unsigned", 8, 8)),
    (Arg("s64", "int"), Field("signed", 16, 8)),
    (Arg("u32", "int"), Field("unsigned", 24, 4)),
    (Arg("s16", "int"), Field("signed", 32, 2)),
)
LAYOUT = Layout(0, "p", "p", "entry", "f", tuple(arg for arg, _ in ARGS))
SHAPE = Shape(7, LAYOUT, tuple(field for _, field in ARGS), TID, None, 40)
FIELDS = ("u64", "s64", "u32", "s16", "tid", "nothing")


@given(
    formulas(FIELDS),
    st.lists(st.tuples(*(st.integers(0, 2**64 - 1) | st.sampled_from(EDGES) for _ in ARGS)), max_size=6),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_compiled_walk_decides_as_python_does(text: str, records: list[tuple[int, ...]]) -> None:
    condition = where(parse_formula(text))
    recipe = Recipe((Group(0, keys=("u32",), where=condition),), None)
    check_both(SHAPE, recipe, records)


def check_both(shape: Shape, recipe: Recipe, records: list[tuple[int, ...]]) -> None:
    """Check that the compiled walk adds up the same of a page as Python does of its records."""
    page = Page()
    for number, values in enumerate(records, 1):
        page.add(number, event(7, number, *((value % 2**64).to_bytes(8, "little") for value in values)))
    fast = walk.PageParser(GEOMETRY, [shape], Names(), recipes={0: recipe})
    slow = PageParser(GEOMETRY, [shape], Names())
    written = page.render()
    for one in (fast, slow):
        one.feed(written, 0)
    sums = Sums(shape.layout, recipe)
    for record in slow.take().records:
        sums.add(record)
    batch = fast.take()
    _, _, expected = sums.take()
    assert sorted(map(str, [*batch.tallies, *batch.refused])) == sorted(map(str, expected))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a / z", None),
        ("a % z", None),
        ("a / nothing", None),
        ("-nothing", None),
        ("a << 64 - z", None),
        ("a >> z - 1", None),
        ("if(z != 0, a / z, 0)", 0),
        ("z != 0 && a / z > 1", 0),
        ("a / z > 1 && z != 0", 0),
        ("a == 5 || a / z > 1", 1),
        ("a / z > 1 || a == 5", 1),
        ("a == 6 || a / z > 1", None),
        ("!(a / z)", None),
        ("if(a / z, 1, 2)", None),
        ("z > 0 ? a / z : 7", 7),
        ("-a / 2", -2),
        ("-a % 2", -1),
        ("min / -1", -(2**63)),
        ("min % -1", 0),
        ("nothing == 3", 0),
        ("nothing != 3", 1),
        ("name == 'x'", 1),
        ("if(name == 'y', 1, a)", 5),
        ("nothing & 1", None),
        ("name + 1", None),
        ("max(1, a, 3)", 5),
        ("a & 4", 4),
        ("10ms / 1us", 10_000),
    ],
)
def test_what_is_missing(text: str, value: int | None) -> None:
    text = text.replace("min /", "low /").replace("min %", "low %")
    assert evaluate(text, a=5, z=0, name=b"x", low=-(2**63)) == value


def test_a_condition_tests_bits_without_a_value() -> None:
    """As in the kernel's filters: a field that is missing has none of the bits."""
    fields: Event = {"a": 6}
    assert compile_condition(as_condition(parse_formula("a & 4")))(fields) == 1
    assert compile_condition(as_condition(parse_formula("nothing & 4")))(fields) == 0


def test_the_duration_is_compared_in_seconds_and_computed_in_nanoseconds() -> None:
    took: Any = {"duration": 1_500_000_000}
    assert compile_condition(where(parse_formula("duration > 1.4")).condition)(took) == 1
    assert compile_condition(where(parse_formula("1600ms > duration")).condition)(took) == 1
    assert evaluate("duration / 3", **took) == 500_000_000


def test_the_bits_of_a_duration_are_no_seconds() -> None:
    """A tracepoint's own field may have this name, and a condition and a computed value agree on it."""
    tree = parse_formula("duration & 4")
    assert where(tree).condition == ("number", "duration", "&", 4)
    assert as_number(tree) == ("binary", "&", ("field", "duration"), ("constant", 4))


@given(
    formulas(FIELDS),
    st.lists(st.tuples(*(st.integers(0, 2**64 - 1) | st.sampled_from(EDGES) for _ in ARGS)), max_size=6),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_compiled_walk_computes_as_python_does(text: str, records: list[tuple[int, ...]]) -> None:
    tree = parse_formula(text)
    layout = replace(LAYOUT, computed=(Computed("x", tuple(sorted(tree.fields)), as_number(tree)),))
    shape = SHAPE._replace(layout=layout)
    as_label = Group(0, keys=("s16", "x"))
    as_value = Group(1, value="x", bounds=(-5, 0, 7, 2**32))
    recipe = Recipe((as_label, as_value), None)
    check_both(shape, recipe, records)
