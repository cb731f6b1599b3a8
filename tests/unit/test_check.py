"""tests.check: the shares of the unit tests."""

from hypothesis import given
from hypothesis import strategies as st

from tests.check import shares


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 9), min_size=1), st.integers(1, 5))
def test_each_file_is_in_one_share(sizes: dict[str, int], number: int) -> None:
    made = shares(sizes.items(), number)
    assert sorted(name for names in made for name in names) == sorted(sizes)
    assert len(made) <= number
    assert all(made)


def test_sizes_are_about_equal() -> None:
    sizes = {str(number): number for number in range(100)}
    first, second = ([sizes[name] for name in names] for names in shares(sizes.items(), 2))
    assert abs(sum(first) - sum(second)) <= 1
