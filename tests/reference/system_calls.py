"""The names of system calls, from the headers in tests/fixtures/syscalls. `headers` copies those anew."""

import re
import shutil
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.vm import BUILD
from tests.vm.debian import Suite, unpack

HEADERS = Path(__file__).parents[1] / "fixtures/syscalls"
ARCHITECTURES = {"aarch64": "arm64", "riscv64": "riscv", "x86_64": "x86"}
"""By the architecture as ``uname -m`` names it, the directory of its headers."""

WIDE = 20
"""A gap of this many numbers begins another list; in a smaller one each number is a ``-``."""

DEFINED = re.compile(r"^#define __NR_(\w+)\s+(\d+)$", re.MULTILINE)
HEAD = '''\
"""System calls by number, from the newest tested kernel's asm/unistd_64.h (`make reference`)."""

from collections.abc import Mapping

from kprobe_exporter.labels._text import numbered

TABLES: Mapping[str, Mapping[int, str]] = {
'''


def headers() -> None:
    """Copy the headers of the newest kernel under test, from Debian's package of them."""
    root = unpack(BUILD / "headers", "linux-libc-dev", suite=Suite("sid"))
    for name, directory in ARCHITECTURES.items():
        shutil.copy(root / f"usr/lib/linux/uapi/{directory}/asm/unistd_64.h", HEADERS / f"{name}.h")


def module() -> str:
    """Return kprobe_exporter/labels/syscall_numbers.py."""
    tables = {name: "\n    | ".join(_lists(name)) for name in ARCHITECTURES}
    return HEAD + "".join(f'    "{name}": {lists},\n' for name, lists in tables.items()) + "}\n"


def _lists(architecture: str) -> Iterator[str]:
    """Yield an expression for each range of numbers that has no wide gap."""
    text = (HEADERS / f"{architecture}.h").read_text()
    names = {int(number): name for name, number in DEFINED.findall(text)}
    start = min(names)
    for last, following in pairwise([*sorted(names), max(names) + WIDE]):
        if following - last >= WIDE:
            words = " ".join(names.get(number, "-") for number in range(start, last + 1))
            lines = textwrap.wrap(words, 102, break_long_words=False, break_on_hyphens=False)
            yield "\n        ".join(['numbered(\n        """', *lines, '""",', f"{start},"]) + "\n    )"
            start = following
