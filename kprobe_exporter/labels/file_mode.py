"""``file_mode``: a file's type and permissions: ``-rw-r--r--``, ``rw-r--r--`` without a type, ``0644``."""

import stat

from kprobe_exporter.labels._text import unsigned
from kprobe_exporter.model.specs import Decoder
from kprobe_exporter.model.values import Value

BITS = 16  # umode_t of include/linux/types.h


def decoder(options: object) -> Decoder:
    """Make the decoder to letters as ``ls -l`` has them; ``{file_mode: octal}`` gives the permissions alone.

    A mode that a program asks for, as the one of open(2) or chmod(2), has no type.
    """
    if options not in (None, "octal"):
        raise ValueError("the decoder file_mode takes 'octal' or nothing: write 'decode: {file_mode: octal}'")

    def decode(value: Value) -> str | None:
        mode = unsigned(value, 32)
        if mode is None or mode >> BITS:
            return None
        if options == "octal":
            return f"{stat.S_IMODE(mode):04o}"
        letters = stat.filemode(mode)
        return letters if stat.S_IFMT(mode) else letters[1:]

    return decode
