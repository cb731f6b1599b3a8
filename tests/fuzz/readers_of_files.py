"""Readers of binaries: BTF of a kernel and of a module."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kprobe_exporter.errors import GrammarError
from tests.fuzz.reader import Reader
from tests.support.btf_samples import SAMPLE, UNKNOWN, read_prototypes, sample, with_an_unknown_type

MANY = [*"fg", *(f"name{number}" for number in range(100))]
"""Enough names for the lookup that read_prototypes uses for many."""


def _with_layout() -> Sequence[bytes]:
    """Blobs with a table of the sizes of each kind of type."""
    layout = [(0, 0)] * UNKNOWN + [(4, 8)]
    return [with_an_unknown_type().data(layout=layout), sample().data(layout=layout)]


def _btf(data: bytes, _: Path) -> bool:
    with suppress(GrammarError):
        read_prototypes(data, MANY)
    with suppress(GrammarError):
        read_prototypes(SAMPLE, "fg", data)
    return bool(read_prototypes(data, "fg"))


def _module_btf(data: bytes, _: Path) -> bool:
    with suppress(GrammarError):
        read_prototypes(data, MANY, SAMPLE)
    return bool(read_prototypes(data, "fg", SAMPLE))


READERS: Mapping[str, Reader] = {
    "btf": Reader(lambda: [SAMPLE, *_with_layout()], _btf, (GrammarError,)),
    "module_btf": Reader(lambda: [SAMPLE], _module_btf, (GrammarError,)),
}
