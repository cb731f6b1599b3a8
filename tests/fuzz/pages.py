"""Fuzzes both parsers of ring-buffer pages, compiled and plain, whose results must be equal."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from kprobe_exporter.aggregate.recipes import source_recipe
from kprobe_exporter.model.record_layout import Geometry
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Input, Take, Target
from tests.model.pages import ULONG_MAX, PageParser
from tests.sanitizer.fuzz import damaged_page
from tests.support.page_material import PROBES, SHAPES, STACKS, Names, compiled
from tests.support.ring_buffer import GEOMETRY

MOST = 3
"""Pages of one input; several, so that state kept between pages is tested as well."""

SHORT_COMMIT = Geometry(8, 4, 12, 4096)
"""The layout of a 32-bit machine."""

RECIPES = {
    shape.layout.layout_id: made
    for shape in SHAPES
    if (made := source_recipe(shape.layout, PROBES[shape.layout.layout_id], None)) is not None
}
CHANGES = (0, 0, 1, 1, 3, 10)


def make(random: Random) -> Input:
    pages = [damaged_page(random) for _ in range(random.randrange(1, MOST + 1))]
    data = b"".join(page.ljust(GEOMETRY.page, b"\0") for page in pages[:-1]) + pages[-1]
    mutator = Mutator(pages, longest=MOST * GEOMETRY.page)
    for _ in range(random.choice(CHANGES)):
        data = mutator.change(random, data)
    return Input("pages", data)


@contextmanager
def taking() -> Iterator[Take]:
    read, write = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 16)

    def take(given: Input) -> bool:
        size = GEOMETRY.page
        pages = [given.data[at : at + size] for at in range(0, len(given.data), size)]
        found = 0
        for geometry in (GEOMETRY, SHORT_COMMIT):
            batches = []
            for kind in (PageParser, compiled.PageParser):
                parser = kind(geometry, SHAPES, Names(), STACKS, True)
                for number, page in enumerate(pages):
                    parser.feed(page, number % 2)
                batch = parser.take()
                batch.lost &= ULONG_MAX  # the compiled walk counts in 64 bits
                batches.append(batch)
            assert batches[0] == batches[1]
            found += len(batches[0].records)
        adding = compiled.PageParser(GEOMETRY, SHAPES, Names(), STACKS, False, RECIPES)
        os.write(write, given.data)
        while adding.pull(read, 0, MOST):
            pass
        adding.take()
        return found > 0

    yield take
    os.close(read)
    os.close(write)


TARGET = Target("pages", make, taking)
