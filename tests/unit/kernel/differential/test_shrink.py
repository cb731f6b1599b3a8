"""A failing case becomes as small as a person would make it, in a bounded number of attempts."""

from collections.abc import Sequence

from tests.kernel.differential.cases import Case, draw
from tests.kernel.differential.shrink import MOST_ATTEMPTS, fewer, narrowed, shrink


def naps(case: Case) -> bool:
    """A fault that one operation shows if any probe is there."""
    first = case.phases[0]
    return bool(first.probes) and any(operation.name == "take_nap" for operation in first.operations)


def test_what_is_not_needed_goes() -> None:
    cases = [case for seed in range(1, 300) if naps(case := draw(seed, fprobes=True))]
    assert len(cases) > 10
    for case in cases:
        small = shrink(case, naps, 1000)
        assert [operation.name for operation in small.phases[0].operations] == ["take_nap"]
        assert small.phases[1].operations == ()
        assert len(small.phases[0].probes) == 1
        assert all(metric.where is None and not metric.labels for metric in small.phases[0].probes[0].metrics)


def test_attempts_are_bounded() -> None:
    tried: list[Case] = []

    def fails(case: Case) -> bool:
        tried.append(case)
        return False

    case = draw(3, fprobes=True)
    assert shrink(case, fails) == case
    assert len(tried) <= MOST_ATTEMPTS


def test_halves_come_before_single_items() -> None:
    assert [*fewer((1, 2, 3, 4))] == [(3, 4), (1, 2), (2, 3, 4), (1, 3, 4), (1, 2, 4), (1, 2, 3)]
    assert [*fewer((1,))] == [()]


def test_a_failing_item_is_found_by_halves() -> None:
    tried: list[tuple[int, ...]] = []

    def fails(items: Sequence[int]) -> bool:
        tried.append(tuple(items))
        return 13 in items

    assert [*narrowed(range(20), fails)] == [13]
    assert len(tried) <= 10
    assert [*narrowed(range(4), lambda items: {0, 3} <= set(items))] == [0, 1, 2, 3]
