"""The stacks that the compiled walk counts come to the same as those that belong to records."""

import struct
from collections import Counter
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kprobe_exporter.model.aggregation import RecordChoice
from kprobe_exporter.model.stacks import Weight
from tests.model import pages
from tests.support.page_material import compiled
from tests.support.ring_buffer import Page, event
from tests.support.stacked_pages import EXPORTS, OF_PROGRAM, ReadingStacks, kernel, record, user


@given(
    st.randoms(use_true_random=True),
    st.integers(0, 60),
    st.sampled_from([0, 0.2]),
    st.booleans(),
    st.sampled_from([{}, EXPORTS]),
)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)
def test_both_parsers_agree(
    random: Random, steps: int, losing: float, reloads: bool, exports: dict[int, RecordChoice]
) -> None:
    recording = record(random, steps, losing)
    results = []
    for kind in (pages.PageParser, compiled.PageParser):
        reading = ReadingStacks(kind, exports)
        for now, found in recording:
            reading.read(now, found)
            if reloads:
                reading.pipe.adopt(reading.parser())
        reading.read(10**6, {}, last=True)
        results.append((reading.result(), Counter(map(repr, reading.delivered)), reading.exported.traces()))
    assert results[0] == results[1]


def test_what_is_drawn_is_exported_with_its_stack() -> None:
    """The test above compares something, of each probe."""
    reading = ReadingStacks(compiled.PageParser, EXPORTS)
    for now, found in record(Random(1), 2000, 0.05):
        reading.read(now, found)
    reading.read(10**6, {}, last=True)
    stacked = Counter(one.record[0] for _, one in reading.exported.items if one.stack)
    bare = Counter(one.record[0] for _, one in reading.exported.items if not one.stack)
    assert min(stacked[number] for number in EXPORTS if number != OF_PROGRAM.id) > 50
    assert min(bare[number] for number in EXPORTS) > 5


class Elsewhere(bytes):
    """What a thread writes on the second CPU."""


def read(*rounds: list[bytes]) -> dict[int, tuple[Any, int]]:
    """Return the stacks of what two CPUs write, a page of each a round."""
    reading = ReadingStacks(compiled.PageParser)
    now = 1000
    for some in rounds:
        written = {0: Page(now), 1: Page(now)}
        for one in some:
            now += 1
            written[isinstance(one, Elsewhere)].add(now, one)
        reading.read(now, {cpu: [page.render()] for cpu, page in written.items()})
    reading.read(now + 1, {}, last=True)
    return reading.result()


def of_size(number: int, size: int, tid: int = 7) -> bytes:
    return event(number, tid, struct.pack("=i", size))


def test_an_error_has_no_weight_and_is_not_lost() -> None:
    stack = kernel(7, 0x10)
    assert read([of_size(20, -1), stack, of_size(20, 7), stack])[20] == ({(b"function_1",): Weight(1, 7)}, 0)


def test_an_event_that_the_filter_rejects_keeps_its_stack_from_the_event_before() -> None:
    assert read([of_size(20, 7), of_size(20, 2), kernel(7, 0x10)])[20] == ({}, 1)


def test_a_stack_may_come_with_the_next_page() -> None:
    """The call has ended by then, on another CPU."""
    call = [of_size(22, 0), user(7, 70, 0x20), Elsewhere(of_size(23, 0))]
    found = read(call, [kernel(7, 0x10)])[30]
    assert found == ({(b"function_1", b"[70]"): Weight(1, 2)}, 0)


def test_a_stack_that_does_not_come_holds_nothing_up() -> None:
    ended = [of_size(23, 0)]
    assert read([of_size(22, 0)], ended, [of_size(25, 0)], [of_size(25, 0)])[30] == ({}, 1)
