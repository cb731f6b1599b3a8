"""What texts of programs cost: a path or an argv in an event, and a name of C++ in a stack.

Events with such texts need eprobes, so they are measured in guests. The names are those of libstdc++, on this
machine, next to GNU's c++filt.
"""

import re
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from statistics import median

from kprobe_exporter.elf.demangle import demangled, short_name
from tests.bench.checks import Missed
from tests.bench.guest import EMULATED, in_each_kernel
from tests.bench.table import Table
from tests.bench.texts_guest import CALLS, PATH, ROUNDS, ROWS, RUNS

TITLE = "Texts of programs"
LIBRARY = "libstdc++.so.6"
LONGEST_NAME = 100
MIN_NAMES, MAX_NAMES = 1000, 4000
"""Names of the library that are measured: no more than the agent keeps, so that each is demangled once."""

OTHER_TEXTS = re.compile(r"S[abdios]|^_ZGTt|Dn|B5cxx11|cv")
"""Names for which c++filt has another text, such as ``std::basic_string<…>`` for ``std::string``, and those
with ``cv``, which the agent may keep as they are."""


def table() -> Table:
    names = library_names()
    ours = min(own_ns(names) for _ in range(ROUNDS))
    theirs = min(gnu_ns(names) for _ in range(ROUNDS))
    return tabulated(in_each_kernel("tests.bench.texts_guest"), len(names), ours, theirs)


def tabulated(
    kernels: Mapping[str, Mapping[str, Sequence[float]]], names: int, ours: float, theirs: float
) -> Table:
    """Make the table of the nanoseconds of every round, by kernel and row, and of those of a name."""
    head = ["what"]
    for version in kernels:
        head += [f"{version}: ns", "of the call"]
    empty = ("",) * (2 * len(kernels) - 1)
    return Table(
        TITLE,
        f"A C program calls open(2) and execve(2) for a path of {len(PATH)} characters that does not exist."
        f" Each probe in turn records the entry, in {ROUNDS} rounds of {RUNS} runs of {CALLS:,} calls. A"
        " round's figure is its fastest run less the fastest one without a probe; the median is shown."
        " A name is demangled and cut as for a stack.",
        tuple(head),
        (
            *rows(kernels),
            ("a name of C++, on this machine", f"{ours:,.0f}", *empty),
            ("the same by c++filt", f"{theirs:,.0f}", *empty),
        ),
        (
            EMULATED,
            "All rows but that of the flags are of eprobes, which read the program's memory. Each round"
            " checks that all calls were recorded, with the whole text.",
            f"Names: {names:,} functions of {LIBRARY}, whose texts are those of c++filt. Shown is the"
            f" processor time of the first use, which is {ours / theirs:.1f} times that of c++filt. The agent"
            " keeps the last names.",
        ),
    )


def rows(kernels: Mapping[str, Mapping[str, Sequence[float]]]) -> list[tuple[str, ...]]:
    """Return a row for each call without a probe, and for what each probe adds."""
    shown, base = [], ""
    for name, row in ROWS.items():
        base = base if row.fetch else name
        cells = [name if name == base else f"+ {name}"]
        for found in kernels.values():
            if name == base:
                cells += [f"{median(found[name]):,.0f}", ""]
                continue
            added = median(time - alone for time, alone in zip(found[name], found[base], strict=True))
            cells += [f"+{added:,.0f}", f"{added / median(found[base]):.2f}"]
        shown.append(tuple(cells))
    return shown


def library_names() -> list[str]:
    """Return symbols of the library's functions. Raises Missed if c++filt has another text for one."""
    command = ["cc", f"-print-file-name={LIBRARY}"]
    file = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    command = ["nm", "-D", "--defined-only", file]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = [name for name in re.findall(r" [TW] (_Z\w+)", listed) if not OTHER_TEXTS.search(name)]
    names = names[:MAX_NAMES]
    pairs = zip(names, by_gnu(names), strict=True)
    other = [name for name, text in pairs if _plain(demangled(name) or name) != _plain(text)]
    if other or len(names) < MIN_NAMES:
        raise Missed(f"of {len(names):,} names of {LIBRARY} c++filt has another text for {len(other):,}")
    return names


def _plain(text: str) -> str:
    return text.replace(" ", "")


def own_ns(names: Sequence[str]) -> float:
    """Return the nanoseconds of the processor that a name takes, the first time that it is wanted."""
    demangled.cache_clear()
    began = time.process_time_ns()
    for name in names:
        short_name(name, LONGEST_NAME)
    return (time.process_time_ns() - began) / len(names)


def gnu_ns(names: Sequence[str]) -> float:
    """The same of c++filt, with the start of its process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    by_gnu(names)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds * 1e9 / len(names)


def by_gnu(names: Sequence[str]) -> list[str]:
    """Return the texts that GNU's c++filt has for these symbols."""
    written = "".join(f"{name}\n" for name in names)
    return subprocess.run(
        ["c++filt"], input=written, check=True, capture_output=True, text=True
    ).stdout.splitlines()
