"""A place in the code of a program or a library."""

from typing import NamedTuple


class Code(NamedTuple):
    """A place in a file's code: ``offset`` in bytes from the file's start.

    ``machine`` is the processor that the code is for, as elf.h names it, such as EM_X86_64. ``inode`` is the
    file's device and inode number: its path may name another file by the time at which the offset is used.
    """

    offset: int
    machine: str
    inode: tuple[int, int] | None = None
