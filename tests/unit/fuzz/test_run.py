"""Each input is counted, or reported as a crash and kept, however the process of the target ended."""

import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.run import MOST_CRASHES, Limit, Result, fuzz
from tests.fuzz.target import Input, Target

PATIENCE = 60.0


def make(random: Random) -> Input:
    return Input("kind", random.randbytes(8))


def made_of(number: int) -> bytes:
    return make(Random(number)).data


def target(what: "dict[int, object]") -> Target:
    """Return a target that accepts inputs with an even first byte; ``what`` maps numbers to other acts."""
    numbers = {made_of(number): did for number, did in what.items()}

    @contextmanager
    def taking() -> Iterator[object]:
        def take(given: Input) -> bool:
            did = numbers.get(given.data)
            if isinstance(did, Exception):
                raise did
            if callable(did):
                did()
            return given.data[0] % 2 == 0

        yield take

    return Target("some", make, taking)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence the messages of progress, so that a run of any length reports only crashes."""
    monkeypatch.setattr("tests.fuzz.run.PROGRESS", math.inf)


def run(
    what: "dict[int, object]", kept: Path, hang: float = PATIENCE, inputs: int = 50
) -> tuple[Result, str]:
    said: list[str] = []
    result = fuzz(target(what), 1, Limit(PATIENCE, inputs), said.append, kept, hang)
    return result, "\n".join(said)


def test_what_is_accepted_and_refused(tmp_path: Path) -> None:
    result, said = run({}, tmp_path)
    even = sum(made_of(number)[0] % 2 == 0 for number in range(1, 51))
    assert (result.inputs, result.accepted, result.refused, result.crashes) == (50, even, 50 - even, ())
    assert (said, list(tmp_path.iterdir())) == ("", [])
    assert 0 < result.slowest < result.seconds < PATIENCE


def test_an_exception_is_a_crash_and_the_others_follow(tmp_path: Path) -> None:
    result, said = run({7: ValueError("odd"), 9: ValueError("odd as well"), 20: KeyError("x")}, tmp_path)
    assert (result.inputs, result.crashed) == (50, 3)
    assert [crash.number for crash in result.crashes] == [7, 20]
    assert (tmp_path / "some-kind-7").read_bytes() == made_of(7)
    assert "ValueError: odd\n" in said
    assert 'make fuzz ARGS="some --seed 7 --inputs 1"' in said


@pytest.mark.parametrize(
    ("death", "sentence"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "the process was ended by SIGSEGV"),
        (lambda: os._exit(3), "the process ended with status 3"),
    ],
)
def test_the_end_of_the_process_is_a_crash_and_the_others_follow(
    tmp_path: Path, death: object, sentence: str
) -> None:
    result, said = run({7: death, 8: death}, tmp_path)
    assert (result.inputs, result.crashed) == (50, 2)
    assert [(crash.number, crash.sentence) for crash in result.crashes] == [(7, sentence)]
    assert sentence in said
    assert [file.name for file in tmp_path.iterdir()] == ["some-kind-7"]


def test_an_input_without_end_is_a_crash_and_the_others_follow(tmp_path: Path) -> None:
    result, _ = run({7: threading.Event().wait}, tmp_path, hang=0.5)
    assert [(crash.number, crash.sentence) for crash in result.crashes] == [
        (7, "it did not end within 0.5 s")
    ]
    assert result.inputs == 50


def test_a_target_that_always_crashes_is_given_up(tmp_path: Path) -> None:
    faults = {number: type(f"Fault{number}", (Exception,), {})() for number in range(1, 51)}
    result, _ = run(faults, tmp_path)
    assert len(result.crashes) == MOST_CRASHES


def test_what_cannot_be_prepared_is_told_at_once(tmp_path: Path) -> None:
    @contextmanager
    def taking() -> Iterator[object]:
        yield os._exit(1)

    with pytest.raises(RuntimeError, match="could not be prepared"):
        fuzz(Target("none", make, taking), 1, Limit(PATIENCE, 5), kept=tmp_path)  # type: ignore[arg-type]


def test_it_ends_in_time(tmp_path: Path) -> None:
    result = fuzz(target({}), 1, Limit(0.3), kept=tmp_path)
    assert result.inputs > 0
    assert result.seconds < 20
