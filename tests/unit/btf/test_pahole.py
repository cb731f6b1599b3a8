"""Offsets agree with those of pahole (the package `dwarves`), which reads the same types on its own."""

import re
import subprocess
from pathlib import Path
from random import Random

import pytest

from kprobe_exporter.btf.structures import STRUCTURES, Structures
from kprobe_exporter.btf.types import Types
from tests.support.kernel_formats import RELEASES, saved

RUNNING = Path("/sys/kernel/btf/vmlinux")
COMPARED = 50

OPEN = re.compile(r"\s*(?:const |volatile )*(?:struct|union|enum)(?: \w+)? \{(?:\s*/\*.*)?")
CLOSE = re.compile(
    r"\s*\}(?: (?:__attribute__\S+ ?)*(?:\**(\w+))?(?:\[\d*\])*)?;"
    r"(?:\s*/\*\s*(\d+)(?::\s*(\d+))?\s+\d+ \*/)?.*"
)
LINE = re.compile(r"\s+\S.*?;\s*/\*\s*(\d+)(?::\s*(\d+))?\s+\d+ \*/")
NAME = re.compile(r"\(\*+(?:const )?\s*(\w+)|(\w+)(?:\[\d*\])*(?: __attribute__\(\(.*\)\))?(?::\d+)?\s*;")


def members(text: str) -> dict[str, int]:
    """Return the offset in bits of each named member that pahole shows, those of anonymous ones as well."""
    levels: list[dict[str, int]] = [{}]
    for line in text.splitlines():
        if OPEN.fullmatch(line):
            levels.append({})
        elif (found := CLOSE.fullmatch(line)) and len(levels) > 1:
            inner = levels.pop()
            levels[-1] |= {found[1]: _bits(found[2], found[3])} if found[1] else inner
        elif found := LINE.match(line):
            name = NAME.search(line)
            assert name, line
            levels[-1][name[1] or name[2]] = _bits(found[1], found[2])
    return levels[0]


def _bits(byte: str | None, bit: str | None) -> int:
    return 8 * int(byte or 0) + int(bit or 0)


@pytest.mark.parametrize("kernel", [*RELEASES, *(["running"] if RUNNING.exists() else [])])
def test_offsets_are_those_of_pahole(kernel: str, tmp_path: Path) -> None:
    data = RUNNING.read_bytes() if kernel == "running" else saved(kernel)["sys/kernel/btf/vmlinux"]
    file = tmp_path / "types"
    file.write_bytes(data)
    types = Types(data)
    structures = Structures(types)
    names = Random(kernel).sample(types.names(STRUCTURES), 2 * COMPARED)
    chosen = [name for name in names if len(types.find(name, STRUCTURES)) == 1][:COMPARED]
    compared = 0
    for name in ("sock_common", "task_struct", "request", "sk_buff", *chosen):
        shown = subprocess.run(
            ["pahole", "-F", "btf", "-C", name, str(file)], capture_output=True, text=True, check=True
        ).stdout
        (number,) = structures.named(name)
        assert number, name
        own = {row.name: row.offset for row in structures.rows(number)}
        assert own == members(shown), f"{name}:\n{shown}"
        compared += len(own)
    assert compared > COMPARED
