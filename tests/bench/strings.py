"""The cost of an event with text of a program: a path that is counted as a label, and an argv as a record.

The pages are in memory, as those of `tests.bench.expression`, so that each kernel and machine has these rows.
"""

import math
import struct
import time
from typing import Any

from kprobe_exporter.aggregate.recipes import source_recipe
from kprobe_exporter.model.record_layout import Field, Shape
from kprobe_exporter.model.records import Layout
from kprobe_exporter.model.specs import LabelSpec, MetricSpec, ProbeMetrics
from kprobe_exporter.model.values import Arg
from tests.support.page_material import TID, Names, compiled
from tests.support.ring_buffer import GEOMETRY, Page, event

PATH, ARGV = "a path", "an argv"
PATHS = [b"/usr/lib/x86_64-linux-gnu/library%d.so" % number for number in range(64)]
WORDS = [b"program", b"--option", b"value", b"/var/lib/program/file"]
MAX_WORDS = 8
SLICES = 2000


def nanoseconds() -> dict[str, float]:
    """Return the least nanoseconds an event with a path, and with an argv."""
    metric = MetricSpec("opens_total", "counter", "", None, (LabelSpec("path", "path"),))
    layout = Layout(0, "opens", "opens", "entry", "f", (Arg("path", "str"),))
    recipe = source_recipe(layout, ProbeMetrics("opens", (metric,), (), None), None)
    assert recipe is not None
    path = Shape(7, layout, (Field("dynamic", 8, 4, fault=True),), TID, None, 12)
    at = 8 + 8 * (MAX_WORDS + 1)
    vector = Field("vector", at, 4 * MAX_WORDS, length=MAX_WORDS, fault=True, guards=(8,))
    execs = Layout(1, "execs", "execs", "entry", "g", (Arg("argv", "vector"),))
    argv = Shape(9, execs, (vector,), TID, None, at + 4 * MAX_WORDS)
    return {
        PATH: _best([_path(one) for one in PATHS], 7, path, {0: recipe}),
        ARGV: _best([_argv(WORDS)], 9, argv, {}),
    }


def _best(bodies: list[bytes], number: int, shape: Shape, recipes: dict[int, Any]) -> float:
    page, events = Page(1000), 0
    while page.room(len(event(number, 77, bodies[events % len(bodies)]))):
        page.add(1000 + events, event(number, 77, bodies[events % len(bodies)]))
        events += 1
    data, best = bytes(page.render()), math.inf
    parser = compiled.PageParser(GEOMETRY, [shape], Names(), recipes=recipes)
    for _ in range(SLICES):
        began = time.perf_counter_ns()
        parser.feed(data, 0)
        best = min(best, (time.perf_counter_ns() - began) / events)
        batch = parser.take()
        assert len(batch.records) + sum(batch.arrived.values()) == events
    return best


def _path(text: bytes) -> bytes:
    return struct.pack("=I", (len(text) + 1) << 16 | 12) + text + b"\0"


def _argv(words: list[bytes]) -> bytes:
    """Return the pointers to the words, the places of the words, and the words."""
    pointers = [0x7F0000001000] * len(words) + [0] * (MAX_WORDS + 1 - len(words))
    at = 8 + 8 * len(pointers) + 4 * MAX_WORDS
    places, tail = [0] * MAX_WORDS, b""
    for number, word in enumerate(words):
        places[number] = (len(word) + 1) << 16 | (at + len(tail))
        tail += word + b"\0"
    return struct.pack(f"={len(pointers)}Q{MAX_WORDS}I", *pointers, *places) + tail
