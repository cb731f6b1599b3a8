"""Programs with USDT probes: compiled without sys/sdt.h, as readelf shows them, and their semaphores."""

import os
import re
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kprobe_exporter.elf import locate_usdt
from kprobe_exporter.grammar.target import parse_target

HEADER = r"""
/* A USDT probe as SystemTap's sys/sdt.h makes it: a nop, and a note that tells where it is. */
#define SITE(provider, name, semaphore, arguments, ...)                                     \
  __asm__ volatile ("990: nop\n"                                                            \
    ".pushsection .note.stapsdt,\"?\",\"note\"\n .balign 4\n"                               \
    ".4byte 992f-991f, 994f-993f, 3\n 991: .asciz \"stapsdt\"\n 992: .balign 4\n"           \
    "993: .8byte 990b\n .8byte _.stapsdt.base\n .8byte " semaphore "\n"                     \
    ".asciz \"" provider "\"\n .asciz \"" name "\"\n .asciz \"" arguments "\"\n"            \
    "994: .balign 4\n .popsection\n"                                                        \
    ".ifndef _.stapsdt.base\n"                                                              \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                 \
    ".weak _.stapsdt.base\n .hidden _.stapsdt.base\n _.stapsdt.base: .space 1\n"            \
    ".size _.stapsdt.base, 1\n .popsection\n .endif\n" :: __VA_ARGS__)
#define SEMAPHORE(name) \
  __attribute__((section(".probes"), used, visibility("hidden"))) volatile unsigned short name
"""


class ReadNote(NamedTuple):
    """A note as readelf prints it: its addresses, and its arguments."""

    location: int
    base: int
    semaphore: int
    arguments: str


NOTE = re.compile(
    r"Provider: (\S+)\n +Name: (\S+)\n +Location: 0x(\w+), Base: 0x(\w+), Semaphore: 0x(\w+)\n"
    r" +Arguments:(.*)$",
    re.MULTILINE,
)


def readelf_notes(paths: Iterable[Path]) -> dict[Path, dict[tuple[str, str], list[ReadNote]]]:
    """Return readelf's notes by file, provider and name; files without a note are left out."""
    output = subprocess.run(["readelf", "-nW", *paths], capture_output=True, text=True, check=False).stdout
    names = re.split(r"^File: (.*)$", output, flags=re.MULTILINE)
    if len(names) == 1:
        [only] = paths
        names = ["", str(only), output]
    found: dict[Path, dict[tuple[str, str], list[ReadNote]]] = {}
    for path, text in zip(names[1::2], names[2::2], strict=True):
        notes: defaultdict[tuple[str, str], list[ReadNote]] = defaultdict(list)
        for provider, name, *numbers, arguments in NOTE.findall(text):
            location, base, semaphore = (int(number, 16) for number in numbers)
            notes[provider, name].append(ReadNote(location, base, semaphore, arguments.strip()))
        if notes:
            found[Path(path)] = dict(notes)
    return found


def semaphore(pid: int, path: Path, name: str) -> int:
    """Return the value of a probe's semaphore in the memory of a process; ``name`` is PROVIDER:PROBE."""
    [counter] = {site.counter for site in locate_usdt(parse_target(f"usdt:{path}:{name}")).sites}
    assert counter is not None
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        area, rights, offset, *_, mapped = line.split(maxsplit=5)
        begin, end = (int(number, 16) for number in area.split("-"))
        start = int(offset, 16)
        if mapped == str(path) and "w" in rights and start <= counter < start + end - begin:
            with open(f"/proc/{pid}/mem", "rb") as memory:
                return int(struct.unpack("<H", os.pread(memory.fileno(), 2, begin + counter - start))[0])
    raise AssertionError(f"{path} has no writable place {counter:#x} in {pid}")
