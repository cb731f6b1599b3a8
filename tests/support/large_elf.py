"""A program with a million symbols, as large ordinary ones have."""

import random
from array import array
from pathlib import Path

from tests.support.crafted_elf import ADDRESS, CODE, NAMES, SYMTAB, elf

COUNT = 1_000_000
CPP, C = b"_ZN4node10lib%07dERKSsi\0", b"node_the_library_%07d\0"
"""The symbols of functions of C++ and of C."""


def name(number: int, form: bytes = CPP) -> str:
    """Return the name of a symbol, from 0 to COUNT - 1."""
    return (form % number)[:-1].decode()


def written_name(number: int) -> str:
    """Return that name as people write it."""
    return f"node::lib{number:07}(std::string const&, int)"


def offset(number: int) -> int:
    """Return where in the file the function of a symbol begins. It has 16 bytes."""
    return CODE + 16 * number


def large_program(path: Path, form: bytes = CPP) -> Path:
    """Write the program, whose linker has sorted the names otherwise than the symbols, as lld and gold do."""
    length = len(form % 0)
    places = list(range(1, 1 + COUNT * length, length))
    random.Random(1).shuffle(places)
    numbers = [place // length for place in places]
    info = 0x12 << 32 | 1 << 48  # a global function in section 1
    words = array("Q", bytes(24 * COUNT))
    words[0::3] = array("Q", [place | info for place in places])
    words[1::3] = array("Q", [ADDRESS + offset(number) for number in numbers])
    words[2::3] = array("Q", [16] * COUNT)
    text = b"\0" + b"".join([form % number for number in range(COUNT)])
    return elf(path, (NAMES, text, 0, 0), (SYMTAB, words.tobytes(), 1, 0), code=16 * COUNT)
