"""agent.heat: a column each 15 s with what histograms gained, 15 minutes of them."""

from collections.abc import Mapping

from kprobe_exporter.agent.heat import STEP, STEPS, HeatMaps
from kprobe_exporter.model.snapshot import HeatMap, Spread

KEY = ("open", "duration_seconds")
BOUNDS = (0.1, 1.0)


def fed(*readings: Mapping[tuple[str, str], Spread]) -> HeatMaps:
    maps = HeatMaps()
    for number, reading in enumerate(readings):
        maps.update(number * STEP, lambda reading=reading: reading)  # type: ignore[misc]
    return maps


def spread(*counts: int, bounds: tuple[float, ...] = BOUNDS) -> dict[tuple[str, str], Spread]:
    return {KEY: Spread(bounds, counts)}


def test_columns_are_what_was_gained() -> None:
    maps = fed(spread(5, 0, 0), spread(7, 1, 0), spread(7, 1, 0), spread(7, 1, 3))
    assert maps.of("open") == (HeatMap("duration_seconds", BOUNDS, ((2, 1, 0), (), (0, 0, 3)), STEP),)
    assert maps.of("other") == ()


def test_it_reads_no_more_often_than_a_column_is_full() -> None:
    maps = fed(spread(0, 0, 0))
    maps.update(STEP - 0.01, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    maps.update(STEP, lambda: spread(1, 0, 0))
    assert maps.of("open")[0].columns == ((1, 0, 0),)


def test_there_is_none_where_nothing_happened() -> None:
    assert fed(spread(5, 0, 0), spread(5, 0, 0)).of("open") == ()


def test_it_begins_again_with_other_bounds_and_after_a_reset() -> None:
    other = spread(9, 9, bounds=(3.0,))
    assert fed(spread(0, 0, 0), spread(1, 0, 0), other).of("open") == ()
    assert fed(spread(9, 0, 0), spread(1, 0, 0), spread(2, 0, 0)).of("open")[0].columns == ((), (1, 0, 0))
    assert fed(spread(0, 0, 0), spread(1, 0, 0), {}, spread(5, 0, 0)).of("open") == ()


def test_it_keeps_15_minutes() -> None:
    readings = [spread(number, 0, 0) for number in range(STEPS + 9)]
    columns = fed(*readings).of("open")[0].columns
    assert len(columns) * STEP == 900
    assert set(columns) == {(1, 0, 0)}
