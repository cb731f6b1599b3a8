"""Fuzzes the event engine without Python: each input is commands that write pages and drive the engine.

The target in C (tests/unit/engine/fuzz_engine.c) checks itself, and aborts. Unit tests run it under
AddressSanitizer.
"""

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.fuzz.target import KEPT, Input, Take, Target
from tests.support.compiling import compiler
from tests.support.engine_build import ENGINE, ROOT, STRICT

MAX_LENGTH = 4096
SOURCE = ROOT / "tests/unit/engine/fuzz_engine.c"


def make(random: Random) -> Input:
    return Input("engine", random.randbytes(random.randrange(MAX_LENGTH + 1)))


@contextmanager
def taking() -> Iterator[Take]:
    KEPT.mkdir(parents=True, exist_ok=True)
    library = KEPT / "engine.so"
    checked = ["-fsanitize=undefined", "-fno-sanitize-recover=undefined", "-O1", "-g", "-fPIC", "-shared"]
    sources = [SOURCE, *ENGINE.glob("*.c")]
    subprocess.run([compiler("gcc"), *checked, *STRICT, *sources, "-o", library], check=True)
    built = ctypes.CDLL(str(library))
    refused_pages = ctypes.c_uint32.in_dll(built, "refused_pages")

    def take(given: Input) -> bool:
        built.LLVMFuzzerTestOneInput(given.data, ctypes.c_size_t(len(given.data)))
        return refused_pages.value == 0

    yield take


TARGET = Target("engine", make, taking)
