"""Kernel data that does not change while a kernel runs, read once for all agents that a test session forks.

Under emulation an agent would spend nine tenths of its start on the kernel's 50,000 functions, 190,000
symbols and 100,000 types. The agent's own code reads and uses them; only the first result is kept.
"""

import gc
from array import array
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kprobe_exporter.btf.types import FUNC, MANY, Types
from kprobe_exporter.symbols import lists
from kprobe_exporter.symbols.addresses import AddressTable, Symbols
from kprobe_exporter.symbols.lists import Lists
from kprobe_exporter.tracefs.files import TRACEABLE, MountedTracefs
from kprobe_exporter.tracefs.kernel_files import KernelFiles, running_kernel

MODULES = Path("/proc/modules")
"""Not there where the kernel was built without modules."""


@contextmanager
def read_once(kernel: MountedTracefs) -> Iterator[None]:
    """In this context, this process and the processes that it forks read functions, symbols and types once.

    A process that is not allowed to read them does not get them. A nested call does nothing: pytest runs a
    session fixture once for each directory that imports it.
    """
    if isinstance(vars(Lists)["functions"], property):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        _lists(patch, kernel)
        _functions(patch, kernel)
        _symbols(patch, kernel)
        _types(patch)
        # The garbage collector of a forked process need not scan the objects that exist by now.
        gc.collect()
        gc.freeze()
        yield
        # At its end hypothesis searches for references to an object; it would find none in frozen objects.
        gc.unfreeze()


def _loaded_modules() -> frozenset[str]:
    """Return the names of the loaded modules, with which the lists and the functions change."""
    return frozenset(lists.modules(MODULES.read_bytes().splitlines() if MODULES.exists() else ()))


def _lists(patch: pytest.MonkeyPatch, kernel: MountedTracefs) -> None:
    """Keep the long lists: the kernel takes longer to write them than a process to read them."""
    read, read_blocks = MountedTracefs.read, KernelFiles.blocks
    known: dict[Path, tuple[frozenset[str], bytes, bytes]] = {}

    def kept(path: Path) -> bytes:
        with path.open("rb") as file:  # the process may lack the right to open it, or see no addresses
            first = file.readline()
            loaded = _loaded_modules()
            if path not in known or known[path][0] != loaded:
                known[path] = loaded, first, first + file.read()
            _, line, text = known[path]
            return text if line == first else first + file.read()

    def blocks(files: KernelFiles, path: str) -> Iterator[bytes]:
        with files.open(path) as file:
            name = getattr(file, "name", None)
        if name is None:  # that of a saved kernel, which is in memory already
            yield from read_blocks(files, path)
        else:
            yield kept(Path(name))

    def text(files: MountedTracefs, path: str) -> bytes:
        return kept(files.root / path) if path == TRACEABLE else read(files, path)

    patch.setattr(KernelFiles, "blocks", blocks)
    patch.setattr(MountedTracefs, "read", text)
    with suppress(OSError):  # tests that need a list which is not there say so themselves
        next(blocks(running_kernel(kernel), lists.SYMBOLS))
    with suppress(OSError):
        text(kernel, TRACEABLE)


def _functions(patch: pytest.MonkeyPatch, kernel: MountedTracefs) -> None:
    read: Callable[[Lists], lists.TraceableFunctions | None] = vars(Lists)["functions"].func
    known: dict[frozenset[str], lists.TraceableFunctions | None] = {}

    def functions(of_kernel: Lists) -> lists.TraceableFunctions | None:
        loaded = _loaded_modules()
        if loaded not in known:
            known.clear()
            known[loaded] = read(of_kernel)
        return known[loaded]

    patch.setattr(Lists, "functions", property(functions))
    _ = Lists.of(running_kernel(kernel)).functions


def _symbols(patch: pytest.MonkeyPatch, kernel: MountedTracefs) -> None:
    look: Callable[[Symbols], None] = vars(Symbols)["_look_again"]
    tables: dict[frozenset[bytes], AddressTable | None] = {}

    def look_again(symbols: Symbols) -> None:
        modules = symbols._loaded_modules()
        if modules in tables and symbols._table is None and symbols._kallsyms_visible():
            symbols._table, symbols._modules = tables[modules], modules
        look(symbols)

    symbols = Symbols(kernel)
    if symbols._kallsyms_visible():
        symbols.name(0)
        tables[symbols._modules] = symbols._table
    patch.setattr(Symbols, "_look_again", look_again)


def _types(patch: pytest.MonkeyPatch) -> None:
    """Keep the positions of the kernel's types, and its functions by the offsets of their names."""
    walk: Callable[[Types, object, Collection[str]], None] = vars(Types)["_walk"]
    known: dict[object, tuple[array[int], dict[int, list[int]]]] = {}

    def read(types: Types, strides: object, names: Collection[str]) -> None:
        if types._base or len(names) >= MANY:
            walk(types, strides, names)
            return
        if types._data not in known:
            walk(types, strides, ())
            functions: dict[int, list[int]] = {}
            for at in types._starts:
                if types._words[at + 1] >> 24 == FUNC:
                    functions.setdefault(types._words[at], []).append(types._words[at + 2])
            known[types._data] = types._starts, functions
        types._starts, functions = known[types._data]
        for name in names:
            for offset in types.offsets(name):
                types._functions[name].update(functions.get(offset, ()))

    patch.setattr(Types, "_walk", read)
    vmlinux = Path("/sys/kernel/btf/vmlinux")
    if vmlinux.exists():
        Types(vmlinux.read_bytes())
