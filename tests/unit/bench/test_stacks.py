"""The benchmark of counted stacks: it makes as many as it says, and fails if hits are missing."""

from random import Random

import pytest

from kprobe_exporter.aggregate.stack_counts import StackCounts
from tests.bench import stacks
from tests.bench.stacks import DEPTH, FUNCTIONS, IN_PROGRAM, counted, path, row


@pytest.mark.parametrize("user", [False, True])
def test_as_many_as_were_asked_for(user: bool) -> None:
    made = counted(50, user)
    assert len(set(made.stacks)) == 50
    assert {(len(kernel), len(places)) for kernel, places in made.stacks} == {(DEPTH, IN_PROGRAM * user)}
    assert made.counts.profile(stacks.names).hits == 50
    assert 50 * 100 < made.memory < 50 * 10_000


def test_paths() -> None:
    found = [path(Random(number), 3) for number in range(20)]
    assert all(0 <= number < FUNCTIONS for one in found for number in one)
    assert len({tuple(one) for one in found}) > 5


def test_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "HITS", 100)
    shown = row(20, user=True)
    assert shown[0] == "20 and of the program"
    assert len(shown) == 7


def test_missing_hits_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "HITS", 100)
    whole = StackCounts.add

    def forgetful(self: StackCounts, *given: object) -> None:
        if Random().random() < 0.9:
            whole(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(StackCounts, "add", forgetful)
    with pytest.raises(RuntimeError, match="stacks were made"):
        row(20, user=False)
