"""Programs and libraries, which are ELF files: where in the file a function begins."""

from kprobe_exporter.elf.find import Code, file_offset, functions, locate

__all__ = ["Code", "file_offset", "functions", "locate"]
