"""Counts what is read of ELF files, and how often one is parsed: a plan's cost without a clock."""

from collections.abc import Iterator
from typing import Any

import pytest

from kprobe_exporter.elf.budget import MeteredFile
from kprobe_exporter.elf.sections import ElfSections, Strings


class Reads:
    """What was done since it was made: ``files`` parsed, ``bytes`` read, ``names`` looked at one by one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = self.bytes = self.names = 0
        parse, read, each = ElfSections.__init__, MeteredFile.read, Strings.each

        def counted_parse(file: ElfSections, *given: Any) -> None:
            self.files += 1
            parse(file, *given)

        def counted_read(file: MeteredFile, size: int) -> bytes:
            data = read(file, size)
            self.bytes += len(data)
            return data

        def counted_names(strings: Strings, places: Any) -> Iterator[tuple[int, bytes]]:
            for one in each(strings, places):
                self.names += 1
                yield one

        monkeypatch.setattr(ElfSections, "__init__", counted_parse)
        monkeypatch.setattr(MeteredFile, "read", counted_read)
        monkeypatch.setattr(Strings, "each", counted_names)
