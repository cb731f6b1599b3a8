"""The functions at many places of one file, found in one reading of its symbol tables."""

from bisect import bisect_left
from collections.abc import Iterable

from kprobe_exporter.elf.find import rank
from kprobe_exporter.elf.reader import opened
from kprobe_exporter.elf.tables import FUNC, UNDEFINED


def functions_at(path: str, offsets: Iterable[int]) -> dict[int, str]:
    """Return the function at each of these offsets in a file that has one.

    Of several names of one function it is the one that ``find.function_at`` chooses. A million symbols take a
    second. Raises GrammarError, also for a file that takes more than the reader's budget.
    """
    with opened(path) as file:
        places: dict[int, int] = {}  # by address
        for offset in offsets:
            if (address := file.address_of(offset)) is not None:
                places[address] = offset
        ordered = sorted(places)
        found: dict[int, tuple[tuple[int, int], str, str]] = {}
        for table in file.tables:
            for number, (name_at, info, _, section, value, size) in enumerate(table.rows()):
                if info & 15 != FUNC or section == UNDEFINED:
                    continue
                at = bisect_left(ordered, value)
                if at == len(ordered) or ordered[at] >= value + size:
                    continue
                if not (name := table.strings.text(name_at)):
                    continue
                ranked = rank(name, info >> 4), name + table.suffix(number), name
                while at < len(ordered) and ordered[at] < value + size:
                    offset = places[ordered[at]]
                    file.budget.spend(1)
                    found[offset] = min(found.get(offset, ranked), ranked)
                    at += 1
        return {offset: name for offset, (_, _, name) in found.items()}
