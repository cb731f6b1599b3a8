"""Feeds damaged pages to a page parser that was built with AddressSanitizer.

`python -m tests.sanitizer.fuzz PAGES SEED`, with the parser in $SANITIZED. A page lies in memory of exactly
its own size, so that AddressSanitizer reports any read past its end.
"""

import ctypes
import fcntl
import importlib.util
import os
import struct
import sys
from pathlib import Path
from random import Random
from typing import Any

from kprobe_exporter.aggregate.recipes import source_recipe
from kprobe_exporter.model.record_layout import Geometry
from tests.support import stacked_pages
from tests.support.joined_pages import ALL, JOINS, Reading, choices, record
from tests.support.page_material import PROBES, SHAPES, STACKS, Names, back, entry
from tests.support.ring_buffer import GEOMETRY, MISSED, Page, event
from tests.support.stacked_pages import ReadingStacks

EXTREMES = (0, 1, 3, 4, 7, 8, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 31, 1 << 30, 4080, 4081, 4096)
MANY_PAGES = 70
"""More than a parser reads at once."""

JOINED_SHARE = 50
"""One recording of calls and pairs for so many pages."""

INTERESTING = [struct.pack("=I", value) for value in EXTREMES]


def main() -> None:
    rounds, seed = int(sys.argv[1]), int(sys.argv[2])
    module = _load(Path(os.environ["SANITIZED"]))
    random = Random(seed)
    recipes = {
        shape.layout.layout_id: made
        for shape in SHAPES
        if (made := source_recipe(shape.layout, PROBES[shape.layout.layout_id], None)) is not None
    }
    parsers = [
        module.PageParser(GEOMETRY, SHAPES, Names(), STACKS, True, {}),
        module.PageParser(GEOMETRY, SHAPES, Names(), STACKS, False, recipes),
        module.PageParser(Geometry(8, 4, 12, 4096), SHAPES, Names(), STACKS, False, recipes),
    ]
    read, write = os.pipe2(os.O_NONBLOCK)
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    records = damaged = losses = 0
    for number in range(rounds):
        page = damaged_page(random)
        exact = (ctypes.c_char * len(page)).from_buffer_copy(page)
        for parser in parsers:
            parser.feed(exact, number % 4)
            if number % 16 == 0:
                os.write(write, page)
                if number % 160 == 0:
                    os.write(write, _full(random) * MANY_PAGES)
                parser.pull(read, number % 4, 3)
                while parser.pull(read, 0, 64):
                    pass
            batch = parser.take()
            records += len(batch.records) + len(batch.tallies)
            damaged += batch.unparsed > 0
            losses += len(batch.losses)
            assert all(loss.start <= loss.end for loss in batch.losses)
    assert losses > rounds // 10
    joined = feed_joins(module, random, rounds // JOINED_SHARE)
    assert joined > rounds // JOINED_SHARE
    stacks = feed_stacks(module, random, rounds // JOINED_SHARE)
    assert stacks > rounds // JOINED_SHARE
    print(
        f"{rounds} pages, {records} records and tallies, {losses} losses, {damaged} times damage was seen,"
        f" {joined} calls and pairs, {stacks} stacks"
    )


def feed_joins(module: Any, random: Random, rounds: int) -> int:
    """Join and export calls and pairs of damaged pages, and single events by cgroup, while joins come and go.

    Return how many were joined or added up.
    """
    joined = 0
    for _ in range(rounds):
        exports = choices(random, limits=random.random() < 0.5) if random.random() < 0.7 else {}
        most = random.choice([3, 65_536])
        reading = Reading(module.PageParser, most=most, moving=True, exports=exports)
        for now, found in record(random, 80, random.choice([0, 8]), 0.1, moving=3).rounds:
            reading.read(now, {cpu: [damage(random, page) for page in some] for cpu, some in found.items()})
            match random.randrange(4):
                case 0:
                    reading.switch(frozenset(one for one in ALL if random.random() < 0.7))
                case 1:
                    reading.reset(random.choice(sorted(JOINS)))
        reading.read(1 << 40, {}, last=True)
        joined += sum(reading.numbers.copy().events.values())
    return joined


def feed_stacks(module: Any, random: Random, rounds: int) -> int:
    """Count the stacks of damaged pages, while parsers change. Return how many were counted."""
    counted = 0
    for _ in range(rounds):
        reading = ReadingStacks(module.PageParser, stacked_pages.EXPORTS if random.random() < 0.7 else {})
        for now, found in stacked_pages.record(random, 40, 0.1):
            reading.read(now, {cpu: [damage(random, page) for page in some] for cpu, some in found.items()})
            if random.random() < 0.3:
                reading.pipe.adopt(reading.parser())
        reading.read(1 << 40, {}, last=True)
        counted += sum(weight.hits for stacks, _ in reading.result().values() for weight in stacks.values())
    return counted


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("kprobe_exporter.source._pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _full(random: Random) -> bytes:
    """A page before which events were lost, more than half full."""
    page = Page(random.getrandbits(60), flags=MISSED)
    while page.room(GEOMETRY.page // 3):
        page.add(page.time, back(1))
    return page.render()


def damaged_page(random: Random) -> bytes:
    """A page as the kernel writes it, then damaged."""
    page = Page(random.getrandbits(60), lost=random.choice([None, 5]), flags=random.choice([0, MISSED]))
    now = page.time
    for _ in range(random.randrange(40)):
        now += random.choice([0, 5, 1 << 30])
        body = random.choice(
            [
                back(
                    random.getrandbits(63) - (1 << 62),
                    random.getrandbits(31),
                    random.randbytes(random.randrange(60)),
                ),
                entry(13, random.randbytes(random.randrange(300)), at=random.choice([0, 80, 200, 65535])),
                event(4, 13, random.randbytes(random.randrange(64))),
                event(11, 13),
                event(random.getrandbits(16), 1, random.randbytes(random.randrange(24))),
            ]
        )
        page.add(now, body[: random.randrange(4, len(body) + 1)], long=random.random() < 0.2)
    return damage(random, page.render())


def damage(random: Random, page: bytes) -> bytes:
    """Change some bytes of a page, or cut it, or leave it as it is."""
    data = bytearray(page)
    for _ in range(random.choice([0, 1, 2, 8, 64])):
        at = random.randrange(len(data) - 4)
        if random.random() < 0.5:
            data[at : at + 4] = random.choice(INTERESTING)
        else:
            data[at] ^= 1 << random.randrange(8)
    if random.random() < 0.3:
        del data[random.randrange(len(data)) :]
    return bytes(data)


if __name__ == "__main__":
    main()
