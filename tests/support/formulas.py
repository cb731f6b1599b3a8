"""Random expressions over named numbers, as our parser and a C compiler both read them."""

from hypothesis import strategies as st

BINARY = ("+", "-", "*", "&", "|", "^", "<", "<=", ">", ">=", "==", "!=", "&&", "||")
BY_A_LITERAL = ("/", "%", "<<", ">>")
"""Operators whose result C does not define for all right operands."""

EDGES = [0, 1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1]


@st.composite
def formulas(draw: st.DrawFn, names: tuple[str, ...], depth: int = 3) -> str:
    """Draw an expression; where C's rules differ from those of the kernel's filters, it has parentheses.

    No number in it is negative: a field is compared with a number by its value, and C converts that.
    """
    parts = [draw(_operand(names, depth))]
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.integers(0, 3)) == 0:
            parts += [draw(st.sampled_from(BY_A_LITERAL)), str(draw(st.integers(1, 40)))]
        else:
            parts += [draw(st.sampled_from(BINARY)), draw(_operand(names, depth))]
    return " ".join(parts)


@st.composite
def _operand(draw: st.DrawFn, names: tuple[str, ...], depth: int) -> str:
    kind = draw(st.integers(0, 8 if depth else 3))
    if kind <= 3:
        return draw(st.sampled_from(names)) if kind < 3 else str(draw(st.sampled_from(EDGES)))
    inner, other = draw(formulas(names, depth - 1)), ""
    if kind >= 7:
        other = draw(formulas(names, depth - 1))
    signs = "~" if inner.strip("()").isdigit() else "-~"
    return {
        4: f"({inner})",
        5: f"{draw(st.sampled_from(signs))}({inner})",
        6: f"(!({inner}))",
        7: f"{draw(st.sampled_from(('min', 'max')))}({inner}, {other})",
        8: f"if({draw(st.sampled_from(names))} > 0, {inner}, {other})",
    }[kind]
