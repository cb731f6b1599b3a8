"""The cost of an input is measured, and above its line it is a crash."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import cost
from tests.fuzz.run import Limit, fuzz
from tests.fuzz.target import Input, Line, Take, Target, spending

MIB = 1 << 20


def spend_time() -> None:
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass


def spend_memory() -> None:
    bytearray(b"x") * (200 * MIB)


@pytest.mark.parametrize(
    ("line", "spend", "crashes"),
    [
        (Line(0.01, 0.02, 100, 100), spend_time, 1),
        (Line(60, 60, 10, 20), spend_memory, 1),
        (Line(60, 60, 150, 150), spend_memory, 0),
    ],
)
def test_an_input_above_its_line_is_a_crash(
    line: Line, spend: Callable[[], None], crashes: int, tmp_path: Path
) -> None:
    @contextmanager
    def taking() -> Iterator[Take]:
        def take(given: Input) -> bool:
            with spending(line, len(given.data)):
                spend()
            return True

        yield take

    target = Target("costly", lambda random: Input("x", bytes(MIB)), taking)
    result = fuzz(target, 1, Limit(60, 3), kept=tmp_path)
    assert (result.inputs, len(result.crashes)) == (3, crashes)
    assert all(crash.sentence.startswith("AssertionError") for crash in result.crashes)


def test_pieces_are_repeated() -> None:
    inputs = [cost.repeated(Random(number), b"0123456789") for number in range(200)]
    assert max(map(len, inputs)) > 1 << cost.MAX_BITS - 1
    assert min(map(len, inputs)) < 100
    assert all(one.startswith(b"0") or one[0] in (0, 0xFF) for one in inputs)


def test_a_reader_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without its bound on keys and values, the reader of YAML crosses its line, with the largest file.

    It takes 13 s on a fast machine, where the line is at 6 s.
    """
    monkeypatch.setattr("kprobe_exporter.config.yaml_source.MAX_EVENTS", 1 << 30)
    reader = cost.READERS["yaml"]
    data = b"[" + b"a," * ((1 << 19) - 1) + b"]"
    with pytest.raises(AssertionError, match="bytes took"), spending(reader.line, len(data)):
        reader.read(data, tmp_path)
